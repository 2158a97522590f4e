//! Weights on the GPU, each loaded once.

use std::collections::HashMap;
use std::sync::Arc;

use guesthouse_graph::{Graph, Segment, WeightId};
use guesthouse_weights::{DType, DummyFill, Scheme, WeightSource};
use half::{bf16, f16};

use super::compiler::Source;
use super::driver::{Buffer, Gpu};
use super::launch::{Grid, Params};
use super::ops::experts::ExpertMatrix;
use super::ops::quant::QuantMatrix;
use super::options::CudaDtype;
use crate::cpu::LoadProgress;
use crate::error::{DeviceError, Result};
use crate::weights_eval::{HostTensor, evaluate, param_name};

/// A matrix `[n, k]` of the model's dtype, row-major.
#[derive(Clone)]
pub(crate) struct Dense {
    buffer: Arc<Buffer>,
    /// Rows.
    pub n: u32,
    /// Columns.
    pub k: u32,
}

impl Dense {
    /// Address of element 0.
    pub(crate) fn address(&self) -> u64 {
        self.buffer.address()
    }
}

/// A matrix in the form it is multiplied from.
#[derive(Clone)]
pub(crate) enum Matrix {
    /// Of the model's dtype.
    Dense(Dense),
    /// In blocks.
    Quant(Arc<QuantMatrix>),
}

impl Matrix {
    /// Rows and columns.
    pub(crate) fn shape(&self) -> (u32, u32) {
        match self {
            Self::Dense(m) => (m.n, m.k),
            Self::Quant(m) => m.shape(),
        }
    }
}

/// Some rows of a merged linear that one product computes: `[n, k]`, with a bias of the model's dtype.
#[derive(Clone)]
pub(crate) struct Part {
    pub matrix: Matrix,
    pub bias: Option<Arc<Buffer>>,
    /// First output column.
    pub column: u32,
}

/// Element type of a vector on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum VectorType {
    /// The model's.
    Model,
    /// f32, unrounded.
    F32,
}

/// Identity of a weight's contents: several ids may name one checkpoint tensor.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Name(String),
    Id(WeightId),
}

/// `FillParams` of `input/fill.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FillParams {
    data: u64,
    start: u64,
    count: u64,
    seed: u32,
    offset: f32,
    scale: f32,
    padding: u32,
}

// SAFETY: the kernel's structure; `data` lies in the buffer being filled.
#[allow(unsafe_code)]
unsafe impl Params for FillParams {}

pub(crate) struct Loader<'a> {
    pub gpu: Arc<Gpu>,
    pub dtype: CudaDtype,
    graph: &'a Graph,
    source: &'a dyn WeightSource,
    progress: &'a mut dyn FnMut(LoadProgress),
    parts: HashMap<Vec<Key>, Matrix>,
    vectors: HashMap<(WeightId, VectorType), Arc<Buffer>>,
    counted: LoadProgress,
    bytes: usize,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        graph: &'a Graph,
        source: &'a dyn WeightSource,
        dtype: CudaDtype,
        progress: &'a mut dyn FnMut(LoadProgress),
    ) -> Self {
        let counted = LoadProgress {
            done: 0,
            total: crate::weights_eval::used(graph),
        };
        Self {
            gpu: Arc::clone(gpu),
            dtype,
            graph,
            source,
            progress,
            parts: HashMap::new(),
            vectors: HashMap::new(),
            counted,
            bytes: 0,
        }
    }

    /// Bytes of everything loaded.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn count(&mut self) {
        self.counted.done += 1;
        (self.progress)(self.counted);
    }

    fn key(&self, id: WeightId) -> Key {
        param_name(self.graph, id).map_or(Key::Id(id), |name| Key::Name(name.to_owned()))
    }

    fn shape(&self, id: WeightId) -> Result<(usize, usize)> {
        match self.graph.weight(id).shape[..] {
            [n, k] => Ok((n as usize, k as usize)),
            ref other => Err(DeviceError::Weight {
                name: id.to_string(),
                what: format!("expected a matrix, found shape {other:?}"),
            }),
        }
    }

    /// Values that a device makes up itself, for a plain checkpoint tensor.
    fn dummy(&self, id: WeightId) -> Option<DummyFill> {
        self.source.dummy(param_name(self.graph, id)?)
    }

    /// A matrix `[rows, cols]`.
    ///
    /// # Errors
    /// When it is missing, is none, or does not fit the GPU.
    pub(crate) fn matrix(&mut self, id: WeightId) -> Result<Matrix> {
        if is_dense(self.graph.weight(id).scheme) {
            return self.dense(&[id]);
        }
        let key = vec![self.key(id)];
        if let Some(found) = self.parts.get(&key) {
            return Ok(found.clone());
        }
        let tensor = evaluate(self.graph, id, self.source)?;
        self.count();
        let quant = QuantMatrix::upload(&self.gpu, &tensor)?;
        self.bytes += quant.bytes();
        let matrix = Matrix::Quant(Arc::new(quant));
        self.parts.insert(key, matrix.clone());
        Ok(matrix)
    }

    /// Plain matrices of equal width below one another.
    fn dense(&mut self, ids: &[WeightId]) -> Result<Matrix> {
        let key: Vec<Key> = ids.iter().map(|&id| self.key(id)).collect();
        if let Some(found) = self.parts.get(&key) {
            return Ok(found.clone());
        }
        let shapes: Vec<(usize, usize)> = ids
            .iter()
            .map(|&id| self.shape(id))
            .collect::<Result<_>>()?;
        let (n, k) = (shapes.iter().map(|s| s.0).sum::<usize>(), shapes[0].1);
        if shapes.iter().any(|s| s.1 != k) {
            return Err(DeviceError::plan("merged matrices differ in width"));
        }
        let element = self.dtype.bytes();
        let buffer = self.gpu.allocate(n * k * element, "weights")?;
        let mut at = 0;
        for (&id, (rows, _)) in ids.iter().zip(&shapes) {
            self.write(id, &buffer, at, rows * k)?;
            at += rows * k * element;
        }
        self.bytes += buffer.bytes();
        let dense = Dense {
            buffer: Arc::new(buffer),
            n: u32::try_from(n).unwrap_or(u32::MAX),
            k: u32::try_from(k).unwrap_or(u32::MAX),
        };
        let matrix = Matrix::Dense(dense);
        self.parts.insert(key, matrix.clone());
        Ok(matrix)
    }

    /// Puts a weight's elements into a buffer, in the model's dtype.
    fn write(&mut self, id: WeightId, buffer: &Buffer, at: usize, elements: usize) -> Result<()> {
        match self.dummy(id) {
            Some(dummy) => self.fill(dummy, buffer.address() + at as u64, elements)?,
            None => {
                let tensor = evaluate(self.graph, id, self.source)?;
                buffer.write(at, &converted(&tensor, self.dtype)?)?;
            }
        }
        self.count();
        Ok(())
    }

    fn fill(&self, dummy: DummyFill, data: u64, count: usize) -> Result<()> {
        let source = Source::new("input/fill.cu", "fill").flag(model_flag(self.dtype));
        let params = FillParams {
            data,
            start: 0,
            count: count as u64,
            seed: dummy.seed,
            offset: dummy.offset,
            scale: dummy.scale,
            padding: 0,
        };
        let blocks = count.div_ceil(256).clamp(1, 8192) as u32;
        self.gpu
            .kernel(&source)?
            .launch(&self.gpu, Grid::new(blocks, 256), &params)
    }

    /// The segments of a linear as few products: neighbours of the model's dtype are stored as one matrix.
    ///
    /// # Errors
    /// As for [`Self::matrix`], or when a bias does not fit.
    pub(crate) fn linear(&mut self, segments: &[Segment]) -> Result<Vec<Part>> {
        let plain = |s: &Segment| is_dense(self.graph.weight(s.weight).scheme);
        let runs: Vec<&[Segment]> = segments.chunk_by(|a, b| plain(a) && plain(b)).collect();
        let mut column = 0;
        let mut parts = Vec::new();
        for run in runs {
            let ids: Vec<WeightId> = run.iter().map(|s| s.weight).collect();
            let matrix = match ids[..] {
                [id] => self.matrix(id)?,
                _ => self.dense(&ids)?,
            };
            let bias = self.bias(run)?;
            let n = matrix.shape().0;
            parts.push(Part {
                matrix,
                bias,
                column,
            });
            column += n;
        }
        Ok(parts)
    }

    /// Two matrices of equal shape as one whose rows alternate in blocks of `block`, and their biases likewise.
    ///
    /// # Errors
    /// When a weight is missing, or does not fit the GPU.
    pub(crate) fn gated(
        &mut self,
        segments: &[Segment; 2],
        block: usize,
    ) -> Result<(Dense, Option<Arc<Buffer>>)> {
        let (n, k) = self.shape(segments[0].weight)?;
        let line = block * k * self.dtype.bytes();
        let half = n * k * self.dtype.bytes();
        let buffer = self.gpu.allocate(2 * half, "weights")?;
        let apart = self.gpu.allocate(half, "weights")?;
        for (i, segment) in segments.iter().enumerate() {
            self.write(segment.weight, &apart, 0, n * k)?;
            let to = buffer.address() + (i * line) as u64;
            self.gpu
                .copy_lines((apart.address(), to), (line, 2 * line), line, n / block)?;
        }
        self.gpu.synchronize()?;
        self.bytes += buffer.bytes();
        let bias = match self.host_bias(segments)? {
            None => None,
            Some(values) => {
                let (gate, up) = values.split_at(n);
                let pairs = gate.chunks(block).zip(up.chunks(block));
                let values: Vec<f32> = pairs.flat_map(|(g, u)| [g, u].concat()).collect();
                Some(self.upload_bias(&values)?)
            }
        };
        let dense = Dense {
            buffer: Arc::new(buffer),
            n: u32::try_from(2 * n).unwrap_or(u32::MAX),
            k: u32::try_from(k).unwrap_or(u32::MAX),
        };
        Ok((dense, bias))
    }

    fn bias(&mut self, run: &[Segment]) -> Result<Option<Arc<Buffer>>> {
        match self.host_bias(run)? {
            None => Ok(None),
            Some(values) => self.upload_bias(&values).map(Some),
        }
    }

    fn upload_bias(&mut self, values: &[f32]) -> Result<Arc<Buffer>> {
        let buffer = self.gpu.upload(&stored(values, self.dtype), "weights")?;
        self.bytes += buffer.bytes();
        Ok(Arc::new(buffer))
    }

    /// Biases of a run side by side, zero where a segment has none.
    fn host_bias(&mut self, run: &[Segment]) -> Result<Option<Vec<f32>>> {
        if run.iter().all(|s| s.bias.is_none()) {
            return Ok(None);
        }
        let mut values = Vec::new();
        for segment in run {
            let n = self.shape(segment.weight)?.0;
            match segment.bias {
                Some(bias) => {
                    let part = self.host_vector(bias)?;
                    if part.len() != n {
                        return Err(DeviceError::plan(format!(
                            "a bias of {} elements for {n} rows",
                            part.len()
                        )));
                    }
                    values.extend(part);
                }
                None => values.extend(std::iter::repeat_n(0f32, n)),
            }
        }
        Ok(Some(values))
    }

    /// All elements of a plain weight as f32 on the host.
    ///
    /// # Errors
    /// When it is missing or has no dequantization.
    pub(crate) fn host_vector(&mut self, id: WeightId) -> Result<Vec<f32>> {
        let values = evaluate(self.graph, id, self.source)?.to_f32()?;
        self.count();
        Ok(values)
    }

    /// A layer's experts with rows in the order that `rows` says; not shared between layers.
    ///
    /// # Errors
    /// When a weight is missing, has no dequantization, or does not fit the GPU.
    pub(crate) fn experts(
        &mut self,
        id: WeightId,
        bias: Option<WeightId>,
        rows: &[Option<usize>],
    ) -> Result<ExpertMatrix> {
        let bias = bias.map(|b| self.host_vector(b)).transpose()?;
        let tensor = evaluate(self.graph, id, self.source)?;
        self.count();
        let matrix = ExpertMatrix::upload(&self.gpu, self.dtype, &tensor, bias.as_deref(), rows)?;
        self.bytes += matrix.bytes();
        Ok(matrix)
    }

    /// All elements of a weight on the GPU, and their number.
    ///
    /// # Errors
    /// When it is missing, has no dequantization, or does not fit the GPU.
    pub(crate) fn vector(&mut self, id: WeightId, ty: VectorType) -> Result<Arc<Buffer>> {
        if let Some(found) = self.vectors.get(&(id, ty)) {
            return Ok(Arc::clone(found));
        }
        let values = self.host_vector(id)?;
        let bytes = match ty {
            VectorType::Model => stored(&values, self.dtype),
            VectorType::F32 => stored(&values, CudaDtype::F32),
        };
        let buffer = Arc::new(self.gpu.upload(&bytes, "weights")?);
        self.bytes += buffer.bytes();
        self.vectors.insert((id, ty), Arc::clone(&buffer));
        Ok(buffer)
    }

    /// Elements of a weight.
    pub(crate) fn len(&self, id: WeightId) -> usize {
        let shape = &self.graph.weight(id).shape;
        shape.iter().map(|&d| d as usize).product()
    }
}

/// Whether a matrix is multiplied in the model's type: MXFP4 has kernels for experts alone.
fn is_dense(scheme: Scheme) -> bool {
    scheme.plain().is_some() || scheme == Scheme::Mxfp4
}

/// The definition that makes `model_t` this type.
pub(crate) fn model_flag(dtype: CudaDtype) -> &'static str {
    match dtype {
        CudaDtype::Bf16 => "MODEL_BF16",
        CudaDtype::F16 => "MODEL_F16",
        CudaDtype::F32 => "MODEL_F32",
    }
}

/// A plain tensor's elements in another type, rounded to nearest.
fn converted<'t>(
    tensor: &'t HostTensor<'_>,
    dtype: CudaDtype,
) -> Result<std::borrow::Cow<'t, [u8]>> {
    let same = matches!(
        (tensor.info.scheme, dtype),
        (Scheme::Plain(DType::Bf16), CudaDtype::Bf16)
            | (Scheme::Plain(DType::F16), CudaDtype::F16)
            | (Scheme::Plain(DType::F32), CudaDtype::F32)
    );
    if same {
        return Ok(std::borrow::Cow::Borrowed(&tensor.bytes));
    }
    Ok(std::borrow::Cow::Owned(stored(&tensor.to_f32()?, dtype)))
}

/// f32 values as bytes of a type.
pub(crate) fn stored(values: &[f32], dtype: CudaDtype) -> Vec<u8> {
    match dtype {
        CudaDtype::F32 => bytemuck::cast_slice(values).to_vec(),
        CudaDtype::Bf16 => values
            .iter()
            .flat_map(|&x| bf16::from_f32(x).to_le_bytes())
            .collect(),
        CudaDtype::F16 => values
            .iter()
            .flat_map(|&x| f16::from_f32(x).to_le_bytes())
            .collect(),
    }
}

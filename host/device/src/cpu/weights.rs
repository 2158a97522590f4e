//! Weights in the forms the kernels read, each loaded once.

use std::collections::HashMap;
use std::sync::Arc;

use guesthouse_graph::{Graph, WeightId};
use guesthouse_weights::{DType, Scheme, TensorInfo, WeightSource};

use super::pack::{Format, PackedMatrix};
use crate::error::{DeviceError, Result};
use crate::weights_eval::{HostTensor, evaluate, ordered_rows, param_name, used};

/// Weights loaded so far and in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Loaded.
    pub done: usize,
    /// To load.
    pub total: usize,
}

/// Identity of a weight's contents: several ids may name one checkpoint tensor.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    Name(String),
    Id(WeightId),
    /// A layer's experts, rows in another order.
    Stacked(WeightId, Vec<Option<usize>>),
}

pub(crate) struct Loader<'a> {
    graph: &'a Graph,
    source: &'a dyn WeightSource,
    threads: usize,
    progress: &'a mut dyn FnMut(LoadProgress),
    matrices: HashMap<Key, Arc<PackedMatrix>>,
    vectors: HashMap<WeightId, Arc<[f32]>>,
    /// Bytes of matrices of heads.
    head_bytes: usize,
    counted: LoadProgress,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        source: &'a dyn WeightSource,
        threads: usize,
        progress: &'a mut dyn FnMut(LoadProgress),
    ) -> Self {
        let counted = LoadProgress {
            done: 0,
            total: used(graph),
        };
        Self {
            graph,
            source,
            threads,
            progress,
            matrices: HashMap::new(),
            vectors: HashMap::new(),
            head_bytes: 0,
            counted,
        }
    }

    fn evaluate(&mut self, id: WeightId) -> Result<HostTensor<'a>> {
        let tensor = evaluate(self.graph, id, self.source)?;
        self.counted.done += 1;
        (self.progress)(self.counted);
        Ok(tensor)
    }

    /// A matrix `[rows, cols]`.
    pub(crate) fn matrix(&mut self, id: WeightId) -> Result<Arc<PackedMatrix>> {
        let key = param_name(self.graph, id).map_or(Key::Id(id), |name| Key::Name(name.to_owned()));
        if let Some(matrix) = self.matrices.get(&key) {
            return Ok(Arc::clone(matrix));
        }
        let tensor = self.evaluate(id)?;
        let [rows, cols] = tensor.info.shape[..] else {
            return Err(DeviceError::Weight {
                name: id.to_string(),
                what: format!("expected a matrix, found shape {:?}", tensor.info.shape),
            });
        };
        let packed = match Format::of(tensor.info.scheme) {
            Some(format) => PackedMatrix::new(format, rows, cols, &tensor.bytes, self.threads),
            None => {
                let values = tensor.to_f32()?;
                PackedMatrix::new(
                    Format::F32,
                    rows,
                    cols,
                    bytemuck::cast_slice(&values),
                    self.threads,
                )
            }
        };
        let packed = Arc::new(packed);
        self.matrices.insert(key, Arc::clone(&packed));
        Ok(packed)
    }

    /// Matrices `[count, rows, cols]` one below the other, each with the rows that `rows` lists (zeros for none).
    pub(crate) fn stacked(
        &mut self,
        id: WeightId,
        rows: &[Option<usize>],
    ) -> Result<Arc<PackedMatrix>> {
        let key = Key::Stacked(id, rows.to_vec());
        if let Some(matrix) = self.matrices.get(&key) {
            return Ok(Arc::clone(matrix));
        }
        let tensor = self.evaluate(id)?;
        let [count, _, cols] = tensor.info.shape[..] else {
            return Err(DeviceError::Weight {
                name: id.to_string(),
                what: format!("expected matrices, found shape {:?}", tensor.info.shape),
            });
        };
        let (format, tensor) = match Format::of(tensor.info.scheme) {
            Some(format) => (format, tensor),
            None => {
                let bytes = bytemuck::cast_slice(&tensor.to_f32()?).to_vec().into();
                let info = TensorInfo::new(tensor.info.shape, DType::F32);
                (Format::F32, HostTensor { info, bytes })
            }
        };
        let ordered = ordered_rows(&tensor.bytes, count, rows, &tensor.info)?;
        let packed = PackedMatrix::new(format, count * rows.len(), cols, &ordered, self.threads);
        let packed = Arc::new(packed);
        self.matrices.insert(key, Arc::clone(&packed));
        Ok(packed)
    }

    /// A plain weight `[heads, rows, cols]`, a matrix per head.
    pub(crate) fn head_matrices(&mut self, id: WeightId) -> Result<Vec<PackedMatrix>> {
        let tensor = self.evaluate(id)?;
        let (&[heads, rows, cols], Some(format)) =
            (&tensor.info.shape[..], Format::of(tensor.info.scheme))
        else {
            return Err(DeviceError::Weight {
                name: id.to_string(),
                what: format!(
                    "expected plain matrices, found shape {:?} stored as {}",
                    tensor.info.shape, tensor.info.scheme
                ),
            });
        };
        let each = (tensor.bytes.len() / heads.max(1)).max(1);
        let matrices: Vec<PackedMatrix> = tensor
            .bytes
            .chunks_exact(each)
            .map(|bytes| PackedMatrix::new(format, rows, cols, bytes, 1))
            .collect();
        self.head_bytes += matrices.iter().map(PackedMatrix::bytes).sum::<usize>();
        Ok(matrices)
    }

    /// All elements of a plain weight as f32.
    pub(crate) fn vector(&mut self, id: WeightId) -> Result<Arc<[f32]>> {
        if let Some(vector) = self.vectors.get(&id) {
            return Ok(Arc::clone(vector));
        }
        let tensor = self.evaluate(id)?;
        let vector: Arc<[f32]> = match tensor.info.scheme {
            Scheme::Plain(DType::F32) => tensor
                .bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect(),
            _ => tensor.to_f32()?.into(),
        };
        self.vectors.insert(id, Arc::clone(&vector));
        Ok(vector)
    }

    /// Bytes of everything loaded.
    pub(crate) fn bytes(&self) -> usize {
        let matrices: usize = self.matrices.values().map(|m| m.bytes()).sum();
        let vectors: usize = self.vectors.values().map(|v| 4 * v.len()).sum();
        matrices + vectors + self.head_bytes
    }
}

//! Normalisations (`kernels/norm`).
//!
//! How a vector is shared among threads depends on its length alone, so that a row's result never depends on the batch.

#![allow(unsafe_code)]

use std::sync::Arc;

use guesthouse_graph::NormRounding;

use super::{Instr, Place, Step, Tensor, access};
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::VectorType;
use crate::error::{DeviceError, Result};

/// `NormParams` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct NormParams {
    x: Tensor,
    residual: Tensor,
    sum: Tensor,
    y: Tensor,
    weight: u64,
    bias: u64,
    eps: f32,
    offset: f32,
    rows: i32,
    weight_step: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas and of weights that the instruction holds.
unsafe impl Params for NormParams {}

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NormKind {
    /// `x / sqrt(mean x² + eps) * (offset + weight)`
    Rms { offset: f32, rounding: NormRounding },
    /// `(x - mean) / sqrt(var + eps) * weight + bias`
    Layer,
    /// `x / sqrt(Σx² + eps)`
    L2,
}

/// Weight and bias, of one type.
#[derive(Clone, Default)]
pub(crate) struct NormWeights {
    pub weight: Option<Arc<Buffer>>,
    pub bias: Option<Arc<Buffer>>,
    /// Whether each of a row's vectors has its own.
    pub per_vector: bool,
}

/// One norm.
#[derive(Clone)]
pub(crate) struct NormSpec {
    pub kind: NormKind,
    pub eps: f32,
    /// Length of one vector; divides the width of x.
    pub d: usize,
    pub weights: NormWeights,
    pub weight_type: VectorType,
    pub x: Place,
    /// What is added to x first, and where the sum goes.
    pub residual: Option<(Place, Place)>,
    pub y: Place,
    pub dtype: CudaDtype,
}

/// Threads that share a vector, threads of a block, and elements of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NormShape {
    pub group: usize,
    pub threads: usize,
    pub access: usize,
}

impl NormShape {
    /// Most accesses of one thread; more would not fit registers.
    const MOST: usize = 64;

    /// Threads of a block that has several groups.
    const BLOCK: usize = 256;

    /// None when a vector is too long.
    pub(crate) fn new(d: usize, access: usize) -> Option<Self> {
        let accesses = d / access;
        if accesses <= 32 {
            return Some(Self {
                group: accesses.max(1).next_power_of_two(),
                threads: Self::BLOCK,
                access,
            });
        }
        // Two accesses a thread are quicker than one at any number of rows.
        let each = accesses.div_ceil(1024).max(2);
        let group = accesses.div_ceil(each).next_multiple_of(32);
        (each * access <= Self::MOST).then_some(Self {
            group,
            threads: if group == 32 { Self::BLOCK } else { group },
            access,
        })
    }
}

/// A norm of each row's vectors.
pub(crate) struct Norm {
    spec: NormSpec,
    shape: NormShape,
    vectors: usize,
    kernel: Kernel,
}

impl Norm {
    /// The kernel for a norm.
    ///
    /// # Errors
    /// When a vector is empty, or longer than the threads of a block can hold.
    pub(crate) fn new(gpu: &Arc<Gpu>, spec: NormSpec) -> Result<Self> {
        let mut places = vec![&spec.x, &spec.y];
        places.extend(spec.residual.iter().flat_map(|(r, s)| [r, s]));
        let access = access::elements(&places, &[spec.d]);
        let shape = NormShape::new(spec.d, access).filter(|_| spec.d > 0);
        let Some(shape) = shape else {
            return Err(DeviceError::plan(format!(
                "a norm over {} elements; the CUDA device takes 1 to 65536",
                spec.d
            )));
        };
        let (file, entry) = match spec.kind {
            NormKind::Rms { .. } => ("norm/rms.cu", "norm_rms"),
            NormKind::Layer => ("norm/layer.cu", "norm_layer"),
            NormKind::L2 => ("norm/l2.cu", "norm_l2"),
        };
        let vectors = spec.x.width / spec.d;
        let mut source = access::source(file, entry, spec.dtype, &spec.x)
            .define("ROW_WIDTH", spec.d)
            .define("VECTORS", vectors)
            .define("GROUP_THREADS", shape.group)
            .define("BLOCK_THREADS", shape.threads)
            .define("VEC", shape.access);
        let first = matches!(
            spec.kind,
            NormKind::Rms {
                rounding: NormRounding::CastThenWeight,
                ..
            }
        );
        let flags = [
            ("ADD", spec.residual.is_some()),
            ("ROUND_FIRST", first),
            (
                "WEIGHT_F32",
                spec.weight_type == VectorType::F32 && spec.dtype != CudaDtype::F32,
            ),
        ];
        for (flag, _) in flags.into_iter().filter(|(_, set)| *set) {
            source = source.flag(flag);
        }
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            spec,
            shape,
            vectors,
        })
    }
}

impl Instr for Norm {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let spec = &self.spec;
        let rows = step.rows(spec.y.arena);
        let none = Tensor { data: 0, stride: 0 };
        let (residual, sum) = spec
            .residual
            .as_ref()
            .map_or((none, none), |(r, s)| (step.tensor(r), step.tensor(s)));
        let address = |b: &Option<Arc<Buffer>>| b.as_ref().map_or(0, |b| b.address());
        let params = NormParams {
            x: step.tensor(&spec.x),
            residual,
            sum,
            y: step.tensor(&spec.y),
            weight: address(&spec.weights.weight),
            bias: address(&spec.weights.bias),
            eps: spec.eps,
            offset: match spec.kind {
                NormKind::Rms { offset, .. } => offset,
                NormKind::Layer | NormKind::L2 => 0.0,
            },
            rows: rows as i32,
            weight_step: if spec.weights.per_vector {
                spec.d as i32
            } else {
                0
            },
        };
        let groups = self.shape.threads / self.shape.group;
        let blocks = (rows as usize * self.vectors).div_ceil(groups) as u32;
        let grid = Grid::new(blocks, self.shape.threads as u32);
        self.kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        match (self.spec.kind, &self.spec.residual) {
            (NormKind::Rms { .. }, None) => "rms norm",
            (NormKind::Rms { .. }, Some(_)) => "add, rms norm",
            (NormKind::Layer, None) => "layer norm",
            (NormKind::Layer, Some(_)) => "add, layer norm",
            (NormKind::L2, _) => "l2 norm",
        }
    }
}

#[cfg(test)]
mod tests;

//! Products of each head with a matrix of its own (`kernels/gemm/heads.cu`).
//!
//! A sum's order depends on its length alone: results are bitwise the same in every batch. Floor: the matrices, read once.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::{Instr, Place, Step, Tensor};
use crate::cuda::compiler::Source;
use crate::cuda::driver::{Buffer, Gpu};
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::options::CudaDtype;
use crate::cuda::weights::model_flag;
use crate::error::Result;

/// `HeadLinearParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct HeadLinearParams {
    x: Tensor,
    y: Tensor,
    weight: u64,
    tokens: i32,
    padding: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas and of a buffer that the instruction holds.
unsafe impl Params for HeadLinearParams {}

/// Threads of a block.
const THREADS: u32 = 128;

/// Columns of a block with tensor cores.
const COLUMNS: u32 = 64;

/// Most blocks along z.
const MAX_Z: u32 = 65_535;

/// `x [heads, inp + rest]` to `y [heads, out + rest]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadShape {
    pub heads: u32,
    pub inp: u32,
    pub out: u32,
    /// Elements that are copied.
    pub rest: u32,
}

/// The kernels for a shape.
enum Variant {
    /// Of 16 and of 64 tokens a block.
    Tensor { few: Kernel, many: Kernel },
    /// An element a warp.
    Plain(Kernel),
}

/// Of each head its first elements times a matrix of its own, and the rest as it is.
pub(crate) struct HeadLinear {
    variant: Variant,
    shape: HeadShape,
    /// `[heads, out, inp]`
    weight: Arc<Buffer>,
    x: Place,
    y: Place,
}

impl HeadLinear {
    /// For a weight of the model's type.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        dtype: CudaDtype,
        shape: HeadShape,
        weight: Arc<Buffer>,
        (x, y): (Place, Place),
    ) -> Result<Self> {
        let source = Source::new("gemm/heads.cu", "head_linear")
            .flag(model_flag(dtype))
            .define("IN", shape.inp)
            .define("OUT", shape.out)
            .define("REST", shape.rest);
        let whole = [shape.inp, shape.out, shape.rest]
            .iter()
            .all(|n| n.is_multiple_of(8));
        let tensor = dtype != CudaDtype::F32 && whole && x.is_aligned() && y.is_aligned();
        let variant = if tensor {
            Variant::Tensor {
                few: gpu.kernel(&source.clone().define("TOKENS", 16))?,
                many: gpu.kernel(&source.define("TOKENS", 64))?,
            }
        } else {
            Variant::Plain(gpu.kernel(&source)?)
        };
        Ok(Self {
            variant,
            shape,
            weight,
            x,
            y,
        })
    }
}

impl Instr for HeadLinear {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let tokens = step.rows(self.y.arena);
        let params = HeadLinearParams {
            x: step.tensor(&self.x),
            y: step.tensor(&self.y),
            weight: self.weight.address(),
            tokens: tokens as i32,
            padding: 0,
        };
        let HeadShape {
            heads, out, rest, ..
        } = self.shape;
        let (kernel, columns, z) = match &self.variant {
            Variant::Tensor { few, .. } if tokens <= 16 => (few, out.div_ceil(COLUMNS), 1),
            Variant::Tensor { many, .. } => (many, out.div_ceil(COLUMNS), tokens.div_ceil(64)),
            Variant::Plain(kernel) => (kernel, (out + rest).div_ceil(THREADS / 32), tokens),
        };
        let grid = Grid::new(columns, THREADS).yz(heads, z.min(MAX_Z));
        kernel.launch(step.gpu, grid, &params)
    }

    fn name(&self) -> &'static str {
        "head linear"
    }
}

//! Matrix products of at most 16 tokens that stream the weights once (`kernels/gemm/gemv.cu`).
//!
//! Floor: `2 n k` bytes. The order of an output's sum depends on k and the shape alone.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::own::Gating;
use crate::cuda::blas::{Operands, Product};
use crate::cuda::compiler::Source;
use crate::cuda::driver::Gpu;
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::options::CudaDtype;
use crate::error::{DeviceError, Result};

/// `GemvParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct GemvParams {
    weight: u64,
    x: u64,
    bias: u64,
    y: u64,
    x_stride: i64,
    y_stride: i64,
    n: i32,
    k: i32,
    tokens: i32,
    padding: i32,
}

// SAFETY: the kernel's structure; its addresses are the operands', which live until the step has run.
unsafe impl Params for GemvParams {}

/// How the kernel is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// Columns of a stage.
    pub chunk: u32,
    /// Stages of the ring.
    pub stages: u32,
    /// Blocks of a cluster that share k.
    pub split: u32,
}

/// Warps that multiply; one more copies.
const WARPS: u32 = 8;

/// Most tokens.
pub(crate) const TOKENS: u32 = 16;

/// Weight rows of a tile.
const ROWS: u32 = 8;

/// Columns of a stage, in copies of 2 KiB a row: shorter ones are bound by the copies' number.
const CHUNK: u32 = 1024;

/// Stages, from most to fewest: what is in flight while one kernel ends and the next has not begun.
const STAGES: [u32; 5] = [12, 10, 8, 6, 4];

/// What a kernel is compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Variant {
    shape: Shape,
    /// A power of two.
    tokens: u32,
    input: CudaDtype,
    output: CudaDtype,
    gating: Option<Gating>,
}

impl Variant {
    fn of(shape: Shape, p: &Product) -> Self {
        Self {
            shape,
            tokens: p.m.next_power_of_two(),
            input: p.input,
            output: p.output,
            gating: p.gating,
        }
    }

    fn source(&self) -> Source {
        let mut source = Source::new("gemm/gemv.cu", "gemv")
            .flag(match self.input {
                CudaDtype::F16 => "MODEL_F16",
                _ => "MODEL_BF16",
            })
            .define("TOKENS", self.tokens)
            .define("CHUNK", self.shape.chunk)
            .define("STAGES", self.shape.stages)
            .define("SPLIT", self.shape.split)
            .define("WARPS", WARPS);
        if self.output == CudaDtype::F32 {
            source = source.flag("OUT_F32");
        }
        if let Some(gating) = self.gating {
            source = source.define("GATE", gating.number());
        }
        source
    }

    /// Blocks that share out the tiles, times those that share k.
    fn blocks(&self, gpu: &Gpu, p: &Product) -> u32 {
        let Shape { split, .. } = self.shape;
        let groups = gpu.properties.multiprocessors / split;
        p.n.div_ceil(ROWS).min(groups) * split
    }

    /// Dynamic shared memory, bytes; the kernel's layout.
    fn shared(&self, p: &Product, blocks: u32) -> u64 {
        let Shape {
            chunk,
            stages,
            split,
        } = self.shape;
        let part = if split == 1 {
            p.k
        } else {
            p.k.div_ceil(split).next_multiple_of(32).min(p.k)
        };
        let sums = u64::from(self.tokens * ROWS * 4);
        let ring = u64::from(stages * ROWS * (chunk * 2 + 64));
        let x = u64::from(self.tokens) * u64::from(part.next_multiple_of(64) * 2 + 64);
        let kept = if split == 1 {
            0
        } else {
            u64::from(p.n.div_ceil(ROWS).div_ceil(blocks / split) + 1) * sums
        };
        ring + 2 * u64::from(WARPS) * sums + x + kept
    }
}

/// The kernels compiled so far.
#[derive(Default)]
pub(crate) struct Gemv {
    kernels: Mutex<HashMap<Variant, Kernel>>,
}

impl Gemv {
    /// How the kernel is cut for such products, if it computes them: the deepest ring beside x, whose columns are shared by
    /// a cluster where they are too many for one block.
    pub(crate) fn shape(gpu: &Gpu, p: &Product) -> Option<Shape> {
        let mut shapes = [1, 4].into_iter().flat_map(|split| {
            STAGES.into_iter().map(move |stages| Shape {
                chunk: CHUNK,
                stages,
                split,
            })
        });
        shapes.find(|&shape| Self::computes(gpu, shape, p))
    }

    /// Whether the shape computes such products on this GPU.
    fn computes(gpu: &Gpu, shape: Shape, p: &Product) -> bool {
        let variant = Variant::of(shape, p);
        p.m <= TOKENS
            && p.input != CudaDtype::F32
            && p.k.is_multiple_of(8)
            && (shape.split == 1 || gpu.properties.capability >= (9, 0))
            && (p.gating.is_none() || shape.split == 1 && p.n.is_multiple_of(2 * ROWS))
            && variant.shared(p, variant.blocks(gpu, p)) + u64::from(16 * shape.stages)
                <= u64::from(gpu.properties.shared_per_block)
    }

    /// The kernel for a product; its compilation begins now.
    pub(crate) fn kernel(&self, gpu: &Gpu, shape: Shape, p: &Product) -> Result<Kernel> {
        let variant = Variant::of(shape, p);
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(&variant) {
            return Ok(kernel.clone());
        }
        let kernel = gpu.kernel(&variant.source())?;
        kernels.insert(variant, kernel.clone());
        Ok(kernel)
    }

    /// Enqueues a product.
    ///
    /// # Errors
    /// When the weights are not aligned to 16 bytes, or the driver refuses the launch.
    pub(crate) fn launch(
        &self,
        gpu: &Gpu,
        shape: Shape,
        p: &Product,
        operands: &Operands,
    ) -> Result<()> {
        if !Self::computes(gpu, shape, p) || !operands.w.is_multiple_of(16) {
            return Err(DeviceError::plan(format!(
                "the matrix-vector kernel does not compute {p:?}"
            )));
        }
        let variant = Variant::of(shape, p);
        let kernel = self.kernel(gpu, shape, p)?;
        let blocks = variant.blocks(gpu, p);
        let params = GemvParams {
            weight: operands.w,
            x: operands.x,
            bias: operands.bias,
            y: operands.y,
            x_stride: i64::from(p.x_stride),
            y_stride: i64::from(p.y_stride),
            n: p.n as i32,
            k: p.k as i32,
            tokens: p.m as i32,
            padding: 0,
        };
        let grid = Grid::new(blocks, 32 * (WARPS + 1))
            .shared(variant.shared(p, blocks) as u32)
            .cluster(shape.split);
        kernel.launch(gpu, grid, &params)
    }
}

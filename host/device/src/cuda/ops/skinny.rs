//! Matrix products on Hopper with weight rows on the wide side of wgmma (`kernels/gemm/skinny_sm90.cu`): decode steps of
//! many sequences, and every product where results must not depend on the batch.
//!
//! Floors: `2 n k` bytes; `2 m n k` operations. Without a split an output's sum runs over k in one order, whatever m and
//! the tile are.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::own::Gating;
use crate::cuda::blas::{Operands, Product};
use crate::cuda::compiler::Source;
use crate::cuda::driver::Gpu;
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::options::CudaDtype;
use crate::cuda::tensor_map::{Dim, TensorMap};
use crate::error::{DeviceError, Result};

/// `SkinnyParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct SkinnyParams {
    weight: TensorMap,
    x: TensorMap,
    bias: u64,
    y: u64,
    y_stride: i64,
    n: i32,
    k: i32,
    tokens: i32,
    ahead: i32,
    lead: i32,
    padding: i32,
    scratch: u64,
    counters: u64,
}

// SAFETY: the kernel's structure; its addresses are the operands', which live until the step has run.
unsafe impl Params for SkinnyParams {}

/// How the kernel is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// Tokens of a tile: 8, or a multiple of 16 up to 256.
    pub tokens: u32,
    /// Warpgroups, each with 64 weight rows.
    pub groups: u32,
    /// Blocks of a cluster that share k.
    pub split: u32,
    /// Blocks of a cluster that share the tokens' tile.
    pub share: u32,
    /// Blocks that a multiprocessor shall hold at a time: the next kernel's weights are asked for while this one runs.
    pub resident: u32,
}

/// Tokens of a tile.
const TILES: [u32; 6] = [8, 16, 32, 64, 128, 256];

/// Columns of a step.
const STEP: u32 = 64;

/// Most steps in the ring.
const STAGES: u32 = 8;

/// Shared memory of a multiprocessor that the driver keeps for each block, bytes.
const RESERVED: u32 = 1024;

impl Shape {
    fn rows(&self) -> u32 {
        64 * self.groups
    }

    fn stage(&self) -> u32 {
        (self.rows() + self.tokens) * STEP * 2
    }

    /// Shared memory beside the ring: what the warps rearrange results in, and barriers.
    fn beside(&self) -> u32 {
        self.groups * 4 * 16 * 48 + STAGES * 16
    }

    fn stages(&self, gpu: &Gpu) -> u32 {
        let whole = (gpu.properties.shared_per_block + RESERVED) / self.resident - RESERVED;
        (whole.saturating_sub(self.beside()) / self.stage()).min(STAGES)
    }

    fn shared(&self, gpu: &Gpu) -> u32 {
        self.stages(gpu) * self.stage() + self.beside()
    }

    /// Tiles of weight rows times tiles of tokens, with `share` the former in pairs.
    fn units(&self, p: &Product) -> u32 {
        p.n.div_ceil(self.rows() * self.share) * p.m.div_ceil(self.tokens)
    }

    /// For products whose results must not depend on m.
    pub(crate) fn unsplit(m: u32) -> Self {
        let tokens = TILES.into_iter().find(|&t| t >= m).unwrap_or(256);
        Self {
            tokens,
            groups: if tokens <= 32 { 1 } else { 2 },
            split: 1,
            share: 1,
            resident: if tokens <= 128 { 2 } else { 1 },
        }
    }

    fn cluster(&self) -> u32 {
        self.split * self.share
    }
}

/// What a kernel is compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Variant {
    shape: Shape,
    input: CudaDtype,
    output: CudaDtype,
    gating: Option<Gating>,
}

impl Variant {
    fn source(&self, gpu: &Gpu) -> Source {
        let mut source = Source::new("gemm/skinny_sm90.cu", "skinny")
            .flag(match self.input {
                CudaDtype::F16 => "MODEL_F16",
                _ => "MODEL_BF16",
            })
            .define("TILE_TOKENS", self.shape.tokens)
            .define("GROUPS", self.shape.groups)
            .define("STAGES", self.shape.stages(gpu))
            .define("SPLIT", self.shape.split)
            .define("SHARE", self.shape.share);
        if self.output == CudaDtype::F32 {
            source = source.flag("OUT_F32");
        }
        if let Some(gating) = self.gating {
            source = source.define("GATE", gating.number());
        }
        source
    }
}

/// The kernels compiled so far.
#[derive(Default)]
pub(crate) struct Skinny {
    kernels: Mutex<HashMap<Variant, Kernel>>,
}

impl Skinny {
    /// Whether such products are computed on this GPU.
    pub(crate) fn computes(gpu: &Gpu, p: &Product) -> bool {
        gpu.properties.is_hopper()
            && p.input != CudaDtype::F32
            && p.k.is_multiple_of(8)
            && p.x_stride.is_multiple_of(8)
            && (p.gating.is_none() || p.n.is_multiple_of(16))
    }

    /// The kernel for a product; its compilation begins now.
    pub(crate) fn kernel(&self, gpu: &Gpu, shape: Shape, p: &Product) -> Result<Kernel> {
        let variant = Variant {
            shape,
            input: p.input,
            output: p.output,
            gating: p.gating,
        };
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(&variant) {
            return Ok(kernel.clone());
        }
        let kernel = gpu.kernel(&variant.source(gpu))?;
        kernels.insert(variant, kernel.clone());
        Ok(kernel)
    }

    /// Enqueues a product.
    ///
    /// # Errors
    /// When weights or x are not aligned to 16 bytes, or the driver refuses the launch.
    pub(crate) fn launch(
        &self,
        gpu: &Gpu,
        shape: Shape,
        p: &Product,
        operands: &Operands,
    ) -> Result<()> {
        if !Self::computes(gpu, p)
            || !operands.w.is_multiple_of(16)
            || !operands.x.is_multiple_of(16)
        {
            return Err(DeviceError::plan(format!(
                "the wgmma kernel does not compute {p:?}"
            )));
        }
        let kernel = self.kernel(gpu, shape, p)?;
        let map = |address: u64, rows: u32, stride: u32, tile: u32| {
            let columns = Dim {
                len: u64::from(p.k),
                stride: 2,
                tile: STEP,
            };
            let lines = Dim {
                len: u64::from(rows),
                stride: u64::from(stride) * 2,
                tile,
            };
            TensorMap::swizzled(p.input, address, [columns, lines])
        };
        let stages = shape.stages(gpu);
        let params = SkinnyParams {
            weight: map(operands.w, p.n, p.k, shape.rows())?,
            x: map(operands.x, p.m, p.x_stride, shape.tokens / shape.share)?,
            bias: operands.bias,
            y: operands.y,
            y_stride: i64::from(p.y_stride),
            n: p.n as i32,
            k: p.k as i32,
            tokens: p.m as i32,
            ahead: 0,
            lead: stages as i32,
            padding: 0,
            scratch: 0,
            counters: 0,
        };
        let blocks = shape.units(p) * shape.cluster();
        // Without a split blocks go on to further tiles.
        let blocks = if shape.split == 1 {
            let most = gpu.properties.multiprocessors * shape.resident;
            blocks.min(most / shape.share * shape.share)
        } else {
            blocks
        };
        let grid = Grid::new(blocks, 128 * shape.groups + 32)
            .shared(shape.shared(gpu))
            .cluster(shape.cluster());
        kernel.launch(gpu, grid, &params)
    }
}

/// Shapes to try, the most promising first.
pub(crate) fn candidates(gpu: &Gpu, p: &Product) -> Vec<Shape> {
    let tokens = TILES.into_iter().find(|&t| t >= p.m).unwrap_or(256);
    let mut shapes = Vec::new();
    for (groups, split) in [(2, 1), (2, 2), (2, 4), (1, 2)] {
        let shape = Shape {
            tokens,
            groups,
            split,
            share: 1,
            resident: if tokens <= 128 { 2 } else { 1 },
        };
        let blocks = shape.units(p) * split;
        let fits = split == 1 || blocks <= gpu.properties.multiprocessors * shape.resident;
        if fits && (p.gating.is_none() || split == 1) {
            shapes.push(shape);
        }
    }
    shapes
}

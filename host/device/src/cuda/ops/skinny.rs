//! Matrix products on Hopper with weight rows on the wide side of wgmma (`kernels/gemm/skinny_sm90.cu`): decode steps of
//! many sequences, and every product where results must not depend on the batch.
//!
//! Floors: `2 n k` bytes; `2 m n k` operations. Without a split an output's sum runs over k in one order, whatever m and
//! the tile are.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::own::Gating;
use crate::cuda::blas::{Operands, Product};
use crate::cuda::compiler::Source;
use crate::cuda::driver::{Buffer, Gpu};
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
    lead: i32,
    sums: u64,
    ready: u64,
}

// SAFETY: the kernel's structure; its addresses are the operands', which live until the step has run.
unsafe impl Params for SkinnyParams {}

/// How tiles are dealt to blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Deal {
    /// Whole tiles: an output's sum is the same for every m.
    Tiles,
    /// As many steps to each; neighbours share tiles.
    Steps,
}

/// How the kernel is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// Tokens of a tile: 8, or a multiple of 16 up to 256.
    pub tokens: u32,
    /// Warpgroups, each with 64 weight rows.
    pub groups: u32,
    /// 64 columns each, of a step.
    pub boxes: u32,
    /// What a block takes.
    pub deal: Deal,
    /// Blocks that a multiprocessor shall hold at a time: the next kernel's weights are asked for while this one runs.
    pub resident: u32,
}

/// Tokens of a tile.
const TILES: [u32; 6] = [8, 16, 32, 64, 128, 256];

/// Columns of a box: a line of the swizzle.
const BOX: u32 = 64;

/// Bytes of sums that the blocks of one multiprocessor exchange: 128 × 256 f32, or two blocks' 128 × 128.
const EXCHANGE: u32 = 128 << 10;

/// Most steps in the ring.
const STAGES: u32 = 8;

/// Shared memory of a multiprocessor that the driver keeps for each block, bytes.
const RESERVED: u32 = 1024;

impl Shape {
    fn rows(&self) -> u32 {
        64 * self.groups
    }

    fn stage(&self) -> u32 {
        (self.rows() + self.tokens) * self.boxes * BOX * 2
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

    fn blocks(&self, gpu: &Gpu, p: &Product) -> u32 {
        let tiles = p.n.div_ceil(self.rows()) * p.m.div_ceil(self.tokens);
        let units = match self.deal {
            Deal::Tiles => tiles,
            Deal::Steps => tiles * p.k.div_ceil(self.boxes * BOX),
        };
        units.min(gpu.properties.multiprocessors * self.resident)
    }

    /// For products whose results must not depend on m.
    pub(crate) fn unsplit(m: u32) -> Self {
        let tokens = TILES.into_iter().find(|&t| t >= m).unwrap_or(256);
        Self {
            tokens,
            groups: if tokens <= 32 { 1 } else { 2 },
            boxes: 1,
            deal: Deal::Tiles,
            resident: if tokens <= 128 { 2 } else { 1 },
        }
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
            .define("BOXES", self.shape.boxes);
        if self.shape.deal == Deal::Steps {
            source = source.flag("STREAM");
        }
        if self.output == CudaDtype::F32 {
            source = source.flag("OUT_F32");
        }
        if let Some(gating) = self.gating {
            source = source.define("GATE", gating.number());
        }
        source
    }
}

/// The kernels compiled so far, and what their blocks exchange.
pub(crate) struct Skinny {
    kernels: Mutex<HashMap<Variant, Kernel>>,
    /// Sums of tiles that other blocks finish, and whether they are there. Kernels use them one after the other.
    sums: Option<(Buffer, Buffer)>,
}

impl Skinny {
    /// Memory for the exchange; none where the kernel does not run.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let sums = if gpu.properties.is_hopper() {
            let blocks = gpu.properties.multiprocessors as usize;
            let bytes = blocks * EXCHANGE as usize;
            let ready = gpu.allocate_zeroed(2 * 4 * blocks, "matrix products")?;
            Some((gpu.allocate(bytes, "matrix products")?, ready))
        } else {
            None
        };
        Ok(Self {
            kernels: Mutex::default(),
            sums,
        })
    }

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
                tile: BOX,
            };
            let lines = Dim {
                len: u64::from(rows),
                stride: u64::from(stride) * 2,
                tile,
            };
            TensorMap::swizzled(p.input, address, [columns, lines])
        };
        let params = SkinnyParams {
            weight: map(operands.w, p.n, p.k, shape.rows())?,
            x: map(operands.x, p.m, p.x_stride, shape.tokens)?,
            bias: operands.bias,
            y: operands.y,
            y_stride: i64::from(p.y_stride),
            n: p.n as i32,
            k: p.k as i32,
            tokens: p.m as i32,
            lead: shape.stages(gpu) as i32,
            sums: self.sums.as_ref().map_or(0, |s| s.0.address()),
            ready: self.sums.as_ref().map_or(0, |s| s.1.address()),
        };
        let grid =
            Grid::new(shape.blocks(gpu, p), 128 * shape.groups + 32).shared(shape.shared(gpu));
        kernel.launch(gpu, grid, &params)
    }
}

/// Shapes to try, the most promising first.
pub(crate) fn candidates(p: &Product) -> Vec<Shape> {
    let whole = Shape::unsplit(p.m);
    let steps = Shape {
        deal: Deal::Steps,
        groups: 2,
        ..whole
    };
    if p.m > 256 {
        vec![whole]
    } else {
        vec![steps, whole]
    }
}

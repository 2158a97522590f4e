//! Attention of rows of one token, by tensor cores over the paged cache (`kernels/attention/decode.cu`).
//!
//! Floor: a step's visible keys and values, read once.

#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::sys;

use super::attention::{self, AttentionSpec};
use super::{CacheArgs, Limits, PlanSlot, Planners, Step, StepKind, Tensor};
use crate::cuda::compiler::Source;
use crate::cuda::driver::{Buffer, Gpu, Properties, failed};
use crate::cuda::graphs::bucket;
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::options::{CudaDtype, Numerics};
use crate::cuda::weights::model_flag;
use crate::error::Result;

pub(crate) mod plan;

use plan::{Cuts, DecodePlanner, Even, Geometry, TILE};

/// `AttentionDecodeParams` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct DecodeParams {
    q: Tensor,
    out: Tensor,
    cache: CacheArgs,
    items: u64,
    starts: u64,
    piece_sums: u64,
    piece_weights: u64,
    arrived: u64,
    slopes: u64,
    sinks: u64,
    scale: f32,
    softcap: f32,
    window: i32,
    early: i32,
}

// SAFETY: the kernel's structure; its addresses are those of the step's arenas, caches and plan, and of `Decode`'s own
// buffer, all of which live as long as the device.
unsafe impl Params for DecodeParams {}

/// Largest head that the kernel has registers for.
const MAX_DIM: u32 = 256;

/// Bytes of partial results that batch-invariant cuts may take; with longer sequences the cuts are further apart.
const PIECE_BYTES: usize = 256 << 20;

/// Tiles from one fixed cut to the next, at least.
const FIXED_TILES: u32 = 64;

/// The kernel's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    warps: u32,
    /// Tiles in a warp's ring.
    stages: u32,
    /// Blocks on one multiprocessor.
    resident: u32,
    /// Dynamic shared memory, bytes.
    shared: u32,
}

impl Shape {
    /// Two blocks of four warps where shared memory allows; more tiles in a ring than three gain nothing.
    fn of_many(gpu: &Properties, spec: &AttentionSpec) -> Option<Self> {
        [(2, 4, 2), (1, 4, 2), (1, 2, 2), (1, 1, 1)]
            .into_iter()
            .find_map(|(resident, warps, least)| Self::new(gpu, spec, resident, warps, least))
    }

    /// A block of eight warps has a multiprocessor to itself: for no more pairs of row and KV head than there are
    /// multiprocessors, of which none needs cutting then.
    fn of_few(gpu: &Properties, spec: &AttentionSpec) -> Option<Self> {
        Self::new(gpu, spec, 1, 8, 2)
    }

    /// As many tiles in flight as fit, which must be `least` per warp.
    fn new(
        gpu: &Properties,
        spec: &AttentionSpec,
        resident: u32,
        warps: u32,
        least: u32,
    ) -> Option<Self> {
        // A multiprocessor has 1 KiB more than one block may use, and each block costs 1 KiB and a flag.
        const RESERVED: u32 = 1024 + 16;
        let whole = gpu.shared_per_block + 1024;
        let pack = group(spec).min(plan::MAX_PACK);
        // Rows are padded by 16 bytes.
        let stage = TILE * (2 * spec.k_dim + 16 + 2 * spec.v_dim + 16);
        let parts = warps * pack * (spec.v_dim + 4) * 4 + (warps * pack).next_multiple_of(2) * 8;
        let free = (whole / resident).checked_sub(RESERVED + parts)?;
        let stages = (free / (warps * stage)).min(8);
        (stages >= least).then_some(Self {
            warps,
            stages,
            resident,
            shared: parts + warps * stages * stage,
        })
    }

    /// What cuts are worth, measured on an H200 with heads of 128.
    fn cuts(self) -> Even {
        let (cut, uncut) = if self.resident == 1 { (9, 24) } else { (5, 20) };
        Even {
            least: self.warps,
            cut,
            uncut,
        }
    }
}

/// Query heads per KV head.
fn group(spec: &AttentionSpec) -> u32 {
    spec.heads / spec.kv_heads
}

/// The kernel in one shape, for steps of certain numbers of rows.
struct Variant {
    kernel: Kernel,
    shape: Shape,
    geometry: Geometry,
    plan: PlanSlot,
    /// Most pieces of a step.
    pieces: usize,
}

impl Variant {
    fn new(
        gpu: &Arc<Gpu>,
        spec: &AttentionSpec,
        limits: &Limits,
        planners: &mut Planners,
        (shape, rows): (Shape, (u32, u32)),
    ) -> Result<Self> {
        let geometry = geometry(gpu, spec, limits, (shape, rows));
        let mut source = Source::new("attention/decode.cu", "attention_decode")
            .flag(model_flag(spec.dtype))
            .define("HEAD_DIM", spec.k_dim)
            .define("VALUE_DIM", spec.v_dim)
            .define("GROUP", group(spec))
            .define("WARPS", shape.warps)
            .define("STAGES", shape.stages);
        source = spec.features(source);
        let plan = planners.share(format!("decode {geometry:?}"), || {
            Box::new(DecodePlanner::new(geometry))
        });
        Ok(Self {
            kernel: gpu.kernel(&source)?,
            shape,
            plan,
            pieces: geometry.max_pieces(limits.rows.min(rows.1), limits.len),
            geometry,
        })
    }

    /// Bytes of `[pieces, pack, v_dim]` sums, f32.
    fn sums_bytes(&self, v_dim: u32) -> usize {
        self.pieces * (self.geometry.pack() * v_dim) as usize * 4
    }

    /// Bytes of the sums and of `[pieces, pack, 2]` weights, f32.
    fn scratch(&self, v_dim: u32) -> usize {
        self.sums_bytes(v_dim) + self.pieces * self.geometry.pack() as usize * 8
    }
}

/// Decode attention of one layer.
pub(crate) struct Decode {
    many: Variant,
    few: Option<Variant>,
    /// One per piece: arrivals, zero between launches.
    arrived: Buffer,
    cache: usize,
    q: super::Place,
    y: super::Place,
    scale: f32,
    softcap: f32,
    alibi: u64,
    sinks: u64,
    v_dim: u32,
}

impl Decode {
    /// Whether the kernel computes such attention.
    pub(crate) fn is_possible(gpu: &Gpu, spec: &AttentionSpec) -> bool {
        let fits = |dim: u32| dim.is_multiple_of(16) && (16..=MAX_DIM).contains(&dim);
        spec.dtype != CudaDtype::F32
            && fits(spec.k_dim)
            && fits(spec.v_dim)
            && spec.q.is_aligned()
            && spec.y.is_aligned()
            && spec.block_size.is_multiple_of(TILE)
            && gpu.properties.capability >= (8, 0)
            && Shape::of_many(&gpu.properties, spec).is_some()
    }

    /// The kernel for a layer; none where [`Decode::is_possible`] says no.
    ///
    /// # Errors
    /// When the kernel is missing or memory is short.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        spec: &AttentionSpec,
        limits: &Limits,
        planners: &mut Planners,
    ) -> Result<Option<Self>> {
        if !Self::is_possible(gpu, spec) {
            return Ok(None);
        }
        let Some(shape) = Shape::of_many(&gpu.properties, spec) else {
            return Ok(None);
        };
        let units = geometry(gpu, spec, limits, (shape, (0, u32::MAX))).units();
        let few_rows = gpu.properties.multiprocessors / units.max(1);
        // What a row's result is depends on the shape too.
        let few_shape = match spec.numerics {
            Numerics::Fast if few_rows > 0 => Shape::of_few(&gpu.properties, spec),
            Numerics::Fast | Numerics::BatchInvariant => None,
        };
        let few = match few_shape {
            Some(shape) => {
                let which = (shape, (0, few_rows));
                Some(Variant::new(gpu, spec, limits, planners, which)?)
            }
            None => None,
        };
        let from = if few.is_some() { few_rows + 1 } else { 0 };
        let many = Variant::new(gpu, spec, limits, planners, (shape, (from, u32::MAX)))?;
        let pieces = few.as_ref().map_or(0, |v| v.pieces).max(many.pieces);
        Ok(Some(Self {
            many,
            few,
            arrived: gpu.allocate_zeroed(4 * pieces, "attention's counters")?,
            cache: spec.cache,
            q: spec.q,
            y: spec.y,
            scale: spec.scale,
            softcap: spec.softcap.unwrap_or(0.0),
            alibi: spec.alibi.unwrap_or(0),
            sinks: spec.sinks.unwrap_or(0),
            v_dim: spec.v_dim,
        }))
    }

    /// The variant that has the plan of a step with so many rows of one token.
    fn variant(&self, rows: u32) -> &Variant {
        let plans = |v: &&Variant| bucket(rows) <= v.geometry.rows.1;
        self.few.as_ref().filter(plans).unwrap_or(&self.many)
    }
}

/// How a step's work is cut.
fn geometry(
    gpu: &Gpu,
    spec: &AttentionSpec,
    limits: &Limits,
    (shape, rows): (Shape, (u32, u32)),
) -> Geometry {
    let even = Geometry {
        kv_heads: spec.kv_heads,
        group: group(spec),
        most: plan::MAX_PACK,
        window: spec.window,
        blocks: gpu.properties.multiprocessors * shape.resident,
        cuts: Cuts::Even(shape.cuts()),
        rows,
    };
    if spec.numerics == Numerics::Fast {
        return even;
    }
    let bytes = (even.pack() * (spec.v_dim + 2)) as usize * 4;
    let mut tiles = FIXED_TILES;
    loop {
        let fixed = Geometry {
            cuts: Cuts::Fixed { tiles },
            ..even
        };
        let pieces = fixed.max_pieces(limits.rows, limits.len);
        // A piece's number is kept in 15 bits.
        let few = limits.len.div_ceil(tiles * TILE) < 1 << 14;
        if few && pieces.saturating_mul(bytes) <= PIECE_BYTES || tiles * TILE >= limits.len {
            return fixed;
        }
        tiles *= 2;
    }
}

/// Whether launches are being recorded into a graph. Nothing in a graph starts before all that was enqueued ahead of the
/// graph is complete; launched one by one, kernels of a step may start while its description is still being written.
fn is_captured(gpu: &Gpu) -> Result<bool> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the stream is alive and `status` is written to.
    unsafe { sys::cuStreamIsCapturing(gpu.stream(), &raw mut status) }
        .result()
        .map_err(failed("asking whether a stream is captured"))?;
    Ok(status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE)
}

impl attention::Kernel for Decode {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let variant = self.variant(step.single_rows);
        let geometry = &variant.geometry;
        let starts = step.plan(variant.plan).address;
        let Some(cache) = step.caches.get(self.cache).copied() else {
            return Ok(());
        };
        let params = DecodeParams {
            q: step.tensor(&self.q),
            out: step.tensor(&self.y),
            cache,
            items: starts + 4 * geometry.items_at() as u64,
            starts,
            piece_sums: step.scratch,
            piece_weights: step.scratch + variant.sums_bytes(self.v_dim) as u64,
            arrived: self.arrived.address(),
            slopes: self.alibi,
            sinks: self.sinks,
            scale: self.scale,
            softcap: self.softcap,
            window: geometry
                .window
                .map_or(0, |w| i32::try_from(w).unwrap_or(i32::MAX)),
            early: i32::from(step.kind == StepKind::Decode && is_captured(step.gpu)?),
        };
        let shape = &variant.shape;
        let grid = Grid::new(geometry.blocks, 32 * shape.warps).shared(shape.shared);
        variant.kernel.launch(step.gpu, grid, &params)
    }

    /// Sums and weights of pieces.
    fn scratch(&self) -> usize {
        let of = |v: &Variant| v.scratch(self.v_dim);
        self.few.as_ref().map_or(0, of).max(of(&self.many))
    }
}

//! Attention over latents: all query heads read one cached head whose values are the prefix of its keys
//! (`kernels/attention/latent.cu`).
//!
//! Floor: of few queries the visible latents, read once per 64 queries; of many the products, 2 (2 rank + rope) operations per
//! visible pair.

#![allow(unsafe_code)]

use std::sync::Arc;

use guesthouse_graph::Mask;

use super::attention::{self, AttentionSpec};
use super::attention_decode::plan::{Cuts, DecodePlanner, Even, Geometry, TILE};
use super::attention_generic::Which;
use super::{
    BatchArgs, CacheArgs, Limits, Place, PlanRow, PlanSlot, Planner, Planners, Step, Tensor,
};
use crate::cuda::compiler::Source;
use crate::cuda::driver::{Gpu, Properties};
use crate::cuda::launch::{Grid, Kernel, Params};
use crate::cuda::options::{CudaDtype, Numerics};
use crate::cuda::weights::model_flag;
use crate::error::Result;

#[cfg(test)]
mod tests;

/// `AttentionLatentParams` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct LatentParams {
    q: Tensor,
    out: Tensor,
    cache: CacheArgs,
    batch: BatchArgs,
    items: u64,
    starts: u64,
    pairs: u64,
    piece_sums: u64,
    piece_weights: u64,
    carried: u64,
    scale: f32,
    cut: i32,
}

// SAFETY: the kernels' structure; its addresses are those of the step's arenas, caches, plan and scratch.
unsafe impl Params for LatentParams {}

/// Threads of a block, and of one that merges.
const THREADS: u32 = 256;
const MERGE_THREADS: u32 = 128;

/// Bytes of partial results that batch-invariant cuts may take; with longer sequences the cuts are further apart.
const PIECE_BYTES: usize = 256 << 20;

/// Tiles from one fixed cut to the next, at least.
const FIXED_TILES: u32 = 64;

/// Further apart than any sequence is long, and no overflow in positions.
const NO_CUT: u32 = 1 << 24;

/// What cuts are worth, in tiles of 16 positions: a piece costs as much to write and merge as a few tiles.
const EVEN: Even = Even {
    least: 8,
    cut: 12,
    uncut: 24,
};

/// The kernel's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Queries of an item.
    rows: u32,
    /// Positions taken at a time.
    tile: u32,
    /// Of them in the ring.
    stages: u32,
}

impl Shape {
    const fn new(rows: u32, tile: u32, stages: u32) -> Self {
        Self { rows, tile, stages }
    }

    /// For any number of queries, best first.
    const MANY: [Self; 3] = [
        Self::new(64, 32, 3),
        Self::new(64, 32, 2),
        Self::new(32, 32, 2),
    ];

    /// The best that fits; few heads of single tokens leave most rows of a large item empty.
    fn of(gpu: &Properties, spec: &AttentionSpec, which: Which) -> Option<Self> {
        let few: &[Self] = match (spec.numerics, which, spec.heads) {
            (Numerics::Fast, Which::Single, 0..=16) => &[Self::new(16, 64, 2)],
            (Numerics::Fast, Which::Single, 17..=32) => {
                &[Self::new(32, 64, 2), Self::new(32, 32, 2)]
            }
            _ => &[],
        };
        let fits = |s: &&Self| s.shared(spec.k_dim) + RESERVED <= gpu.shared_per_block;
        few.iter().chain(&Self::MANY).find(fits).copied()
    }

    /// Dynamic shared memory, bytes: queries and keys in rows of whole 128 bytes, weights, scores.
    fn shared(self, k_dim: u32) -> u32 {
        let pitch = (2 * k_dim).next_multiple_of(128);
        let each = pitch + 2 * self.tile + 16 + 4 * (self.tile + 8);
        self.rows * each + self.stages * self.tile * pitch
    }

    /// Tokens of an item.
    fn tokens(self, heads: u32) -> u32 {
        (self.rows / heads).max(1)
    }
}

/// Static shared memory of the kernel, bytes.
const RESERVED: u32 = 1024;

/// Attention over latents of one layer, for single tokens or for the longer rows.
pub(crate) struct Latent {
    kernel: Kernel,
    merge: Kernel,
    shape: Shape,
    geometry: Geometry,
    plan: PlanSlot,
    layout: Layout,
    /// Most pieces of a step.
    pieces: usize,
    /// Tiles from cut to cut, 0 where items run across none.
    cut: u32,
    v_dim: u32,
    cache: usize,
    q: Place,
    y: Place,
    scale: f32,
}

impl Latent {
    /// The kernel for a layer; none where types or shapes do not suit tensor cores.
    ///
    /// # Errors
    /// When the kernel is missing.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        spec: &AttentionSpec,
        which: Which,
        limits: &Limits,
        planners: &mut Planners,
    ) -> Result<Option<Self>> {
        let whole = |n: u32| n.is_multiple_of(16) && n > 0;
        let plain = spec.mask == Mask::Causal
            && spec.window.is_none()
            && spec.softcap.is_none()
            && spec.alibi.is_none()
            && spec.sinks.is_none();
        let possible = spec.dtype != CudaDtype::F32
            && spec.kv_heads == 1
            && plain
            && whole(spec.v_dim)
            && whole(spec.k_dim - spec.v_dim)
            && spec.q.is_aligned()
            && spec.y.is_aligned()
            && spec.block_size.is_multiple_of(TILE)
            && gpu.properties.capability >= (8, 0);
        let shape = Shape::of(&gpu.properties, spec, which);
        let (true, Some(shape)) = (possible, shape) else {
            return Ok(None);
        };
        let (geometry, cut) = geometry(gpu, spec, limits, which, shape);
        let rows = pair_rows(limits, which);
        let layout = Layout::new(&geometry, rows, limits.len);
        let plan = planners.share(format!("latent {which:?} {geometry:?}"), || {
            Box::new(LatentPlanner {
                inner: DecodePlanner::new(geometry),
                which,
                tokens: shape.tokens(spec.heads),
                layout,
                rows: Vec::new(),
            })
        });
        let source = |entry| {
            Source::new("attention/latent.cu", entry)
                .flag(model_flag(spec.dtype))
                .define("HEADS", spec.heads)
                .define("RANK", spec.v_dim)
                .define("ROPE", spec.k_dim - spec.v_dim)
                .define("ROWS", shape.rows)
                .define("TILE", shape.tile)
                .define("STAGES", shape.stages)
                .define("BLOCK_SIZE", spec.block_size)
        };
        Ok(Some(Self {
            kernel: gpu.kernel(&source("attention_latent"))?,
            merge: gpu.kernel(&source("attention_latent_merge"))?,
            shape,
            plan,
            layout,
            pieces: geometry.max_pieces(rows, limits.len),
            geometry,
            cut,
            v_dim: spec.v_dim,
            cache: spec.cache,
            q: spec.q,
            y: spec.y,
            scale: spec.scale,
        }))
    }

    /// Bytes of `[count, rows, v_dim]` sums, f32.
    fn sums_bytes(&self, count: usize) -> usize {
        count * (self.shape.rows * self.v_dim) as usize * 4
    }

    /// Bytes of the pieces' `[pieces, rows, 2]` weights, f32.
    fn weights_bytes(&self) -> usize {
        self.pieces * self.shape.rows as usize * 8
    }

    /// Blocks that carry sums across cuts.
    fn carriers(&self) -> usize {
        if self.cut > 0 {
            self.geometry.blocks as usize
        } else {
            0
        }
    }
}

/// Most rows of a step to its planner: groups of tokens that share items.
fn pair_rows(limits: &Limits, which: Which) -> u32 {
    match which {
        Which::Single => limits.rows,
        Which::Long => limits.tokens,
    }
}

/// How a step's work is cut, and the cuts that items run across.
fn geometry(
    gpu: &Gpu,
    spec: &AttentionSpec,
    limits: &Limits,
    which: Which,
    shape: Shape,
) -> (Geometry, u32) {
    let even = Geometry {
        kv_heads: 1,
        group: spec.heads,
        most: shape.rows,
        window: None,
        blocks: gpu.properties.multiprocessors,
        cuts: Cuts::Even(EVEN),
        rows: (0, u32::MAX),
    };
    if spec.numerics == Numerics::Fast {
        return (even, 0);
    }
    let fixed = |tiles| Geometry {
        cuts: Cuts::Fixed { tiles },
        ..even
    };
    let bytes = (shape.rows * (spec.v_dim + 2)) as usize * 4;
    let mut tiles = FIXED_TILES;
    let fits = |tiles: u32| {
        let pieces = fixed(tiles).max_pieces(limits.rows, limits.len);
        // A piece's number is kept in 15 bits.
        let few = limits.len.div_ceil(tiles * TILE) < 1 << 14;
        few && pieces.saturating_mul(bytes) <= PIECE_BYTES
    };
    while tiles * TILE < limits.len && !fits(tiles) {
        tiles *= 2;
    }
    match which {
        Which::Single => (fixed(tiles), 0),
        // Pieces of many tokens would fill the memory: one block takes them one after the other.
        Which::Long => (fixed(NO_CUT), tiles),
    }
}

/// Where things are in a plan, 32-bit words: the number of pairs that were cut, the pairs, then the plan of the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Most pairs that are cut.
    pairs: usize,
    /// Most rows of the inner planner.
    rows: u32,
}

impl Layout {
    fn new(geometry: &Geometry, rows: u32, len: u32) -> Self {
        Self {
            pairs: geometry.max_cut_pairs(rows, len),
            rows,
        }
    }

    /// Words before the plan of the items, which begins at a multiple of 32 bytes.
    fn items_at(self) -> usize {
        (4 * (1 + self.pairs)).next_multiple_of(8)
    }
}

/// Plans the items of single tokens, or of the longer rows in groups of neighbouring tokens.
struct LatentPlanner {
    inner: DecodePlanner,
    which: Which,
    /// Tokens of a group.
    tokens: u32,
    layout: Layout,
    rows: Vec<PlanRow>,
}

impl Planner for LatentPlanner {
    fn capacity(&self, limits: &Limits) -> usize {
        let limits = Limits {
            rows: self.layout.rows,
            ..*limits
        };
        self.layout.items_at() + self.inner.capacity(&limits)
    }

    fn plan(&mut self, rows: &[PlanRow], out: &mut Vec<i32>) {
        self.rows.clear();
        match self.which {
            Which::Single => self.rows.extend(rows.iter().filter(|row| row.len == 1)),
            Which::Long => {
                for row in rows.iter().filter(|row| row.len > 1) {
                    let groups = (0..row.len).step_by(self.tokens as usize);
                    self.rows.extend(groups.map(|at| {
                        let end = row.len.min(at + self.tokens);
                        PlanRow {
                            first: row.first + at,
                            len: 1,
                            kv_len: row.kv_len - row.len + end,
                            ..*row
                        }
                    }));
                }
            }
        }
        let begin = out.len();
        out.resize(begin + self.layout.items_at(), 0);
        self.inner.plan(&self.rows, out);
        let mut count = 0;
        for pair in self.inner.cut_pairs().take(self.layout.pairs) {
            count += 1;
            let to = begin + 4 * count;
            out[to..to + 4].copy_from_slice(&pair.map(|x| x as i32));
        }
        out[begin] = count as i32;
    }
}

impl attention::Kernel for Latent {
    fn launch(&self, step: &Step<'_>) -> Result<()> {
        let Some(cache) = step.caches.get(self.cache).copied() else {
            return Ok(());
        };
        let pairs = step.plan(self.plan).address;
        let starts = pairs + 4 * self.layout.items_at() as u64;
        let piece_weights = step.scratch + self.sums_bytes(self.pieces) as u64;
        let params = LatentParams {
            q: step.tensor(&self.q),
            out: step.tensor(&self.y),
            cache,
            batch: step.batch,
            items: starts + 4 * self.geometry.items_at() as u64,
            starts,
            pairs,
            piece_sums: step.scratch,
            piece_weights,
            carried: piece_weights + self.weights_bytes() as u64,
            scale: self.scale,
            cut: self.cut as i32,
        };
        let blocks = self.geometry.blocks;
        let grid = Grid::new(blocks, THREADS).shared(self.shape.shared(cache.k_dim as u32));
        self.kernel.launch(step.gpu, grid, &params)?;
        if self.layout.pairs == 0 {
            return Ok(());
        }
        let grid = Grid::new(4 * blocks, MERGE_THREADS);
        self.merge.launch(step.gpu, grid, &params)
    }

    fn scratch(&self) -> usize {
        self.sums_bytes(self.pieces + self.carriers()) + self.weights_bytes()
    }
}

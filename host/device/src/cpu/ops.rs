//! Operations as the CPU runs them.
//!
//! A plan becomes a list of [`Instr`]. All workers go through the list together and meet at a barrier after each; the
//! units of one instruction (rows, panels, heads) are claimed from a counter, so a worker that was held up takes fewer.
//! What a unit computes never depends on who computes it or on what else is in the batch.

#![allow(unsafe_code)]

use std::ops::Range;

use guesthouse_graph::Rows;

use super::gemm;
use super::kv::Kv;
use super::memory::Tensor;
use super::sample;
use super::simd::Isa;
use crate::device::Batch;

pub(crate) mod experts;
pub(crate) mod input;
pub(crate) mod linear;
pub(crate) mod norm;
pub(crate) mod pointwise;
pub(crate) mod recurrent;
pub(crate) mod rope;
pub(crate) mod route;
pub(crate) mod shape;

/// Where a value lives, in 4-byte elements. See `graph::Placement`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub arena: Rows,
    pub base: usize,
    pub stride: usize,
    pub offset: usize,
    pub width: usize,
}

/// Queries of one row that attention treats together: consecutive tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueryTile {
    /// Index into the batch's rows.
    pub row: usize,
    /// First token, an index into the batch.
    pub token: usize,
    /// Tokens.
    pub len: usize,
}

/// One step, as all workers see it.
pub(crate) struct Ctx<'a> {
    pub isa: Isa,
    pub workers: usize,
    /// Base addresses of the arenas: tokens, outputs, broadcast.
    pub arenas: [*mut f32; 3],
    pub batch: &'a Batch<'a>,
    /// Position of each token.
    pub positions: &'a [u32],
    /// Row of each token.
    pub row_of: &'a [u32],
    /// Tokens whose rows the output arena holds in this pass.
    pub outputs: &'a [usize],
    pub kv: &'a Kv,
    /// Tiles of at most 8 tokens.
    pub tiles: &'a [QueryTile],
    /// Cosines and sines of each rope, `[token][rotary / 2]` each.
    pub rope_tables: &'a [super::memory::Buffer],
    pub experts: &'a experts::ExpertSpace,
}

// SAFETY: the arena pointers stay valid during a step and instructions write disjoint parts.
unsafe impl Sync for Ctx<'_> {}

impl Ctx<'_> {
    /// Rows of an arena in this step.
    pub(crate) fn rows(&self, arena: Rows) -> usize {
        match arena {
            Rows::Tokens => self.batch.tokens.len(),
            Rows::Outputs => self.outputs.len(),
            Rows::Broadcast => 1,
        }
    }

    /// The value at a place.
    pub(crate) fn tensor(&self, place: &Place) -> Tensor {
        let (arena, stride) = match place.arena {
            Rows::Tokens => (self.arenas[0], place.stride),
            Rows::Outputs => (self.arenas[1], place.stride),
            Rows::Broadcast => (self.arenas[2], 0),
        };
        let at = place.base * self.rows(place.arena) + place.offset;
        // SAFETY: loading checked that base × rows + rows × stride stays within the arena for the largest step.
        unsafe { Tensor::new(arena.wrapping_add(at), stride, place.width) }
    }
}

/// Memory of one worker.
pub(crate) struct WorkerScratch {
    pub gemm: Box<gemm::Scratch>,
    pub attention: Vec<f32>,
    pub sample: sample::Work,
    /// Gate and up of one panel of an expert.
    pub panels: Box<[experts::PanelTile; 2]>,
}

/// How an instruction's work is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units {
    pub count: usize,
    /// Units claimed at a time.
    pub grain: usize,
}

impl Units {
    /// `count` units of about `cost` elements each: claims cover 16 K elements or more, but leave some for each worker.
    pub(crate) fn new(count: usize, cost: usize, workers: usize) -> Self {
        let enough = 16_384usize.div_ceil(cost.max(1));
        let fair = count.div_ceil(workers * 4);
        Self {
            count,
            grain: enough.max(fair).max(1),
        }
    }
}

/// One operation with its operands resolved.
pub(crate) trait Instr: Send + Sync {
    /// How the work of this step is cut.
    fn units(&self, ctx: &Ctx<'_>) -> Units;

    /// Computes some units.
    ///
    /// # Safety
    /// Inputs are complete, and no unit is given out twice: units write disjoint memory.
    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, scratch: &mut WorkerScratch);
}

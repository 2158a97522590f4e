//! A layer of experts: rows sorted by expert, two products over the rows of each, and a weighted sum per row.
//!
//! A *pair* is a row and one of its experts, numbered `row · top_k + k`; a *slot* is a pair's place after sorting by
//! expert; a *tile* is at most [`TOKEN_TILE`] consecutive slots of one expert. What is computed for a pair does not
//! depend on the other rows of its tile, and a row's experts are summed in the order of its own list, so a row's result
//! is bitwise the same in any batch.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use guesthouse_graph::Gate;

use super::pointwise::gated;
use super::{Ctx, Instr, Place, Units, WorkerScratch};
use crate::cpu::gemm::{PanelProduct, TOKEN_TILE};
use crate::cpu::memory::{Buffer, Tensor};
use crate::cpu::pack::{PANEL, PackedMatrix};
use crate::error::{DeviceError, Result};

/// Sizes of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertShape {
    pub count: usize,
    pub top_k: usize,
    pub hidden: usize,
    pub ffn: usize,
}

/// What one row needs of the shared memory, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpertNeed {
    pub pairs: usize,
    pub wide: usize,
    pub inner: usize,
}

impl ExpertNeed {
    /// Enough for both: layers run one after the other.
    pub(crate) fn and(self, shape: &ExpertShape) -> Self {
        Self {
            pairs: self.pairs.max(shape.top_k),
            wide: self.wide.max(shape.top_k * whole_panels(shape.hidden)),
            inner: self.inner.max(shape.top_k * shape.ffn),
        }
    }
}

/// Rows padded to whole panels.
pub(crate) fn whole_panels(rows: usize) -> usize {
    rows.next_multiple_of(PANEL)
}

/// Memory that all layers of experts share.
pub(crate) struct ExpertSpace {
    /// Number of tiles, number of slots; then `[pairs]` each: a slot's pair, a pair's slot, the tiles' expert, first slot
    /// and length.
    order: Buffer,
    /// `[slots, hidden]`: first the rows of x, later the experts' results.
    wide: Buffer,
    /// `[slots, ffn]`: activations between the products.
    inner: Buffer,
    /// Pairs there is room for.
    pairs: usize,
}

/// Words before the lists of `order`.
const HEAD: usize = 2;

impl ExpertSpace {
    pub(crate) fn new(need: ExpertNeed, rows: usize) -> Result<Self> {
        let what = "activations of experts";
        let sized = |per_row: usize, more: usize| {
            let bytes = per_row
                .checked_mul(rows)
                .and_then(|n| n.checked_add(more)?.checked_mul(4));
            Buffer::zeroed(
                bytes.ok_or(DeviceError::Memory {
                    what,
                    bytes: usize::MAX,
                })?,
                what,
            )
        };
        Ok(Self {
            order: sized(5 * need.pairs, HEAD)?,
            wide: sized(need.wide, 0)?,
            inner: sized(need.inner, 0)?,
            pairs: need.pairs * rows,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.order.len() + self.wide.len() + self.inner.len()
    }

    /// # Safety
    /// Nobody writes the order meanwhile.
    unsafe fn order(&self) -> Order<'_> {
        // SAFETY: the buffer holds the head and five lists; u32 has the alignment of f32.
        let all = unsafe {
            std::slice::from_raw_parts(self.order.floats().cast::<u32>(), HEAD + 5 * self.pairs)
        };
        Order {
            tiles: all[0] as usize,
            slots: all[1] as usize,
            lists: &all[HEAD..],
            pairs: self.pairs,
        }
    }

    fn wide(&self, stride: usize) -> Tensor {
        // SAFETY: loading made room for the pairs of the largest step, of this stride or more.
        unsafe { Tensor::new(self.wide.floats(), stride, stride) }
    }

    fn inner(&self, ffn: usize) -> Tensor {
        // SAFETY: as above.
        unsafe { Tensor::new(self.inner.floats(), ffn, ffn) }
    }
}

/// A tile: consecutive slots of one expert.
#[derive(Clone, Copy)]
struct Tile {
    expert: usize,
    first: usize,
    len: usize,
}

/// The rows of this step sorted by expert.
struct Order<'a> {
    tiles: usize,
    slots: usize,
    lists: &'a [u32],
    pairs: usize,
}

impl Order<'_> {
    fn pair_of(&self, slot: usize) -> usize {
        self.lists[slot] as usize
    }

    /// None where the pair's expert does not exist.
    fn slot_of(&self, pair: usize) -> Option<usize> {
        let slot = self.lists[self.pairs + pair];
        (slot != NOWHERE).then_some(slot as usize)
    }

    fn tile(&self, index: usize) -> Tile {
        let at = |list: usize| self.lists[list * self.pairs + index] as usize;
        Tile {
            expert: at(2),
            first: at(3),
            len: at(4),
        }
    }
}

const NOWHERE: u32 = u32::MAX;

/// Sorts pairs by expert: a stable counting sort, on one worker.
pub(crate) struct Sort {
    pub shape: ExpertShape,
    pub ids: Place,
}

impl Instr for Sort {
    fn units(&self, _: &Ctx<'_>) -> Units {
        Units { count: 1, grain: 1 }
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, _: Range<usize>, _: &mut WorkerScratch) {
        let ids = ctx.tensor(&self.ids);
        let (rows, space) = (ctx.rows(self.ids.arena), ctx.experts);
        let ExpertShape { count, top_k, .. } = self.shape;
        assert!(rows * top_k <= space.pairs);
        // SAFETY: one unit, so this worker alone writes; sizes are those of `ExpertSpace::new`.
        let all = unsafe {
            std::slice::from_raw_parts_mut(
                space.order.floats().cast::<u32>(),
                HEAD + 5 * space.pairs,
            )
        };
        let (head, lists) = all.split_at_mut(HEAD);
        let mut lists = lists.chunks_exact_mut(space.pairs);
        let mut list = || lists.next().unwrap_or_default();
        let (pair_of, slot_of) = (list(), list());
        let tiles = [list(), list(), list()];
        let expert_of = |pair: usize| {
            // SAFETY: rows below the step's; nobody writes ids.
            let id = unsafe { ids.ints(pair / top_k)[pair % top_k] };
            usize::try_from(id).ok().filter(|&e| e < count)
        };
        let mut next = vec![0usize; count];
        for pair in 0..rows * top_k {
            if let Some(e) = expert_of(pair) {
                next[e] += 1;
            }
        }
        let (mut slots, mut n) = (0, 0);
        for (expert, next) in next.iter_mut().enumerate() {
            let len = std::mem::replace(next, slots);
            for first in (0..len).step_by(TOKEN_TILE) {
                tiles[0][n] = expert as u32;
                tiles[1][n] = (slots + first) as u32;
                tiles[2][n] = TOKEN_TILE.min(len - first) as u32;
                n += 1;
            }
            slots += len;
        }
        for (pair, slot) in slot_of.iter_mut().enumerate().take(rows * top_k) {
            *slot = NOWHERE;
            if let Some(e) = expert_of(pair) {
                *slot = next[e] as u32;
                pair_of[next[e]] = pair as u32;
                next[e] += 1;
            }
        }
        (head[0], head[1]) = (n as u32, slots as u32);
    }
}

/// Copies rows of x into their slots.
pub(crate) struct Gather {
    pub shape: ExpertShape,
    pub x: Place,
}

impl Instr for Gather {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        // SAFETY: the sort before this has ended.
        let slots = unsafe { ctx.experts.order() }.slots;
        Units::new(slots, self.shape.hidden, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        let x = ctx.tensor(&self.x);
        let ExpertShape { hidden, top_k, .. } = self.shape;
        let to = ctx.experts.wide(whole_panels(hidden));
        // SAFETY: the order is complete; a unit is one slot's row.
        unsafe {
            let order = ctx.experts.order();
            for slot in units {
                let row = x.row(order.pair_of(slot) / top_k);
                to.row_mut(slot)[..hidden].copy_from_slice(row);
            }
        }
    }
}

/// Matrices of all experts one after the other, each padded with rows of zeros to whole panels.
pub(crate) struct ExpertMatrix {
    pub matrix: Arc<PackedMatrix>,
    /// As many as padded rows.
    pub bias: Option<Arc<[f32]>>,
}

/// First product and activation: per expert the panels of gate, then those of up.
pub(crate) struct GateUp {
    pub shape: ExpertShape,
    pub weights: ExpertMatrix,
    pub gate: Gate,
}

/// A panel's results for a tile, `[token][16]`.
pub(crate) type PanelTile = [f32; TOKEN_TILE * PANEL];

impl ExpertMatrix {
    /// # Safety
    /// `x` has `tile.len` rows of the matrix's columns from the tile's first slot on, which nobody writes; nobody else
    /// touches what `y`, the place of the panel's first row for the tile's first slot, reaches.
    unsafe fn product(
        &self,
        ctx: &Ctx<'_>,
        scratch: &mut crate::cpu::gemm::Scratch,
        (tile, panel): (Tile, usize),
        x: Tensor,
        (y, y_stride): (*mut f32, usize),
    ) {
        let product = PanelProduct {
            matrix: &self.matrix,
            panel,
            bias: self.bias.as_deref(),
            x: x.at(tile.first),
            x_stride: x.stride,
            tokens: tile.len,
            y: y.wrapping_sub(panel * PANEL),
            y_stride,
        };
        // SAFETY: the caller's promise.
        unsafe { product.run(ctx.isa, scratch) };
    }
}

/// Units of a product: panels of each tile.
fn products(ctx: &Ctx<'_>, panels: usize, cols: usize) -> Units {
    // SAFETY: the sort before this has ended.
    let order = unsafe { ctx.experts.order() };
    let tokens = order.slots.div_ceil(order.tiles.max(1));
    Units::new(order.tiles * panels, 2 * cols * tokens, ctx.workers)
}

impl Instr for GateUp {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        products(ctx, self.shape.ffn.div_ceil(PANEL), 2 * self.shape.hidden)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, scratch: &mut WorkerScratch) {
        let ExpertShape { hidden, ffn, .. } = self.shape;
        let panels = ffn.div_ceil(PANEL);
        let x = ctx.experts.wide(whole_panels(hidden));
        let y = ctx.experts.inner(ffn);
        // SAFETY: the order and the gathered rows are complete.
        let order = unsafe { ctx.experts.order() };
        for unit in units {
            let (tile, panel) = (order.tile(unit / panels), unit % panels);
            let [gate, up] = &mut *scratch.panels;
            let first = tile.expert * 2 * panels + panel;
            for (to, panel) in [(&mut *gate, first), (&mut *up, first + panels)] {
                let y = (to.as_mut_ptr(), PANEL);
                // SAFETY: slots of the tile hold rows of x; a panel tile holds `TOKEN_TILE` tokens.
                unsafe {
                    self.weights
                        .product(ctx, &mut scratch.gemm, (tile, panel), x, y);
                }
            }
            let (start, end) = (panel * PANEL, ffn.min((panel + 1) * PANEL));
            let pairs = gate.chunks_exact(PANEL).zip(up.chunks_exact(PANEL));
            for (t, (gate, up)) in pairs.take(tile.len).enumerate() {
                let at = y.at(tile.first + t).wrapping_add(start);
                // SAFETY: a unit is these columns of the tile's rows.
                let out = unsafe { std::slice::from_raw_parts_mut(at, end - start) };
                gated(
                    ctx.isa,
                    self.gate,
                    &gate[..end - start],
                    &up[..end - start],
                    out,
                );
            }
        }
    }
}

/// Second product, per slot.
pub(crate) struct Down {
    pub shape: ExpertShape,
    pub weights: ExpertMatrix,
}

impl Instr for Down {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        products(ctx, self.shape.hidden.div_ceil(PANEL), self.shape.ffn)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, scratch: &mut WorkerScratch) {
        let ExpertShape { hidden, ffn, .. } = self.shape;
        let panels = hidden.div_ceil(PANEL);
        let (x, y) = (
            ctx.experts.inner(ffn),
            ctx.experts.wide(whole_panels(hidden)),
        );
        // SAFETY: the order and the activations are complete.
        let order = unsafe { ctx.experts.order() };
        for unit in units {
            let (tile, panel) = (order.tile(unit / panels), unit % panels);
            let to = y.at(tile.first).wrapping_add(panel * PANEL);
            let panel = tile.expert * panels + panel;
            // SAFETY: a unit is 16 columns of the tile's rows, which have room for whole panels.
            unsafe {
                self.weights
                    .product(ctx, &mut scratch.gemm, (tile, panel), x, (to, y.stride));
            }
        }
    }
}

/// `y = Σ weight · expert's result`, in the order of the row's list.
pub(crate) struct Combine {
    pub shape: ExpertShape,
    pub weights: Place,
    pub y: Place,
}

impl Instr for Combine {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        let cost = self.shape.hidden * self.shape.top_k;
        Units::new(ctx.rows(self.y.arena), cost, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        let ExpertShape { hidden, top_k, .. } = self.shape;
        let (weights, y) = (ctx.tensor(&self.weights), ctx.tensor(&self.y));
        let results = ctx.experts.wide(whole_panels(hidden));
        // SAFETY: results are complete; a unit is a row of y.
        unsafe {
            let order = ctx.experts.order();
            for row in units {
                let (weights, y) = (weights.row(row), y.row_mut(row));
                y.fill(0.0);
                for (k, weight) in weights.iter().enumerate() {
                    let Some(slot) = order.slot_of(row * top_k + k) else {
                        continue;
                    };
                    for (y, x) in y.iter_mut().zip(&results.row(slot)[..hidden]) {
                        *y += weight * x;
                    }
                }
            }
        }
    }
}

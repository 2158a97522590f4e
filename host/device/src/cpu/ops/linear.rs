//! `y = x Wᵀ + b` over segments of packed matrices, and of each head with a matrix of its own.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use super::{Ctx, Instr, Place, Units, WorkerScratch};
use crate::cpu::gemm::{PanelProduct, TOKEN_TILE};
use crate::cpu::pack::PackedMatrix;

/// One row block.
pub(crate) struct LinearSegment {
    pub matrix: Arc<PackedMatrix>,
    pub bias: Option<Arc<[f32]>>,
    /// First column of y.
    pub column: usize,
}

pub(crate) struct Linear {
    pub segments: Vec<LinearSegment>,
    pub x: Place,
    pub y: Place,
}

impl Linear {
    fn panels(&self) -> usize {
        self.segments.iter().map(|s| s.matrix.panels()).sum()
    }
}

impl Instr for Linear {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        let rows = ctx.rows(self.y.arena);
        let panels = self.panels();
        let tiles = rows.div_ceil(TOKEN_TILE);
        // A panel of 16 rows times one token is 16 × in multiply-adds, many a cycle.
        let cost = 2 * self.x.width * rows.min(TOKEN_TILE);
        Units::new(panels * tiles, cost, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, scratch: &mut WorkerScratch) {
        let (x, y) = (ctx.tensor(&self.x), ctx.tensor(&self.y));
        let rows = ctx.rows(self.y.arena);
        let panels = self.panels();
        for unit in units {
            let token = unit / panels * TOKEN_TILE;
            let mut panel = unit % panels;
            for segment in &self.segments {
                let here = segment.matrix.panels();
                if panel >= here {
                    panel -= here;
                    continue;
                }
                let product = PanelProduct {
                    matrix: &segment.matrix,
                    panel,
                    bias: segment.bias.as_deref(),
                    x: x.at(token),
                    x_stride: x.stride,
                    tokens: (rows - token).min(TOKEN_TILE),
                    y: y.at(token).wrapping_add(segment.column),
                    y_stride: y.stride,
                };
                // SAFETY: loading checked widths; units cover disjoint (token tile, panel) pairs; x and y are different
                // values alive at the same time, so their memory does not overlap.
                unsafe { product.run(ctx.isa, &mut scratch.gemm) };
                break;
            }
        }
    }
}

/// Of each head the first `cols` elements times a matrix of its own; what follows them is copied.
pub(crate) struct HeadLinear {
    /// Of equal shapes.
    pub matrices: Vec<PackedMatrix>,
    /// Elements of a head of x and of y.
    pub d: (usize, usize),
    pub x: Place,
    pub y: Place,
}

impl Instr for HeadLinear {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        let rows = ctx.rows(self.y.arena);
        let panels: usize = self.matrices.iter().map(PackedMatrix::panels).sum();
        let cost = 2 * self.d.0 * rows.min(TOKEN_TILE);
        Units::new(panels * rows.div_ceil(TOKEN_TILE), cost, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, scratch: &mut WorkerScratch) {
        let (x, y) = (ctx.tensor(&self.x), ctx.tensor(&self.y));
        let rows = ctx.rows(self.y.arena);
        let panels = self.matrices[0].panels();
        for unit in units {
            let (panel, unit) = (unit % panels, unit / panels);
            let (head, token) = (
                unit % self.matrices.len(),
                unit / self.matrices.len() * TOKEN_TILE,
            );
            let matrix = &self.matrices[head];
            let tokens = (rows - token).min(TOKEN_TILE);
            let (from, to) = (head * self.d.0, head * self.d.1);
            let product = PanelProduct {
                matrix,
                panel,
                bias: None,
                x: x.at(token).wrapping_add(from),
                x_stride: x.stride,
                tokens,
                y: y.at(token).wrapping_add(to),
                y_stride: y.stride,
            };
            // SAFETY: loading checked widths; units cover disjoint (token tile, head, panel) triples, of which the first
            // panel's also has the head's copied elements; x and y are different values alive at the same time, so
            // their memory does not overlap.
            unsafe {
                product.run(ctx.isa, &mut scratch.gemm);
                let rest = self.d.0 - matrix.cols();
                if panel == 0 && rest > 0 {
                    for t in token..token + tokens {
                        let from = x.at(t).add(from + matrix.cols());
                        std::ptr::copy_nonoverlapping(from, y.at(t).add(to + matrix.rows()), rest);
                    }
                }
            }
        }
    }
}

//! `y = x Wᵀ + b` over segments of packed matrices.

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

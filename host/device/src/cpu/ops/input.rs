//! What enters the graph from the batch, and what leaves it.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use super::{Ctx, Instr, Place, Units, WorkerScratch};
use crate::cpu::gemm::unpack_row;
use crate::cpu::pack::PackedMatrix;

/// Token ids.
pub(crate) struct TokenIds {
    pub y: Place,
}

impl Instr for TokenIds {
    fn units(&self, _: &Ctx<'_>) -> Units {
        Units { count: 1, grain: 1 }
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, _: Range<usize>, _: &mut WorkerScratch) {
        let y = ctx.tensor(&self.y);
        for (t, &id) in ctx.batch.tokens.iter().enumerate() {
            // SAFETY: one row per token; a single unit.
            unsafe { y.ints_mut(t)[0] = id.cast_signed() };
        }
    }
}

/// Positions plus a constant.
pub(crate) struct Positions {
    pub y: Place,
    pub offset: i32,
}

impl Instr for Positions {
    fn units(&self, _: &Ctx<'_>) -> Units {
        Units { count: 1, grain: 1 }
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, _: Range<usize>, _: &mut WorkerScratch) {
        let y = ctx.tensor(&self.y);
        for (t, &p) in ctx.positions.iter().enumerate() {
            // SAFETY: one row per token; a single unit.
            unsafe { y.ints_mut(t)[0] = p.cast_signed().wrapping_add(self.offset) };
        }
    }
}

/// GLM's position and block position.
pub(crate) struct GlmPositions {
    /// Two integers a row.
    pub y: Place,
}

impl Instr for GlmPositions {
    fn units(&self, _: &Ctx<'_>) -> Units {
        Units { count: 1, grain: 1 }
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, _: Range<usize>, _: &mut WorkerScratch) {
        let y = ctx.tensor(&self.y);
        for (t, (&p, &row)) in ctx.positions.iter().zip(ctx.row_of).enumerate() {
            let both = ctx.batch.rows[row as usize].marks.glm(p);
            // SAFETY: one row of two integers per token; a single unit.
            let to = unsafe { y.ints_mut(t) };
            to[..2].copy_from_slice(&both.map(u32::cast_signed));
        }
    }
}

/// A row of a table per id. Ids outside the table give the nearest row: token ids were checked, and positions were
/// checked against the model's length.
pub(crate) struct Embedding {
    pub table: Arc<PackedMatrix>,
    pub ids: Place,
    pub y: Place,
}

impl Instr for Embedding {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units::new(ctx.rows(self.y.arena), 8 * self.y.width, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, scratch: &mut WorkerScratch) {
        let (ids, y) = (ctx.tensor(&self.ids), ctx.tensor(&self.y));
        for t in units {
            // SAFETY: rows exist; a unit is a row of y.
            unsafe {
                let last = self.table.rows() - 1;
                let row = usize::try_from(ids.ints(t)[0]).unwrap_or(0).min(last);
                unpack_row(ctx.isa, &self.table, row, y.row_mut(t), &mut scratch.gemm);
            }
        }
    }
}

/// A weight as a value of the broadcast arena; runs once.
pub(crate) struct WeightValue {
    pub data: Arc<[f32]>,
    pub y: Place,
}

impl Instr for WeightValue {
    fn units(&self, _: &Ctx<'_>) -> Units {
        Units { count: 1, grain: 1 }
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, _: Range<usize>, _: &mut WorkerScratch) {
        // SAFETY: widths were checked; a single unit.
        unsafe { ctx.tensor(&self.y).row_mut(0).copy_from_slice(&self.data) };
    }
}

/// Means over the sequences whose output is wanted; each has all of its tokens in the step.
pub(crate) struct MeanOutputs {
    pub x: Place,
    pub y: Place,
}

impl Instr for MeanOutputs {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units {
            count: ctx.outputs.len(),
            grain: 1,
        }
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        let (x, y) = (ctx.tensor(&self.x), ctx.tensor(&self.y));
        for i in units {
            let row = &ctx.batch.rows[ctx.row_of[ctx.outputs[i]] as usize];
            // SAFETY: output indices are below the token count; a unit is a row of y.
            unsafe {
                let y = y.row_mut(i);
                y.fill(0.0);
                for t in row.first..row.first + row.len as usize {
                    for (y, x) in y.iter_mut().zip(x.row(t)) {
                        *y += x;
                    }
                }
                let len = row.len as f32;
                y.iter_mut().for_each(|y| *y /= len);
            }
        }
    }
}

/// Rows of the tokens whose output is wanted.
pub(crate) struct GatherOutputs {
    pub x: Place,
    pub y: Place,
}

impl Instr for GatherOutputs {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units::new(ctx.outputs.len(), self.y.width, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        let (x, y) = (ctx.tensor(&self.x), ctx.tensor(&self.y));
        for i in units {
            // SAFETY: output indices are below the token count; a unit is a row of y.
            unsafe { y.row_mut(i).copy_from_slice(x.row(ctx.outputs[i])) };
        }
    }
}

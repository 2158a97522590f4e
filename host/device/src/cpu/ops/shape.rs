//! Moving elements: what is not a view.

#![allow(unsafe_code)]

use std::ops::Range;

use super::{Ctx, Instr, Place, Units, WorkerScratch};

/// A regular copy within a row: `outer` runs of `len` elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strided {
    pub outer: usize,
    pub len: usize,
    /// First element and distance of runs in x.
    pub from: (usize, usize),
    /// Likewise in y.
    pub to: (usize, usize),
}

/// Copies runs between values: splits, slices, concatenations.
pub(crate) struct Copy {
    pub parts: Vec<(Place, Place, Strided)>,
}

impl Instr for Copy {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        let Some((_, y, _)) = self.parts.first() else {
            return Units { count: 0, grain: 1 };
        };
        let width: usize = self.parts.iter().map(|(_, _, s)| s.outer * s.len).sum();
        Units::new(ctx.rows(y.arena), width, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        for (x, y, s) in &self.parts {
            let (x, y) = (ctx.tensor(x), ctx.tensor(y));
            for row in units.clone() {
                // SAFETY: a unit is a row of each y; runs were checked against the widths.
                unsafe {
                    let (x, y) = (x.row(row), y.row_mut(row));
                    for i in 0..s.outer {
                        let (from, to) = (s.from.0 + i * s.from.1, s.to.0 + i * s.to.1);
                        y[to..to + s.len].copy_from_slice(&x[from..from + s.len]);
                    }
                }
            }
        }
    }
}

/// `[a, b] → [b, a]`
pub(crate) struct SwapAxes {
    pub a: usize,
    pub b: usize,
    pub x: Place,
    pub y: Place,
}

impl Instr for SwapAxes {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units::new(ctx.rows(self.y.arena), 4 * self.y.width, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        let (x, y) = (ctx.tensor(&self.x), ctx.tensor(&self.y));
        for row in units {
            // SAFETY: a unit is a row of y.
            let (x, y) = unsafe { (x.row(row), y.row_mut(row)) };
            for i in 0..self.a {
                for j in 0..self.b {
                    y[j * self.a + i] = x[i * self.b + j];
                }
            }
        }
    }
}

/// Each head several times in a row.
pub(crate) struct RepeatHeads {
    pub d: usize,
    pub times: usize,
    pub x: Place,
    pub y: Place,
}

impl Instr for RepeatHeads {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units::new(ctx.rows(self.y.arena), self.y.width, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        let (x, y) = (ctx.tensor(&self.x), ctx.tensor(&self.y));
        for row in units {
            // SAFETY: a unit is a row of y.
            let (x, y) = unsafe { (x.row(row), y.row_mut(row)) };
            for (i, y) in y.chunks_exact_mut(self.d).enumerate() {
                let head = i / self.times * self.d;
                y.copy_from_slice(&x[head..head + self.d]);
            }
        }
    }
}

//! Normalisations over the last dimension.
//!
//! Each lane sums every LANES-th element in ascending order, then the lanes are added in halves, the tail last: sums
//! depend on the width and the instruction set alone.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use super::{Ctx, Instr, Place, Units, WorkerScratch};
use crate::cpu::simd::{Kernel, Simd, sum};

/// What is computed.
pub(crate) enum NormKind {
    /// `x / sqrt(mean x² + eps) * (offset + weight)`
    Rms { offset: f32 },
    /// `(x - mean) / sqrt(var + eps) * weight + bias`
    Layer,
    /// `x / sqrt(Σx² + eps)`
    L2,
}

pub(crate) struct Norm {
    pub kind: NormKind,
    /// Length of one vector.
    pub d: usize,
    pub eps: f32,
    /// One vector, or one for each of the row's vectors; none is ones.
    pub weight: Option<Arc<[f32]>>,
    pub bias: Option<Arc<[f32]>>,
    pub x: Place,
    /// Added to x first; the sum is stored there.
    pub residual: Option<(Place, Place)>,
    pub y: Place,
}

impl Instr for Norm {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units::new(ctx.rows(self.y.arena), 2 * self.y.width, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        // SAFETY: a unit is a row of each output.
        unsafe {
            ctx.isa.run(NormRows {
                norm: self,
                ctx,
                rows: units,
            });
        };
    }
}

struct NormRows<'a> {
    norm: &'a Norm,
    ctx: &'a Ctx<'a>,
    rows: Range<usize>,
}

impl Kernel for NormRows<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (n, ctx) = (self.norm, self.ctx);
        let (x, y) = (ctx.tensor(&n.x), ctx.tensor(&n.y));
        let residual = n
            .residual
            .as_ref()
            .map(|(r, s)| (ctx.tensor(r), ctx.tensor(s)));
        for row in self.rows {
            // SAFETY: the row exists in all tensors, and this unit alone writes it.
            unsafe {
                let y = y.row_mut(row);
                let x = match &residual {
                    None => x.row(row),
                    Some((r, s)) => {
                        let s = s.row_mut(row);
                        for ((s, x), r) in s.iter_mut().zip(x.row(row)).zip(r.row(row)) {
                            *s = x + r;
                        }
                        &*s
                    }
                };
                for (i, (x, y)) in x.chunks_exact(n.d).zip(y.chunks_exact_mut(n.d)).enumerate() {
                    n.vector::<S>(x, y, i * n.d);
                }
            }
        }
    }
}

impl Norm {
    /// Normalises one vector, `at` elements into its row.
    #[inline(always)]
    unsafe fn vector<S: Simd>(&self, x: &[f32], y: &mut [f32], at: usize) {
        let weight = part(self.weight.as_deref(), at, self.d);
        let bias = part(self.bias.as_deref(), at, self.d);
        let len = x.len() as f32;
        // SAFETY: the instruction set is there.
        let (mean, factor) = unsafe {
            match self.kind {
                NormKind::Rms { .. } => (0.0, 1.0 / (squares::<S>(x, 0.0) / len + self.eps).sqrt()),
                NormKind::L2 => (0.0, 1.0 / (squares::<S>(x, 0.0) + self.eps).sqrt()),
                NormKind::Layer => {
                    let mean = total::<S>(x) / len;
                    (mean, 1.0 / (squares::<S>(x, mean) / len + self.eps).sqrt())
                }
            }
        };
        let offset = match self.kind {
            NormKind::Rms { offset } => offset,
            NormKind::Layer | NormKind::L2 => 0.0,
        };
        match (weight, bias) {
            (None, None) => each(x, y, |x, _| (x - mean) * factor),
            (Some(w), None) => each(x, y, |x, i| (x - mean) * factor * (offset + w[i])),
            (None, Some(b)) => each(x, y, |x, i| (x - mean) * factor + b[i]),
            (Some(w), Some(b)) => {
                let b = &b[..w.len()];
                each(x, y, |x, i| (x - mean) * factor * (offset + w[i]) + b[i]);
            }
        }
    }
}

/// The `d` elements that belong to the vector `at` elements into its row.
#[inline(always)]
fn part(all: Option<&[f32]>, at: usize, d: usize) -> Option<&[f32]> {
    let all = all?;
    let start = at % all.len().max(1);
    all.get(start..start + d)
}

#[inline(always)]
fn each(x: &[f32], y: &mut [f32], f: impl Fn(f32, usize) -> f32) {
    for (i, (x, y)) in x.iter().zip(y).enumerate() {
        *y = f(*x, i);
    }
}

#[inline(always)]
unsafe fn total<S: Simd>(x: &[f32]) -> f32 {
    let chunks = x.chunks_exact(S::LANES);
    let tail: f32 = chunks.remainder().iter().sum();
    // SAFETY: chunks hold a whole vector.
    unsafe {
        let mut lanes = S::splat(0.0);
        for chunk in chunks {
            lanes = S::add(lanes, S::load(chunk.as_ptr()));
        }
        sum::<S>(lanes) + tail
    }
}

/// Sum of `(x - mean)²`.
#[inline(always)]
unsafe fn squares<S: Simd>(x: &[f32], mean: f32) -> f32 {
    let chunks = x.chunks_exact(S::LANES);
    let tail: f32 = chunks
        .remainder()
        .iter()
        .map(|x| (x - mean) * (x - mean))
        .sum();
    // SAFETY: chunks hold a whole vector.
    unsafe {
        let mut lanes = S::splat(0.0);
        for chunk in chunks {
            let x = S::sub(S::load(chunk.as_ptr()), S::splat(mean));
            lanes = S::fma(x, x, lanes);
        }
        sum::<S>(lanes) + tail
    }
}

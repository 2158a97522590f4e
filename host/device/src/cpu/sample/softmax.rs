//! Log-softmax.

#![allow(unsafe_code)]

use super::{MASKED, NOT_FINITE};
use crate::cpu::math;
use crate::cpu::simd::{Isa, Kernel, Simd, sum};

/// Largest logit and `ln Σ e^(x - max)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogSumExp {
    pub max: f32,
    pub log_sum: f64,
    nan: bool,
}

impl LogSumExp {
    pub(crate) fn of(isa: Isa, logits: &[f32]) -> Self {
        let mut max = f32::NEG_INFINITY;
        let mut nan = false;
        for chunk in logits.chunks(64) {
            let mut high = f32::NEG_INFINITY;
            let mut bad = false;
            for &x in chunk {
                high = if x > high { x } else { high };
                bad |= x.is_nan();
            }
            max = max.max(high);
            nan |= bad;
        }
        let log_sum = if max.is_finite() && !nan {
            // SAFETY: the kernel reads its slice alone.
            unsafe { isa.run(SumExp { logits, max }) }.ln()
        } else {
            0.0
        };
        Self { max, log_sum, nan }
    }

    /// Why nothing can be chosen.
    pub(crate) fn failure(self) -> Option<&'static str> {
        if self.nan || self.max == f32::INFINITY {
            Some(NOT_FINITE)
        } else if self.max == f32::NEG_INFINITY {
            Some(MASKED)
        } else {
            None
        }
    }

    pub(crate) fn log_prob(self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.max) - self.log_sum) as f32
    }
}

/// `Σ e^(x - max)`: f32 within pieces of 1024, f64 over them.
struct SumExp<'a> {
    logits: &'a [f32],
    max: f32,
}

impl Kernel for SumExp<'_> {
    type Out = f64;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f64 {
        let mut total = 0f64;
        for piece in self.logits.chunks(1024) {
            let chunks = piece.chunks_exact(S::LANES);
            let mut tail = [f32::NEG_INFINITY; 16];
            let rest = chunks.remainder();
            tail[..rest.len()].copy_from_slice(rest);
            // SAFETY: chunks hold a whole vector, and so does the tail.
            unsafe {
                let max = S::splat(self.max);
                let mut lanes = math::exp::<S>(S::sub(S::load(tail.as_ptr()), max));
                for chunk in chunks {
                    lanes = S::add(lanes, math::exp::<S>(S::sub(S::load(chunk.as_ptr()), max)));
                }
                total += f64::from(sum::<S>(lanes));
            }
        }
        total
    }
}

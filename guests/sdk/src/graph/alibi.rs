//! Attention with linear biases (Press et al. 2021).

use super::builder::{self, Weight};

#[cfg(test)]
mod tests;

/// One slope per head, `[heads]`: what a score gains per token of distance, which is negative or zero.
///
/// The series `2^(-max · i / n)`, i from 1 to n, where n is the number of heads or the power of two below it; the heads
/// left over get every other member, the first one first, of the series for twice as many. `max` is 8 in the paper and
/// `alibi_bias_max` in MPT.
pub fn alibi_slopes(heads: u32, max: f64) -> Vec<f32> {
    let whole = 1 << heads.max(1).ilog2();
    let series = |n: u32, i: u32| (-max * f64::from(i) / f64::from(n)).exp2() as f32;
    let first = (1..=whole).map(|i| series(whole, i));
    let rest = (0..heads.saturating_sub(whole)).map(|i| series(2 * whole, 2 * i + 1));
    first.chain(rest).collect()
}

/// [`alibi_slopes`] as a weight.
pub fn alibi(heads: u32, max: f64) -> Weight {
    builder::constant(&[heads], &alibi_slopes(heads, max))
}

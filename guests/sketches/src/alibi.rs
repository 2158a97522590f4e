//! Attention with linear biases (Press et al. 2021).

use guesthouse_sdk::graph::{Weight, builder};

/// The paper's slopes, `[heads]`: a geometric series, filled up from the series of twice as many heads.
pub(crate) fn paper(heads: u32) -> Weight {
    let series = |n: u32, i: u32| (-8.0 * f64::from(i + 1) / f64::from(n)).exp2() as f32;
    let whole = 1 << heads.ilog2();
    let slopes = (0..whole).map(|i| series(whole, i));
    let rest = (0..heads - whole).map(|i| series(2 * whole, 2 * i));
    builder::constant(&[heads], &slopes.chain(rest).collect::<Vec<f32>>())
}

/// MPT's: every other slope of the next power of two, odd ones first.
pub(crate) fn mpt(heads: u32, max: f64) -> Weight {
    let whole = heads.next_power_of_two();
    let slope = |i: u32| (-max * f64::from(i + 1) / f64::from(whole)).exp2() as f32;
    let slopes: Vec<f32> = if whole == heads {
        (0..heads).map(slope).collect()
    } else {
        (1..whole)
            .step_by(2)
            .chain((0..whole).step_by(2))
            .take(heads as usize)
            .map(slope)
            .collect()
    };
    builder::constant(&[heads], &slopes)
}

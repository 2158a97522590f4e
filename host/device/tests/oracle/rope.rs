//! Rotary embeddings after the papers and Hugging Face's `modeling_rope_utils`, in f64.

use std::f64::consts::TAU;

use guesthouse_graph::{Rope, RopeScaling, RopeStyle};

/// Frequencies at a length, and the factor on cosines and sines.
pub fn frequencies(rope: &Rope, factors: Option<&[f64]>, len: usize) -> (Vec<f64>, f64) {
    let dim = f64::from(rope.rotary);
    let with = |base: f64| -> Vec<f64> {
        (0..rope.rotary / 2)
            .map(|i| base.powf(-2.0 * f64::from(i) / dim))
            .collect()
    };
    let base = f64::from(rope.theta);
    let plain = with(base);
    let len = len as f64;
    match &rope.scaling {
        RopeScaling::None => (plain, 1.0),
        RopeScaling::Linear { factor } => {
            (plain.iter().map(|f| f / f64::from(*factor)).collect(), 1.0)
        }
        RopeScaling::Factors { .. } => (
            plain
                .iter()
                .zip(factors.unwrap())
                .map(|(f, by)| f / by)
                .collect(),
            1.0,
        ),
        RopeScaling::Dynamic { factor, original } => {
            let (factor, original) = (f64::from(*factor), f64::from(*original));
            let len = len.max(original);
            (
                with(base * (factor * len / original - (factor - 1.0)).powf(dim / (dim - 2.0))),
                1.0,
            )
        }
        RopeScaling::DynamicQwen { original } => {
            let context = (len / f64::from(*original)).log2() + 1.0;
            let alpha = (2f64.powf(context.ceil()) - 1.0).max(1.0);
            (with(base * alpha.powf(dim / (dim - 2.0))), 1.0)
        }
        RopeScaling::Llama3 {
            factor,
            low,
            high,
            original,
        } => {
            let (factor, low, high) = (f64::from(*factor), f64::from(*low), f64::from(*high));
            let original = f64::from(*original);
            let scale = |f: &f64| {
                let turns = original / (TAU / f);
                if turns < low {
                    f / factor
                } else if turns > high {
                    *f
                } else {
                    let smooth = (turns - low) / (high - low);
                    (1.0 - smooth) * f / factor + smooth * f
                }
            };
            (plain.iter().map(scale).collect(), 1.0)
        }
        RopeScaling::Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            attention_factor,
            truncate,
        } => {
            // The dimension at which a frequency turns so many times in the original context.
            let find = |turns: f32| {
                dim * (f64::from(*original) / (f64::from(turns) * TAU)).ln() / (2.0 * base.ln())
            };
            let (mut low, mut high) = (find(*beta_fast), find(*beta_slow));
            if *truncate {
                low = low.floor();
                high = high.ceil();
            }
            let (low, high) = (low.max(0.0), high.min(dim - 1.0));
            let mix = |(i, f): (usize, &f64)| {
                let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                f / f64::from(*factor) * ramp + f * (1.0 - ramp)
            };
            (
                plain.iter().enumerate().map(mix).collect(),
                f64::from(*attention_factor),
            )
        }
        RopeScaling::LongRope {
            short,
            long,
            original,
            attention_factor,
        } => {
            let by = if len > f64::from(*original) {
                long
            } else {
                short
            };
            (
                plain
                    .iter()
                    .zip(by)
                    .map(|(f, by)| f / f64::from(*by))
                    .collect(),
                f64::from(*attention_factor),
            )
        }
    }
}

/// Rotates every `d` elements of a row.
pub fn rotate(
    rope: &Rope,
    row: &[f64],
    d: usize,
    position: f64,
    freqs: &[f64],
    factor: f64,
) -> Vec<f64> {
    let (start, half) = (rope.start as usize, rope.rotary as usize / 2);
    let mut out = row.to_vec();
    for head in out.chunks_mut(d) {
        let x = head.to_vec();
        for (i, f) in freqs.iter().enumerate() {
            let (sin, cos) = (position * f).sin_cos();
            let (a, b) = match rope.style {
                RopeStyle::Neox => (start + i, start + i + half),
                RopeStyle::Interleaved => (start + 2 * i, start + 2 * i + 1),
            };
            head[a] = factor * (x[a] * cos - x[b] * sin);
            head[b] = factor * (x[b] * cos + x[a] * sin);
        }
    }
    out
}

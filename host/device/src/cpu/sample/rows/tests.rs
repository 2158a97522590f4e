#![allow(clippy::unwrap_used)]

use guesthouse_engine::RandomKey;

use super::super::philox::{Purpose, uniform, words};
use super::*;

fn logits(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32)
        .map(|i| {
            let w = super::super::philox::philox4x32_10([i, seed, 3, 0], [5, 6]);
            (w[0] as f32 / u32::MAX as f32 - 0.5) * 12.0
        })
        .collect()
}

/// Gumbel-max in plain f64 over the whole row.
fn slow_draw(logits: &[f32], random: RandomKey, position: u32) -> TokenId {
    let mut best = (f64::NEG_INFINITY, 0);
    for (t, &x) in logits.iter().enumerate() {
        let word = words(random, position, Purpose::Token, t as u32 / 4)[t % 4];
        let score = f64::from(x) - (-f64::from(uniform(word)).ln()).ln();
        if score > best.0 {
            best = (score, t as TokenId);
        }
    }
    best.1
}

#[test]
fn a_row_that_came_back_is_drawn_by_the_same_noise() {
    for seed in 0..300u64 {
        let mut row = logits(997, seed as u32);
        for x in row.iter_mut().skip(3).step_by(2) {
            *x = f32::NEG_INFINITY;
        }
        let random = RandomKey {
            seed: seed * 77,
            lineage: seed as u32 % 3,
        };
        let position = seed as u32 * 13;
        assert_eq!(
            draw_row(&row, random, position).unwrap(),
            slow_draw(&row, random, position)
        );
    }
}

#[test]
fn rows_without_a_distribution_are_refused() {
    let random = RandomKey {
        seed: 1,
        lineage: 0,
    };
    let error = |row: &[f32]| draw_row(row, random, 0).unwrap_err().to_string();
    assert!(error(&[1.0, f32::NAN]).contains("logit NaN of token 1 is not finite"));
    assert!(error(&[f32::INFINITY]).contains("logit inf of token 0"));
    assert!(error(&[f32::NEG_INFINITY; 5]).contains("row of 5 logits: every token is masked out"));
    assert!(error(&[]).contains("row of 0 logits"));
}

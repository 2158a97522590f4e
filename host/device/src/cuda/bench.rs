//! Timing of what the host does for a draw, for `examples/sampling_costs.rs`. No GPU is needed.

use std::time::Instant;

use guesthouse_engine::{SamplingPlan, TokenId};

use super::sample::EncoderBench;
use crate::device::Draw;
use crate::history::History;

/// Rows that are timed.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Rows of a step.
    pub count: usize,
    /// Size of the vocabulary.
    pub vocab: u32,
    /// Of each row.
    pub plan: &'a SamplingPlan,
    /// Each row's history at first; the first half is the prompt.
    pub tokens: &'a [TokenId],
}

/// Seconds per row and step of encoding its draw and of appending a token to its history, the best of some runs.
#[must_use]
pub fn time_rows(rows: Rows<'_>) -> f64 {
    const STEPS: usize = 200;
    let first = History::for_plan(rows.tokens, rows.tokens.len() / 2, rows.plan);
    let mut best = f64::INFINITY;
    for _ in 0..9 {
        let mut histories = vec![first.clone(); rows.count];
        let mut encoder = EncoderBench::default();
        let start = Instant::now();
        for step in 0..STEPS {
            let draws = histories
                .iter()
                .enumerate()
                .map(|(i, history)| Draw::plain(i, rows.plan, history, i as u64));
            encoder.encode(rows.vocab, draws);
            for (i, history) in histories.iter_mut().enumerate() {
                history.extend(&[(step * 7919 + i * 104_729) as u32 % rows.vocab]);
            }
        }
        let seconds = start.elapsed().as_secs_f64() / (STEPS * rows.count.max(1)) as f64;
        best = best.min(seconds);
    }
    best
}

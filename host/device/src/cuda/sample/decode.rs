//! What the kernel reports of draws: `Result` of `kernels/sample/draw.cu`.

use std::cmp::Ordering;

use bytemuck::{Pod, Zeroable};
use guesthouse_engine::{SampleOutcome, Sampled, TokenId};

use super::encode::{Note, Notes};
use crate::cpu::sample::{MASKED, NO_PROBABILITIES, NOT_FINITE, bad_temperature, nothing_left};

#[cfg(test)]
mod tests;

/// `Failure` of the kernel.
mod failure {
    pub(super) const NONE: u32 = 0;
    pub(super) const NOT_FINITE: u32 = 1;
    pub(super) const MASKED: u32 = 2;
    pub(super) const NONE_LEFT: u32 = 3;
    pub(super) const TEMPERATURE: u32 = 4;
    pub(super) const NO_PROBABILITIES: u32 = 5;
}

/// `Result` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub(super) struct ResultWords {
    pub token: i32,
    /// Kind of failure, and the op that failed from bit 8 on.
    pub failure: u32,
    pub logprob: f32,
    pub processed: f32,
    pub rank: u32,
    /// Best tokens that were found, in no order.
    pub top_count: u32,
    pub max: f32,
    pub logit: f32,
    pub log_sum: f64,
    /// Bits, of the token where it entered a mirostat stage.
    pub surprise: f32,
    pub unused: u32,
}

/// A token and its raw logit.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub(super) struct TopWords {
    pub token: TokenId,
    pub logit: f32,
}

/// A draw's outcome.
pub(super) fn outcome(
    result: &ResultWords,
    tops: &[TopWords],
    note: &Note,
    notes: &Notes,
) -> SampleOutcome {
    let names = notes
        .stages
        .get(note.stages.0 as usize..note.stages.1 as usize)
        .unwrap_or_default();
    let refused = note.refused.and_then(|i| notes.refusals.get(i as usize));
    let why = match (result.failure & 0xff, refused) {
        (failure::NONE | failure::NONE_LEFT, Some(reason)) => reason.clone(),
        (failure::NONE, None) => return SampleOutcome::Token(sampled(result, tops, note)),
        (failure::NOT_FINITE, _) => NOT_FINITE.to_owned(),
        (failure::MASKED, _) => MASKED.to_owned(),
        (failure::NONE_LEFT, _) => nothing_left(names),
        (failure::TEMPERATURE, _) => bad_temperature(note.bad_temperature),
        (failure::NO_PROBABILITIES, _) => NO_PROBABILITIES.to_owned(),
        (other, _) => format!("the sampling kernel reported failure {other}, which is unknown"),
    };
    SampleOutcome::Failed(why)
}

/// The token and what is reported with it.
pub(super) fn sampled(result: &ResultWords, tops: &[TopWords], note: &Note) -> Sampled {
    Sampled {
        token: result.token as TokenId,
        logprob: result.logprob,
        rank: result.rank,
        processed_logprob: result.processed,
        mu: note.mirostat.map(|state| state.after(result.surprise)),
        top: best(result, tops, note.top as usize),
    }
}

/// The best tokens in order. What is missing has a logit of -inf.
fn best(result: &ResultWords, tops: &[TopWords], top: usize) -> Vec<(TokenId, f32)> {
    let found = tops.len().min(result.top_count as usize).min(top);
    let mut list = tops[..found].to_vec();
    // Zeros are equal whatever their sign.
    list.sort_unstable_by(|a, b| {
        let by_logit = b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal);
        by_logit.then(a.token.cmp(&b.token))
    });
    let log_prob = |x: f32| (f64::from(x) - f64::from(result.max) - result.log_sum) as f32;
    let mut best: Vec<(TokenId, f32)> = list.iter().map(|t| (t.token, log_prob(t.logit))).collect();
    if best.len() < top {
        let mut known: Vec<TokenId> = best.iter().map(|t| t.0).collect();
        known.sort_unstable();
        let rest = (0..).filter(|t| known.binary_search(t).is_err());
        best.extend(rest.take(top - found).map(|t| (t, f32::NEG_INFINITY)));
    }
    best
}

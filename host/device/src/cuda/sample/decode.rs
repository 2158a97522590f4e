//! What the kernel reports of draws: `Result` of `kernels/sample/draw.cu`.

use std::cmp::Ordering;

use bytemuck::{Pod, Zeroable};
use guesthouse_engine::{Candidates, LogitsRow, SampleOutcome, Sampled, TokenId};

use super::encode::{About, Hand, Note, Notes, Widths};
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
    pub listed: u32,
    pub log_sum_exp: f32,
    pub entropy: f32,
    pub unused: [u32; 2],
}

/// `Candidate` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub(super) struct CandidateWords {
    pub token: TokenId,
    pub logit: f32,
    pub reported: f32,
    pub rank: u32,
}

/// Behind the results of a step.
#[derive(Clone, Copy, Default)]
pub(super) struct Lists<'a> {
    pub tops: &'a [TopWords],
    pub candidates: &'a [CandidateWords],
    pub floats: &'a [f32],
}

/// A token and its logit among those that are reported.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub(super) struct TopWords {
    pub token: TokenId,
    pub logit: f32,
}

/// A draw's outcome.
pub(super) fn outcome(
    result: &ResultWords,
    lists: Lists<'_>,
    note: &Note,
    notes: &Notes,
    widths: Widths,
) -> SampleOutcome {
    let names = notes
        .stages
        .get(note.stages.0 as usize..note.stages.1 as usize)
        .unwrap_or_default();
    let refused = note.refused.and_then(|i| notes.refusals.get(i as usize));
    let why = match (result.failure & 0xff, refused) {
        (failure::NONE | failure::NONE_LEFT, Some(reason)) => reason.clone(),
        (failure::NONE, None) => return handed(result, lists, note, widths),
        (failure::NOT_FINITE, _) => return SampleOutcome::Failed(NOT_FINITE.to_owned()),
        (failure::MASKED, _) => MASKED.to_owned(),
        (failure::NONE_LEFT, _) => nothing_left(names),
        (failure::TEMPERATURE, _) => bad_temperature(note.bad_temperature),
        (failure::NO_PROBABILITIES, _) => NO_PROBABILITIES.to_owned(),
        (other, _) => {
            let why = format!("the sampling kernel reported failure {other}, which is unknown");
            return SampleOutcome::Failed(why);
        }
    };
    SampleOutcome::Refused(why)
}

/// What a draw was for.
fn handed(result: &ResultWords, lists: Lists<'_>, note: &Note, widths: Widths) -> SampleOutcome {
    let tops = lists.tops.get(note.top_at as usize..).unwrap_or_default();
    let top = || best(result, tops, note.top as usize);
    match note.hand {
        Hand::Token => SampleOutcome::Token(sampled(result, tops, note)),
        Hand::Candidates { list_at, about } => {
            let found = candidates(result, lists, list_at, about, widths.hidden);
            SampleOutcome::Candidates(Box::new(Candidates {
                top: top(),
                ..found
            }))
        }
        Hand::Row {
            row_at,
            raw_at,
            about,
        } => {
            let logits = floats(lists, Some(row_at), widths.vocab);
            let raw = raw_at.map(|at| floats(lists, Some(at), widths.vocab));
            SampleOutcome::Row(Box::new(LogitsRow {
                raw: raw.filter(|raw| *raw != logits),
                logits,
                uniform: about.uniform,
                top: top(),
                hidden: floats(lists, about.hidden_at, widths.hidden),
            }))
        }
    }
}

/// Copies `count` floats; none without a place.
fn floats(lists: Lists<'_>, at: Option<u32>, count: u32) -> Vec<f32> {
    let range = at.map(|at| at as usize..at as usize + count as usize);
    let found = range.and_then(|range| lists.floats.get(range));
    found.unwrap_or_default().to_vec()
}

/// All but the best tokens that are reported.
fn candidates(
    result: &ResultWords,
    lists: Lists<'_>,
    list_at: u32,
    about: About,
    hidden: u32,
) -> Candidates {
    let range = list_at as usize..list_at as usize + result.listed as usize;
    let list = lists.candidates.get(range).unwrap_or_default();
    Candidates {
        tokens: list.iter().map(|c| c.token).collect(),
        logits: list.iter().map(|c| c.logit).collect(),
        logprobs: list.iter().map(|c| log_prob(result, c.reported)).collect(),
        ranks: list.iter().map(|c| c.rank).collect(),
        log_sum_exp: result.log_sum_exp,
        entropy: result.entropy,
        uniform: about.uniform,
        top: Vec::new(),
        hidden: floats(lists, about.hidden_at, hidden),
    }
}

fn log_prob(result: &ResultWords, logit: f32) -> f32 {
    (f64::from(logit) - f64::from(result.max) - result.log_sum) as f32
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
    let mut best: Vec<(TokenId, f32)> = list
        .iter()
        .map(|t| (t.token, log_prob(result, t.logit)))
        .collect();
    if best.len() < top {
        let mut known: Vec<TokenId> = best.iter().map(|t| t.0).collect();
        known.sort_unstable();
        let rest = (0..).filter(|t| known.binary_search(t).is_err());
        best.extend(rest.take(top - found).map(|t| (t, f32::NEG_INFINITY)));
    }
    best
}

//! What guests see of rows, and what a token chosen from one is reported with.

use super::{BranchRow, Ready};
use crate::sequence::Sequence;
use crate::{
    Candidates, Content, LogitsRow, LogprobsMode, RandomKey, Rows, SampleOutcome, Sampled, TokenId,
};
use rayon::prelude::*;

/// What a token is chosen from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    Candidates(&'a Candidates),
    Row(&'a LogitsRow),
}

impl<'a> Source<'a> {
    fn uniform(self) -> f32 {
        match self {
            Self::Candidates(candidates) => candidates.uniform,
            Self::Row(row) => row.uniform,
        }
    }

    fn hidden(self) -> &'a [f32] {
        match self {
            Self::Candidates(candidates) => &candidates.hidden,
            Self::Row(row) => &row.hidden,
        }
    }
}

/// The outcome that the sequence's guest chooses from, if it is here.
pub(super) fn outcome(sequence: &Sequence) -> Option<Source<'_>> {
    match &sequence.branch.as_ref()?.row {
        BranchRow::Here(SampleOutcome::Candidates(candidates)) => {
            Some(Source::Candidates(candidates))
        }
        BranchRow::Here(SampleOutcome::Row(row)) => Some(Source::Row(row)),
        _ => None,
    }
}

/// # Errors
/// What is wrong with a device's candidates.
pub(super) fn check_candidates(found: &Candidates, most: u32, vocab: u32) -> Result<(), String> {
    let count = found.tokens.len();
    if count == 0 || count > most as usize {
        return Err(format!("{count} candidates instead of 1 to {most}"));
    }
    let lengths = [found.logits.len(), found.logprobs.len(), found.ranks.len()];
    if lengths != [count; 3] {
        return Err(format!(
            "{lengths:?} logits, log-probabilities and ranks of {count} candidates"
        ));
    }
    let largest = found.tokens.iter().fold(0, |most, token| most.max(*token));
    if largest >= vocab {
        return Err(format!("candidate {largest} of a vocabulary of {vocab}"));
    }
    Ok(())
}

/// # Errors
/// What is wrong with a device's row.
pub(super) fn check_row(found: &LogitsRow, vocab: u32) -> Result<(), String> {
    let raw = found.raw.as_ref().unwrap_or(&found.logits);
    if found.logits.len() != vocab as usize || raw.len() != vocab as usize {
        return Err(format!(
            "rows of {} and {} logits of a vocabulary of {vocab}",
            found.logits.len(),
            raw.len()
        ));
    }
    Ok(())
}

/// A sequence's row, as far as guests are concerned.
pub(super) struct Row<'a> {
    branch: u32,
    from: u32,
    last: Option<TokenId>,
    /// Tokens of prompt and output.
    len: u32,
    prompt_len: u32,
    random: RandomKey,
    source: Source<'a>,
}

impl<'a> Row<'a> {
    /// None where the outcome is not here.
    pub(super) fn of(sequence: &'a Sequence) -> Option<Self> {
        let branch = sequence.branch.as_ref()?;
        Some(Self {
            branch: branch.number,
            from: branch.from,
            last: sequence.tokens.last().copied(),
            len: sequence.tokens.len() as u32,
            prompt_len: sequence.prompt_len,
            random: sequence.random,
            source: outcome(sequence)?,
        })
    }
}

/// Requests from which on their rows are made by several threads: each takes some 2 µs.
const MANY: usize = 64;

/// What each request's guest sees.
pub(super) fn all(ready: &[Ready<'_>], vocab: u32) -> Vec<Rows> {
    let of = |ready: &Ready<'_>| rows(&ready.rows, ready.candidates.min(vocab));
    if ready.len() < MANY {
        return ready.iter().map(of).collect();
    }
    ready.par_iter().with_min_len(MANY).map(of).collect()
}

/// `n` is the number of candidates.
fn rows(found: &[Row<'_>], n: u32) -> Rows {
    let sources: Vec<Source<'_>> = found.iter().map(|row| row.source).collect();
    Rows {
        branches: found.iter().map(|row| row.branch).collect(),
        choices: found.iter().map(|row| row.from).collect(),
        last: found.iter().filter_map(|row| row.last).collect(),
        lengths: found.iter().map(|row| row.len - row.prompt_len).collect(),
        uniform: sources.iter().map(|source| source.uniform()).collect(),
        random: found.iter().map(|row| (row.random, row.len)).collect(),
        hidden: sources
            .iter()
            .flat_map(|source| source.hidden())
            .copied()
            .collect(),
        content: content(&sources, n),
    }
}

fn content(sources: &[Source<'_>], n: u32) -> Content {
    if matches!(sources.first(), Some(Source::Row(_))) {
        let rows = sources.iter().filter_map(|source| match source {
            Source::Row(row) => Some(row.logits.as_slice()),
            Source::Candidates(_) => None,
        });
        return Content::Logits(rows.collect::<Vec<_>>().concat());
    }
    let (mut tokens, mut logits) = (Vec::new(), Vec::new());
    let (mut log_sum_exp, mut entropy) = (Vec::new(), Vec::new());
    for source in sources {
        let Source::Candidates(candidates) = source else {
            continue;
        };
        let end = tokens.len() + n as usize;
        tokens.extend(&candidates.tokens);
        logits.extend(&candidates.logits);
        tokens.resize(end, 0);
        logits.resize(end, f32::NEG_INFINITY);
        log_sum_exp.push(candidates.log_sum_exp);
        entropy.push(candidates.entropy);
    }
    Content::Candidates {
        n,
        tokens,
        logits,
        log_sum_exp,
        entropy,
    }
}

/// How a chosen token is reported.
pub(super) fn sampled(source: Source<'_>, token: TokenId, mode: LogprobsMode) -> Sampled {
    match source {
        Source::Candidates(candidates) => from_candidates(candidates, token),
        Source::Row(row) => from_row(row, token, mode),
    }
}

/// `token` is one of them.
fn from_candidates(candidates: &Candidates, token: TokenId) -> Sampled {
    let index = candidates
        .tokens
        .iter()
        .position(|&found| found == token)
        .unwrap_or(0);
    Sampled {
        token,
        logprob: candidates.logprobs[index],
        rank: candidates.ranks[index],
        processed_logprob: candidates.logits[index] - candidates.log_sum_exp,
        top: candidates.top.clone(),
        mu: None,
    }
}

fn from_row(row: &LogitsRow, token: TokenId, mode: LogprobsMode) -> Sampled {
    let reported = match (&row.raw, mode) {
        (Some(raw), LogprobsMode::Raw) => raw,
        _ => &row.logits,
    };
    let own = reported[token as usize];
    let processed_logprob = logprob(&row.logits, token);
    Sampled {
        token,
        logprob: if std::ptr::eq(reported, &row.logits) {
            processed_logprob
        } else {
            logprob(reported, token)
        },
        rank: 1 + reported.iter().filter(|&&other| other > own).count() as u32,
        processed_logprob,
        top: row.top.clone(),
        mu: None,
    }
}

/// Log-softmax at one token, summed in f64.
fn logprob(logits: &[f32], token: TokenId) -> f32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits
        .iter()
        .map(|&logit| f64::from(logit - largest).exp())
        .sum();
    (f64::from(logits[token as usize] - largest) - sum.ln()) as f32
}

#[cfg(test)]
mod tests;

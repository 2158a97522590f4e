//! Tokens and log-probabilities as functions of a hash.

use super::Logits;
use super::memory::mix;
use crate::{
    Admission, Asked, Candidates, Draw, Hidden, LogitsRow, SampleOutcome, Sampled, Stage, TokenId,
};

/// A row of "logits".
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) logits: Logits,
    pub(super) vocab: u32,
    pub(super) top: u32,
}

fn raw(hash: u64, token: TokenId) -> u64 {
    mix(hash, u64::from(token))
}

/// In (-8, 0]; greater for greater raw values.
fn logprob(raw: u64) -> f32 {
    (raw >> 40) as f32 / (1u64 << 24) as f32 * 8.0 - 8.0
}

/// Reports a token under a hash.
pub(super) fn score(hash: u64, token: TokenId, vocab: u32, top: u32) -> Sampled {
    let own = raw(hash, token);
    let rank = 1 + (0..vocab).filter(|&other| raw(hash, other) > own).count() as u32;
    let mut best: Vec<TokenId> = if top > 0 {
        (0..vocab).collect()
    } else {
        Vec::new()
    };
    best.sort_by_key(|&token| std::cmp::Reverse(raw(hash, token)));
    best.truncate(top as usize);
    let top = best
        .into_iter()
        .map(|token| (token, logprob(raw(hash, token))))
        .collect();
    Sampled {
        token,
        logprob: logprob(own),
        rank,
        processed_logprob: logprob(own),
        top,
        mu: None,
    }
}

/// What stands for a prompt's vector: depends on all of its tokens.
pub(super) fn vector(hash: u64, len: u32) -> Vec<f32> {
    vec![(hash >> 40) as f32, (hash & 0xff_ffff) as f32, len as f32]
}

pub(super) fn choose(row: Row, admission: &Admission, mask: Option<&[u32]>) -> SampleOutcome {
    let allowed = |token: &TokenId| {
        admission.sampling.stages.iter().all(|stage| match stage {
            Stage::AllowedTokens(tokens) => tokens.contains(token),
            Stage::BannedTokens(tokens) => !tokens.contains(token),
            _ => true,
        }) && mask.is_none_or(|words| {
            words
                .get(*token as usize / 32)
                .is_some_and(|word| word >> (token % 32) & 1 == 1)
        })
    };
    let Logits { hash, position, .. } = row.logits;
    let random = mix(
        mix(admission.random.seed, u64::from(admission.random.lineage)),
        u64::from(position),
    );
    let key = match admission.sampling.draw {
        Draw::Greedy => 0,
        Draw::Sample => random | 1,
        Draw::Candidates(asked) => return candidates(row, asked, allowed, random),
        Draw::Row(asked) => return logits_row(row, asked, allowed, random),
    };
    let value = |token: TokenId| match (row.logits.repeated, key) {
        (Some(last), _) => raw(last, token),
        (None, 0) => raw(hash, token),
        (None, key) => mix(raw(hash, token), key),
    };
    match (0..row.vocab)
        .filter(allowed)
        .max_by_key(|&token| (value(token), std::cmp::Reverse(token)))
    {
        Some(token) => SampleOutcome::Token(score(hash, token, row.vocab, row.top)),
        None => SampleOutcome::Refused("all tokens are masked".to_owned()),
    }
}

/// In (0, 1).
fn uniform(random: u64) -> f32 {
    ((random >> 41) as f32 + 0.5) / (1u32 << 23) as f32
}

fn hidden(row: Row, asked: Asked) -> Vec<f32> {
    match asked.hidden {
        Hidden::Kept => Vec::new(),
        Hidden::Shown => vector(row.logits.hash, row.logits.position),
    }
}

fn candidates(
    row: Row,
    asked: Asked,
    allowed: impl Fn(&TokenId) -> bool,
    random: u64,
) -> SampleOutcome {
    let mut tokens: Vec<TokenId> = (0..row.vocab).filter(allowed).collect();
    if tokens.is_empty() {
        return SampleOutcome::Refused("all tokens are masked".to_owned());
    }
    let logit = |token: TokenId| logprob(raw(row.logits.hash, token));
    let logits: Vec<f64> = tokens
        .iter()
        .map(|&token| f64::from(logit(token)))
        .collect();
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    let mean: f64 = logits.iter().map(|logit| logit * logit.exp()).sum::<f64>() / sum;
    tokens.sort_by_key(|&token| std::cmp::Reverse(raw(row.logits.hash, token)));
    tokens.truncate(asked.candidates as usize);
    let reports: Vec<_> = tokens
        .iter()
        .map(|&token| score(row.logits.hash, token, row.vocab, 0))
        .collect();
    SampleOutcome::Candidates(Box::new(Candidates {
        logits: tokens.iter().map(|&token| logit(token)).collect(),
        logprobs: reports.iter().map(|report| report.logprob).collect(),
        ranks: reports.iter().map(|report| report.rank).collect(),
        log_sum_exp: sum.ln() as f32,
        entropy: (sum.ln() - mean) as f32,
        uniform: uniform(random),
        top: score(row.logits.hash, tokens[0], row.vocab, row.top).top,
        hidden: hidden(row, asked),
        tokens,
    }))
}

fn logits_row(
    row: Row,
    asked: Asked,
    allowed: impl Fn(&TokenId) -> bool,
    random: u64,
) -> SampleOutcome {
    let raw: Vec<f32> = (0..row.vocab)
        .map(|token| logprob(raw(row.logits.hash, token)))
        .collect();
    let logits: Vec<f32> = raw
        .iter()
        .zip(0..)
        .map(|(&logit, token)| {
            if allowed(&token) {
                logit
            } else {
                f32::NEG_INFINITY
            }
        })
        .collect();
    if logits.iter().all(|logit| logit.is_infinite()) {
        return SampleOutcome::Refused("all tokens are masked".to_owned());
    }
    SampleOutcome::Row(Box::new(LogitsRow {
        raw: (raw != logits).then_some(raw),
        logits,
        uniform: uniform(random),
        top: score(row.logits.hash, 0, row.vocab, row.top).top,
        hidden: hidden(row, asked),
    }))
}

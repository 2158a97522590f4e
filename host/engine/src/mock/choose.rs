//! Tokens and log-probabilities as functions of a hash.

use super::Logits;
use super::memory::mix;
use crate::{Admission, Draw, SampleOutcome, Sampled, Stage, TokenId};

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
    let key = match admission.sampling.draw {
        Draw::Greedy => 0,
        Draw::Sample | Draw::Candidates(_) | Draw::Row(_) => {
            mix(
                mix(admission.random.seed, u64::from(admission.random.lineage)),
                u64::from(position),
            ) | 1
        }
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
        None => SampleOutcome::Failed("all tokens are masked".to_owned()),
    }
}

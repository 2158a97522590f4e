//! Choosing among logits.

use std::cmp::Ordering;

use guesthouse_engine::{RandomKey, TokenId};

use super::philox::{Purpose, uniform, words};

/// Order of preference: higher logit first, lower id among equals. NaN is last.
fn better(logits: &[f32], a: TokenId, b: TokenId) -> Ordering {
    let (x, y) = (logits[a as usize], logits[b as usize]);
    y.partial_cmp(&x)
        .unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()))
        .then(a.cmp(&b))
}

/// The best `n` tokens, best first.
pub(crate) fn best(logits: &[f32], n: usize) -> Vec<TokenId> {
    let n = n.min(logits.len());
    if n == 0 {
        return Vec::new();
    }
    // Few of many: keep a sorted list and compare with its last.
    if n <= 32 {
        let mut list: Vec<TokenId> = Vec::with_capacity(n + 1);
        let mut least = f32::NEG_INFINITY;
        for (t, &x) in logits.iter().enumerate() {
            if list.len() == n && (x <= least || x.is_nan()) {
                continue;
            }
            let t = t as TokenId;
            let at = list.partition_point(|&u| better(logits, u, t) == Ordering::Less);
            list.insert(at, t);
            list.truncate(n);
            least = logits[list[list.len() - 1] as usize];
        }
        return list;
    }
    let mut ids: Vec<TokenId> = (0..logits.len() as TokenId).collect();
    if n < ids.len() {
        ids.select_nth_unstable_by(n - 1, |&a, &b| better(logits, a, b));
        ids.truncate(n);
    }
    ids.sort_unstable_by(|&a, &b| better(logits, a, b));
    ids
}

/// The best token, the lowest id among equals.
pub(crate) fn argmax(logits: &[f32]) -> TokenId {
    let mut best = 0;
    for (start, chunk) in logits.chunks(64).enumerate() {
        let high = chunk
            .iter()
            .fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
        if high > logits[best] || (best == 0 && start == 0) {
            let at = chunk.iter().position(|&x| x == high).unwrap_or(0);
            best = start * 64 + at;
        }
    }
    best as TokenId
}

/// Largest Gumbel noise that [`uniform`] can make, rounded up: `-ln(-ln(1 - 2⁻²⁴)) < 16.64`.
const MOST_NOISE: f64 = 16.64;

/// Gumbel-max: the token with the largest `logit - ln(-ln(u))`, a draw from the softmax. Noise is computed only where it
/// could win, in f64 from exact f32 uniforms.
pub(crate) fn gumbel(logits: &[f32], random: RandomKey, position: u32) -> TokenId {
    let mut quad = None;
    let mut noise = |t: TokenId| {
        let current = match quad {
            Some((q, words)) if q == t / 4 => words,
            _ => {
                let words = words(random, position, Purpose::Token, t / 4);
                quad = Some((t / 4, words));
                words
            }
        };
        let u = f64::from(uniform(current[t as usize % 4]));
        -(-u.ln()).ln()
    };
    let first = argmax(logits);
    let mut chosen = first;
    let mut most = f64::from(logits[first as usize]) + noise(first);
    let mut bar = (most - MOST_NOISE - 1e-3) as f32;
    for (start, chunk) in logits.chunks(64).enumerate() {
        let high = chunk
            .iter()
            .fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
        if high < bar {
            continue;
        }
        for (i, &x) in chunk.iter().enumerate() {
            let t = (start * 64 + i) as TokenId;
            if x < bar || x == f32::NEG_INFINITY || t == first {
                continue;
            }
            let score = f64::from(x) + noise(t);
            if score > most || (score == most && t < chosen) {
                (most, chosen) = (score, t);
                // Rounded down by more than f32's error, so that no token is skipped wrongly.
                bar = (most - MOST_NOISE - 1e-3) as f32;
            }
        }
    }
    chosen
}

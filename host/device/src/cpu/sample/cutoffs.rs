//! Numbers that stages cut a row at, in f64. Rows have a finite maximum and neither NaN nor +inf.

use guesthouse_engine::TokenId;

use super::select::best;
use super::softmax::LogSumExp;

const GONE: f32 = f32::NEG_INFINITY;

fn left(logits: &[f32]) -> impl Iterator<Item = f32> + '_ {
    logits.iter().copied().filter(|x| *x > GONE)
}

/// Entropy in nats over the tokens that are left.
pub(super) fn entropy(logits: &[f32], norm: LogSumExp) -> f64 {
    let (mut sum, mut weighted) = (0f64, 0f64);
    for x in left(logits) {
        let d = f64::from(x) - f64::from(norm.max);
        let e = d.exp();
        sum += e;
        if e > 0.0 {
            weighted += d * e;
        }
    }
    sum.ln() - weighted / sum
}

/// `min + (max - min) · (H / ln m)^exponent` over the m tokens that are left, as an f32 (kalomaze 2023; llama.cpp's
/// `dynatemp`). Of one token the entropy is 0: `min`.
pub(super) fn dynamic_temperature(
    logits: &[f32],
    norm: LogSumExp,
    [min, max, exponent]: [f32; 3],
) -> f32 {
    let m = left(logits).count();
    let share = if m > 1 {
        (entropy(logits, norm) / (m as f64).ln()).clamp(0.0, 1.0)
    } else {
        0.0
    };
    let (min, max) = (f64::from(min), f64::from(max));
    (min + (max - min) * share.powf(f64::from(exponent))) as f32
}

/// The largest logit minus n population standard deviations of those that are left (Tang et al. 2024, "Top-nσ").
pub(super) fn sigma_bar(logits: &[f32], norm: LogSumExp, n: f32) -> f64 {
    let max = f64::from(norm.max);
    let (mut m, mut sum, mut squares) = (0f64, 0f64, 0f64);
    for x in left(logits) {
        let d = f64::from(x) - max;
        m += 1.0;
        sum += d;
        squares += d * d;
    }
    let mean = sum / m;
    let variance = (squares / m - mean * mean).max(0.0);
    max - f64::from(n) * variance.sqrt()
}

/// Logit of tokens of a log-probability, at most the best one's.
pub(super) fn probability_bar(norm: LogSumExp, log_prob: f64) -> f64 {
    let max = f64::from(norm.max);
    max.min(max + norm.log_sum + log_prob)
}

/// `ln min(ε, √ε · e^-H)` (Hewitt et al. 2022, "Truncation sampling as language model desmoothing").
pub(super) fn log_eta(epsilon: f64, entropy: f64) -> f64 {
    epsilon.ln().min(0.5 * epsilon.ln() - entropy)
}

/// Tail-free sampling (Phénix 2019), as llama.cpp had it. Over the m tokens that are left, sorted, the absolute second
/// differences `|p_i - 2 p_(i+1) + p_(i+2)|` are divided by their sum; the first `max(1, i)` tokens stay, where i (from 0)
/// is the first one at which the running sum is above z. Where all differences are 0 each counts alike; of two tokens or
/// fewer all stay. Equal tokens are sorted by id.
pub(super) fn tail_free(logits: &mut [f32], norm: LogSumExp, z: f64) {
    let m = left(logits).count();
    if m <= 2 {
        return;
    }
    let mut n = 256;
    loop {
        let mut list = best(logits, n.min(m));
        let parts: Vec<f64> = list
            .iter()
            .map(|&t| (f64::from(logits[t as usize]) - f64::from(norm.max)).exp())
            .collect();
        if let Some(count) = tail_free_count(&parts, m, z) {
            list.truncate(count);
            return keep_only(logits, &list);
        }
        n *= 8;
    }
}

fn keep_only(logits: &mut [f32], tokens: &[TokenId]) {
    let kept: Vec<f32> = tokens.iter().map(|&t| logits[t as usize]).collect();
    logits.fill(GONE);
    for (&t, x) in tokens.iter().zip(kept) {
        logits[t as usize] = x;
    }
}

/// Tokens that stay, from the largest parts of m, sorted; none where that depends on smaller ones. As parts fall, all
/// differences from the last two known parts on add up to at most twice the smaller index's part.
fn tail_free_count(parts: &[f64], m: usize, z: f64) -> Option<usize> {
    let mut sums = Vec::with_capacity(parts.len());
    let mut sum = 0f64;
    for w in parts.windows(3) {
        sum += (w[0] - 2.0 * w[1] + w[2]).abs();
        sums.push(sum);
    }
    let rest = if parts.len() == m {
        0.0
    } else {
        2.0 * parts[parts.len() - 2]
    };
    if rest == 0.0 && sum == 0.0 {
        let all = (m - 2) as f64;
        let i = (0..m - 2).find(|i| (i + 1) as f64 / all > z);
        return Some(i.unwrap_or(m).max(1));
    }
    let first = |sum: f64| sums.partition_point(|&s| s <= z * sum);
    let (low, high) = (first(sum), first(sum + rest));
    (low == high && low < sums.len()).then_some(low.max(1))
}

/// XTC (p-e-w 2024, text-generation-webui pull request 6335): of the tokens with at least the threshold's probability
/// only the least likely stays, with its equals; nothing happens if there are fewer than two.
pub(super) fn exclude_top(logits: &mut [f32], norm: LogSumExp, log_threshold: f64) {
    let bar = f64::from(norm.max) + norm.log_sum + log_threshold;
    let mut least = f32::INFINITY;
    for x in left(logits).filter(|x| f64::from(*x) >= bar) {
        least = least.min(x);
    }
    for x in logits {
        if *x > least {
            *x = GONE;
        }
    }
}

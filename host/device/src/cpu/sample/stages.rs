//! The stages of a sampling plan, one by one. Those that vLLM has mean what they mean there.

use guesthouse_engine::{RandomKey, Stage, TokenId};

use super::mirostat::{self, Mirostat};
use super::refusal::{TWO_MIROSTATS, refusal};
use super::select::best;
use super::softmax::LogSumExp;
use super::watermark::Green;
use super::{NO_PROBABILITIES, bad_temperature, cutoffs, position_of, xtc_applies};
use crate::cpu::simd::Isa;
use crate::device::Draw;
use crate::history::History;

const GONE: f32 = f32::NEG_INFINITY;

/// What stages know besides the row, and what one of them has noted.
pub(super) struct Run<'a> {
    isa: Isa,
    history: &'a History,
    random: RandomKey,
    mu: Option<f32>,
    /// XTC stages so far.
    xtc: u32,
    /// A mirostat stage and the row that entered it.
    pub mirostat: Option<(Mirostat, Vec<f32>, LogSumExp)>,
}

impl<'a> Run<'a> {
    pub(super) fn new(isa: Isa, draw: &Draw<'a>) -> Self {
        Self {
            isa,
            history: draw.history,
            random: draw.random,
            mu: draw.mu,
            xtc: 0,
            mirostat: None,
        }
    }

    /// Applies a stage in place. The error is the reason why the row cannot be sampled.
    pub(super) fn apply(&mut self, stage: &Stage, logits: &mut [f32]) -> Result<(), String> {
        if let Some(reason) = refusal(stage) {
            return Err(reason);
        }
        let isa = self.isa;
        match stage {
            Stage::NoRepeatNgram(n) => {
                let mut banned = Vec::new();
                self.history.repeating(*n, &mut banned);
                ban(logits, &banned);
            }
            Stage::Dry(dry) => {
                let mut penalties = Vec::new();
                self.history.dry_penalties(dry, &mut penalties);
                for (t, by) in penalties {
                    if let Some(x) = logits.get_mut(t as usize) {
                        *x -= by;
                    }
                }
            }
            Stage::DynamicTemperature { min, max, exponent } => {
                let norm = normalized(isa, logits)?;
                let t = cutoffs::dynamic_temperature(logits, norm, [*min, *max, *exponent]);
                for x in logits {
                    *x /= t;
                }
            }
            Stage::TopNSigma(n) => {
                let norm = normalized(isa, logits)?;
                keep_from(logits, cutoffs::sigma_bar(logits, norm, *n));
            }
            Stage::EpsilonCutoff(epsilon) => {
                let norm = normalized(isa, logits)?;
                keep_from(
                    logits,
                    cutoffs::probability_bar(norm, f64::from(*epsilon).ln()),
                );
            }
            Stage::EtaCutoff(epsilon) => {
                let norm = normalized(isa, logits)?;
                let entropy = cutoffs::entropy(logits, norm);
                let log_eta = cutoffs::log_eta(f64::from(*epsilon), entropy);
                keep_from(logits, cutoffs::probability_bar(norm, log_eta));
            }
            Stage::TailFree(z) => {
                if *z < 1.0 {
                    let norm = normalized(isa, logits)?;
                    cutoffs::tail_free(logits, norm, f64::from(*z));
                }
            }
            Stage::Xtc {
                probability,
                threshold,
            } => {
                let position = position_of(self.history);
                let applies = xtc_applies(self.random, position, self.xtc, *probability);
                self.xtc += 1;
                if applies {
                    let norm = normalized(isa, logits)?;
                    cutoffs::exclude_top(logits, norm, f64::from(*threshold).ln());
                }
            }
            Stage::Mirostat1 { .. } | Stage::Mirostat2 { .. } => {
                if self.mirostat.is_some() {
                    return Err(TWO_MIROSTATS.to_owned());
                }
                let Some(state) = Mirostat::of(stage, self.mu) else {
                    return Ok(());
                };
                let norm = normalized(isa, logits)?;
                self.mirostat = Some((state, logits.to_vec(), norm));
                if matches!(stage, Stage::Mirostat1 { .. }) {
                    let best: Vec<f32> = best(logits, mirostat::BEST)
                        .into_iter()
                        .map(|t| logits[t as usize])
                        .filter(|x| *x > GONE)
                        .collect();
                    let s = mirostat::zipf_exponent(&best);
                    top_k(logits, state.count(s, logits.len()) as usize);
                } else {
                    keep_from(logits, cutoffs::probability_bar(norm, state.log_bar()));
                }
            }
            Stage::Watermark(watermark) => {
                let green = Green::new(watermark, self.history.tokens());
                for (t, x) in logits.iter_mut().enumerate() {
                    if green.holds(t as TokenId) {
                        *x += watermark.delta;
                    }
                }
            }
            _ => return apply(isa, stage, logits, self.history),
        }
        Ok(())
    }
}

/// Keeps logits of at least `bar`.
fn keep_from(logits: &mut [f32], bar: f64) {
    remove(logits, |x| f64::from(x) < bar);
}

/// Stages that need nothing but the history.
fn apply(isa: Isa, stage: &Stage, logits: &mut [f32], history: &History) -> Result<(), String> {
    match stage {
        Stage::AllowedTokens(allowed) => {
            let kept: Vec<(usize, f32)> = allowed
                .iter()
                .filter_map(|&t| Some((t as usize, *logits.get(t as usize)?)))
                .collect();
            logits.fill(GONE);
            for (t, x) in kept {
                logits[t] = x;
            }
        }
        Stage::BannedTokens(banned) => ban(logits, banned),
        Stage::BadWords(words) => {
            for word in words {
                if let Some((&last, before)) = word.split_last()
                    && history.tokens().ends_with(before)
                {
                    ban(logits, &[last]);
                }
            }
        }
        Stage::LogitBias(bias) => {
            for &(t, by) in bias {
                if let Some(x) = logits.get_mut(t as usize) {
                    *x += by;
                }
            }
        }
        Stage::MinTokens { count, banned } => {
            if history.outputs() < *count as usize {
                ban(logits, banned);
            }
        }
        Stage::Penalties {
            repetition,
            presence,
            frequency,
        } => {
            for (t, count) in history.counts() {
                let Some(x) = logits.get_mut(t as usize) else {
                    continue;
                };
                if count.all > 0 {
                    *x = if *x > 0.0 {
                        *x / repetition
                    } else {
                        *x * repetition
                    };
                }
                if count.output > 0 {
                    *x -= frequency * count.output as f32;
                    *x -= presence;
                }
            }
        }
        Stage::Temperature(t) => {
            if !(t.is_finite() && *t > 0.0) {
                return Err(bad_temperature(*t));
            }
            for x in logits {
                *x /= t;
            }
        }
        Stage::TopK(k) => top_k(logits, *k as usize),
        Stage::TopP(p) => top_p(isa, logits, *p)?,
        Stage::MinP(p) => {
            let norm = LogSumExp::of(isa, logits);
            let bar = f64::from(norm.max) + f64::from(*p).ln();
            remove(logits, |x| f64::from(x) < bar);
        }
        Stage::TypicalP(mass) => typical_p(isa, logits, *mass)?,
        other => {
            return Err(format!(
                "this device does not know the sampling stage {other:?}; update the server"
            ));
        }
    }
    Ok(())
}

fn ban(logits: &mut [f32], tokens: &[TokenId]) {
    for &t in tokens {
        if let Some(x) = logits.get_mut(t as usize) {
            *x = GONE;
        }
    }
}

fn remove(logits: &mut [f32], gone: impl Fn(f32) -> bool) {
    for x in logits {
        if gone(*x) {
            *x = GONE;
        }
    }
}

fn top_k(logits: &mut [f32], k: usize) {
    if k == 0 || k >= logits.len() {
        return;
    }
    let bar = if k <= 64 {
        let list = best(logits, k);
        logits[list[k - 1] as usize]
    } else {
        let mut copy = logits.to_vec();
        *copy.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
    };
    remove(logits, |x| x < bar);
}

/// Walks tokens from the best on, in lists that grow fourfold, until `visit` has had enough.
pub(super) fn walk(keys: &[f32], mut visit: impl FnMut(TokenId) -> bool) {
    let (mut seen, mut n) = (0, 32);
    loop {
        let list = best(keys, n);
        for &t in &list[seen..] {
            if !visit(t) {
                return;
            }
        }
        if list.len() == keys.len() {
            return;
        }
        (seen, n) = (n, n.saturating_mul(8));
    }
}

/// The logits, when a distribution can be made of them.
fn normalized(isa: Isa, logits: &[f32]) -> Result<LogSumExp, String> {
    let norm = LogSumExp::of(isa, logits);
    norm.failure()
        .map_or(Ok(norm), |_| Err(NO_PROBABILITIES.to_owned()))
}

fn top_p(isa: Isa, logits: &mut [f32], p: f32) -> Result<(), String> {
    if p >= 1.0 {
        return Ok(());
    }
    let norm = normalized(isa, logits)?;
    let mut kept = Vec::new();
    let mut mass = 0f64;
    walk(logits, |t| {
        let x = logits[t as usize];
        if x == GONE {
            return false;
        }
        kept.push((t as usize, x));
        mass += (f64::from(x) - f64::from(norm.max) - norm.log_sum).exp();
        mass < f64::from(p)
    });
    logits.fill(GONE);
    for (t, x) in kept {
        logits[t] = x;
    }
    Ok(())
}

/// Keeps the tokens whose surprise is closest to the entropy until they hold `mass`; ties with the last are kept, as in
/// Hugging Face's `TypicalLogitsWarper`.
fn typical_p(isa: Isa, logits: &mut [f32], mass: f32) -> Result<(), String> {
    if mass >= 1.0 {
        return Ok(());
    }
    let norm = normalized(isa, logits)?;
    let log_prob = |x: f32| f64::from(x) - f64::from(norm.max) - norm.log_sum;
    let entropy: f64 = logits
        .iter()
        .filter(|x| **x > GONE)
        .map(|&x| {
            let l = log_prob(x);
            -l * l.exp()
        })
        .sum();
    // Closeness as a key: larger is more typical.
    let keys: Vec<f32> = logits
        .iter()
        .map(|&x| {
            if x == GONE {
                GONE
            } else {
                -((-log_prob(x) - entropy).abs() as f32)
            }
        })
        .collect();
    let mut sum = 0f64;
    let mut bar = GONE;
    walk(&keys, |t| {
        if keys[t as usize] == GONE {
            return false;
        }
        bar = keys[t as usize];
        sum += log_prob(logits[t as usize]).exp();
        sum < f64::from(mass)
    });
    for (x, key) in logits.iter_mut().zip(keys) {
        if key < bar {
            *x = GONE;
        }
    }
    Ok(())
}

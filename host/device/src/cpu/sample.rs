//! Log-probabilities, sampling stages and draws over one row of logits.

use guesthouse_engine::{Draw as DrawKind, RandomKey, SampleOutcome, Sampled, Stage, TokenId};

pub(crate) use super::simd::Isa;
use crate::device::Draw;
use crate::history::History;
use philox::{Purpose, uniform, words};

mod cutoffs;
pub(crate) mod mirostat;
pub mod philox;
pub(crate) mod refusal;
mod rows;
mod select;
mod softmax;
mod stages;
pub mod watermark;

#[cfg(test)]
mod tests;

pub use rows::{MOST_CANDIDATES, draw_row};
pub(crate) use rows::{NO_HIDDEN, TOO_MANY_ROWS, guest_uniform, with_hidden};
pub(crate) use select::best;
use softmax::LogSumExp;

/// Log-probability, rank and best tokens of a known token (a prompt's next one).
pub(crate) fn score(isa: Isa, logits: &[f32], target: TokenId, top: u32) -> Sampled {
    let norm = LogSumExp::of(isa, logits);
    let raw = report(logits, norm, target, top);
    Sampled {
        token: target,
        logprob: raw.0,
        rank: raw.1,
        processed_logprob: raw.0,
        mu: None,
        top: raw.2,
    }
}

/// Log-probability and rank of a token, and the best tokens.
fn report(
    logits: &[f32],
    norm: LogSumExp,
    token: TokenId,
    top: u32,
) -> (f32, u32, Vec<(TokenId, f32)>) {
    let logit = logits[token as usize];
    let higher = logits.iter().filter(|&&x| x > logit).count();
    (
        norm.log_prob(logit),
        u32::try_from(higher + 1).unwrap_or(u32::MAX),
        best_of(logits, norm, top),
    )
}

/// The best tokens with their log-probabilities.
fn best_of(logits: &[f32], norm: LogSumExp, top: u32) -> Vec<(TokenId, f32)> {
    best(logits, top as usize)
        .into_iter()
        .map(|t| (t, norm.log_prob(logits[t as usize])))
        .collect()
}

/// Copies of a row, kept from draw to draw.
#[derive(Default)]
pub(crate) struct Work {
    masked: Vec<f32>,
    processed: Vec<f32>,
}

/// Applies a draw's mask and stages to a row of logits and chooses a token.
pub(crate) fn draw(isa: Isa, logits: &[f32], draw: &Draw<'_>, work: &mut Work) -> SampleOutcome {
    let logits = match draw.mask {
        None => logits,
        Some(mask) => {
            let allowed = |t: usize| {
                mask.get(t / 32)
                    .is_some_and(|word| word >> (t % 32) & 1 == 1)
            };
            let masked = logits
                .iter()
                .enumerate()
                .map(|(t, &x)| if allowed(t) { x } else { f32::NEG_INFINITY });
            work.masked.clear();
            work.masked.extend(masked);
            &work.masked
        }
    };
    let raw = LogSumExp::of(isa, logits);
    match raw.failure() {
        Some(MASKED) => return SampleOutcome::Refused(MASKED.to_owned()),
        Some(reason) => return SampleOutcome::Failed(reason.to_owned()),
        None => {}
    }
    let plan = draw.plan;
    let mut run = stages::Run::new(isa, draw);
    let processed: &[f32] = if plan.stages.is_empty() {
        logits
    } else {
        work.processed.clear();
        work.processed.extend_from_slice(logits);
        for stage in &plan.stages {
            if let Err(reason) = run.apply(stage, &mut work.processed) {
                return SampleOutcome::Refused(reason);
            }
        }
        &work.processed
    };
    let norm = if plan.stages.is_empty() {
        raw
    } else {
        LogSumExp::of(isa, processed)
    };
    if norm.failure().is_some() {
        let stages: Vec<&str> = plan.stages.iter().map(stage_name).collect();
        return SampleOutcome::Refused(nothing_left(&stages));
    }
    let both = rows::Both {
        raw: (logits, raw),
        processed: (processed, norm),
    };
    let token = match plan.draw {
        DrawKind::Candidates(asked) => {
            return SampleOutcome::Candidates(Box::new(rows::candidates(both, draw, asked)));
        }
        DrawKind::Row(_) => return SampleOutcome::Row(Box::new(rows::whole(both, draw))),
        DrawKind::Greedy => select::argmax(processed),
        DrawKind::Sample => select::gumbel(processed, draw.random, position_of(draw.history)),
    };
    let (reported, of) = both.reported(draw.logprobs);
    let (logprob, rank, top) = report(reported, of, token, draw.top);
    let processed_logprob = norm.log_prob(processed[token as usize]);
    SampleOutcome::Token(Sampled {
        token,
        logprob,
        rank,
        processed_logprob,
        top,
        mu: run.mirostat.map(|(state, entered, norm)| {
            state.after(mirostat::surprise(norm.log_prob(entered[token as usize])))
        }),
    })
}

/// Number of tokens before the drawn one, as random numbers are keyed by it.
pub(crate) fn position_of(history: &History) -> u32 {
    u32::try_from(history.tokens().len()).unwrap_or(u32::MAX)
}

/// Whether the n-th XTC stage of a plan applies to the token at a position.
pub(crate) fn xtc_applies(random: RandomKey, position: u32, n: u32, probability: f32) -> bool {
    uniform(words(random, position, Purpose::Xtc, n)[0]) < probability
}

/// Why a row cannot be sampled, said alike by all devices: logits with NaN or +inf,
pub(crate) const NOT_FINITE: &str =
    "the model's logits are not finite; check the weights and the rope settings";
/// logits that are all -inf,
pub(crate) const MASKED: &str = "every token is masked out";
/// stages that look at probabilities with no token left,
pub(crate) const NO_PROBABILITIES: &str =
    "no token is left before a stage that needs probabilities";

/// a temperature that does not divide,
pub(crate) fn bad_temperature(t: f32) -> String {
    format!("temperature {t}: expected a finite number above 0")
}

/// and no token left after stages of these names.
pub(crate) fn nothing_left(stages: &[&str]) -> String {
    format!(
        "no token is left after the sampling stages {}",
        stages.join(", ")
    )
}

/// A stage in words.
pub(crate) fn stage_name(stage: &Stage) -> &'static str {
    match stage {
        Stage::AllowedTokens(_) => "allowed tokens",
        Stage::BannedTokens(_) => "banned tokens",
        Stage::BadWords(_) => "bad words",
        Stage::LogitBias(_) => "logit bias",
        Stage::MinTokens { .. } => "min tokens",
        Stage::Penalties { .. } => "penalties",
        Stage::Temperature(_) => "temperature",
        Stage::TopK(_) => "top-k",
        Stage::TopP(_) => "top-p",
        Stage::MinP(_) => "min-p",
        Stage::TypicalP(_) => "typical-p",
        Stage::NoRepeatNgram(_) => "no-repeat-ngram",
        Stage::Dry(_) => "dry",
        Stage::DynamicTemperature { .. } => "dynamic temperature",
        Stage::TopNSigma(_) => "top-n-sigma",
        Stage::EpsilonCutoff(_) => "epsilon cutoff",
        Stage::EtaCutoff(_) => "eta cutoff",
        Stage::TailFree(_) => "tail-free",
        Stage::Xtc { .. } => "xtc",
        Stage::Mirostat1 { .. } => "mirostat 1",
        Stage::Mirostat2 { .. } => "mirostat 2",
        Stage::Watermark(_) => "watermark",
        _ => "unknown",
    }
}

//! Rows that guests see, and draws from rows that they wrote.

use guesthouse_engine::{
    Asked, Candidates, Hidden, LogitsRow, LogprobsMode, RandomKey, SampleOutcome, TokenId,
};

use super::philox::{Purpose, uniform, words};
use super::softmax::LogSumExp;
use super::{MASKED, best_of, position_of, select};
use crate::device::Draw;
use crate::error::{DeviceError, Result};

#[cfg(test)]
mod tests;

/// Why a whole row cannot be handed out, on a device that has room for so many.
pub(crate) const TOO_MANY_ROWS: &str =
    "more than 64 whole rows in one step; ask for candidates, or run fewer such sequences at once";

/// Why hidden states cannot be shown.
pub(crate) const NO_HIDDEN: &str =
    "the sampler asks for hidden states, but this model's logits do not come from a linear head";

/// Most candidates of a draw; more are not handed out.
pub const MOST_CANDIDATES: u32 = 1024;

/// A row before the stages and after them, each with its softmax's sum.
#[derive(Clone, Copy)]
pub(super) struct Both<'a> {
    pub raw: (&'a [f32], LogSumExp),
    pub processed: (&'a [f32], LogSumExp),
}

impl<'a> Both<'a> {
    /// The row whose log-probabilities are reported.
    pub(super) fn reported(self, mode: LogprobsMode) -> (&'a [f32], LogSumExp) {
        match mode {
            LogprobsMode::Raw => self.raw,
            LogprobsMode::Processed => self.processed,
        }
    }
}

/// The best of a row for a guest; hidden states are not known here.
pub(super) fn candidates(both: Both<'_>, draw: &Draw<'_>, asked: Asked) -> Candidates {
    let (processed, norm) = both.processed;
    let (reported, of) = both.reported(draw.logprobs);
    let mut tokens = select::best(processed, asked.candidates.min(MOST_CANDIDATES) as usize);
    tokens.retain(|&t| processed[t as usize] > f32::NEG_INFINITY);
    let pick = |row: &[f32]| -> Vec<f32> { tokens.iter().map(|&t| row[t as usize]).collect() };
    let shown = pick(reported);
    Candidates {
        logits: pick(processed),
        logprobs: shown.iter().map(|&x| of.log_prob(x)).collect(),
        ranks: ranks(reported, &shown),
        log_sum_exp: (f64::from(norm.max) + norm.log_sum) as f32,
        entropy: entropy(processed, norm) as f32,
        uniform: guest_uniform(draw),
        top: best_of(reported, of, draw.top),
        hidden: Vec::new(),
        tokens,
    }
}

/// A whole row for a guest; hidden states are not known here.
pub(super) fn whole(both: Both<'_>, draw: &Draw<'_>) -> LogitsRow {
    let (raw, processed) = (both.raw.0, both.processed.0);
    let (reported, of) = both.reported(draw.logprobs);
    LogitsRow {
        logits: processed.to_vec(),
        raw: (raw != processed).then(|| raw.to_vec()),
        uniform: guest_uniform(draw),
        top: best_of(reported, of, draw.top),
        hidden: Vec::new(),
    }
}

/// Adds the hidden state to what a guest is given, where the plan asks for it. `state` is empty where the model has none.
pub(crate) fn with_hidden(
    mut outcome: SampleOutcome,
    draw: &Draw<'_>,
    state: impl FnOnce() -> Vec<f32>,
) -> SampleOutcome {
    let shown = draw.plan.draw.asked().map(|asked| asked.hidden);
    let hidden = match &mut outcome {
        SampleOutcome::Candidates(c) => &mut c.hidden,
        SampleOutcome::Row(r) => &mut r.hidden,
        _ => return outcome,
    };
    if shown == Some(Hidden::Shown) {
        *hidden = state();
        if hidden.is_empty() {
            return SampleOutcome::Failed(NO_HIDDEN.to_owned());
        }
    }
    outcome
}

/// The number in (0, 1) that a guest is given with a row.
pub(crate) fn guest_uniform(draw: &Draw<'_>) -> f32 {
    let position = position_of(draw.history);
    uniform(words(draw.random, position, Purpose::Guest, 0)[0])
}

/// Of each of some logits: logits of the row above it, plus one.
fn ranks(row: &[f32], of: &[f32]) -> Vec<u32> {
    let mut bars = of.to_vec();
    bars.sort_unstable_by(|a, b| b.total_cmp(a));
    let least = bars.last().copied().unwrap_or(f32::INFINITY);
    // above[i]: logits that are above bars[i], and not above bars[i - 1].
    let mut above = vec![0u32; bars.len() + 1];
    for &x in row.iter().filter(|&&x| x > least) {
        above[bars.partition_point(|&bar| bar >= x)] += 1;
    }
    let mut sum = 0;
    for n in &mut above {
        sum += *n;
        *n = sum;
    }
    of.iter()
        .map(|&x| above[bars.partition_point(|&bar| bar > x)] + 1)
        .collect()
}

/// Entropy in nats of a row's softmax, summed in f64; what is -inf adds nothing.
fn entropy(row: &[f32], norm: LogSumExp) -> f64 {
    let above: f64 = row
        .iter()
        .map(|&x| f64::from(x) - f64::from(norm.max))
        .filter(|d| *d > f64::NEG_INFINITY)
        .map(|d| d * d.exp())
        .sum();
    (norm.log_sum - above / norm.log_sum.exp()).max(0.0)
}

/// The token that [`Draw::Sample`](guesthouse_engine::Draw::Sample) chooses from processed logits `[vocab]`: the largest
/// `logit_i - ln(-ln(u_i))`, with `u_i` keyed by the random key, the position (number of tokens before the drawn one) and
/// the token id, as [`philox`](super::philox) says. Tokens of -inf are never drawn. Equal inputs give equal tokens, on
/// every device.
///
/// # Errors
/// [`DeviceError::Logits`] when the row is empty, holds NaN or +inf, or nothing in it is above -inf.
pub fn draw_row(logits: &[f32], random: RandomKey, position: u32) -> Result<TokenId> {
    let error = |why: &str| DeviceError::Logits {
        found: logits.len(),
        why: why.to_owned(),
    };
    if let Some(at) = logits
        .iter()
        .position(|x| x.is_nan() || *x == f32::INFINITY)
    {
        let why = format!("logit {} of token {at} is not finite", logits[at]);
        return Err(error(&why));
    }
    if logits.iter().all(|x| *x == f32::NEG_INFINITY) {
        return Err(error(MASKED));
    }
    Ok(select::gumbel(logits, random, position))
}

//! Rows that guests see, and draws from rows that they wrote.

use guesthouse_engine::{RandomKey, TokenId};

use super::{MASKED, select};
use crate::error::{DeviceError, Result};

#[cfg(test)]
mod tests;

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

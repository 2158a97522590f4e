//! From tokens to the text that a client sees: detokenizing, stop strings, log-probabilities.
//!
//! One [`ChoiceText`] per choice, run by the request's own task.

mod breakers;
mod choice;
mod encoding;
mod logprobs;
mod stop;

pub use breakers::BreakingTokens;
pub use choice::{ChoiceText, Ending, TextParams};
pub use encoding::EncodingLimits;
pub use logprobs::{TokenSpeller, finite};
pub use stop::{StopMatcher, StopSet};

//! A sampling plan: what the device does to one row of logits, as data.

use crate::TokenId;
use serde::{Deserialize, Serialize};

/// One transformation of a row of logits. Stages apply in list order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Stage {
    /// All other tokens get -inf.
    AllowedTokens(Vec<TokenId>),
    /// These tokens get -inf.
    BannedTokens(Vec<TokenId>),
    /// The last token of a listed sequence gets -inf where the tokens before it end the history.
    BadWords(Vec<Vec<TokenId>>),
    /// Added to logits.
    LogitBias(Vec<(TokenId, f32)>),
    /// `banned` get -inf while fewer than `count` tokens were generated.
    MinTokens {
        /// Outputs before which the ban holds.
        count: u32,
        /// Usually the end tokens.
        banned: Vec<TokenId>,
    },
    /// Repetition (over prompt and output; positive logits divided, others multiplied), frequency (times count
    /// in the output) and presence (once per token of the output), in this order.
    Penalties {
        /// 1 is none.
        repetition: f32,
        /// 0 is none.
        presence: f32,
        /// 0 is none.
        frequency: f32,
    },
    /// Logits divided by it; finite and above 0.
    Temperature(f32),
    /// Keep the best k; ties with the k-th are kept.
    TopK(u32),
    /// Keep the smallest set of best tokens whose probabilities reach p, at least one.
    TopP(f32),
    /// Keep tokens with probability at least `p` times the best one's.
    MinP(f32),
    /// Locally typical sampling (Meister et al. 2022).
    TypicalP(f32),
}

/// How the token is chosen from the processed logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Draw {
    /// The best; the lowest id among equals.
    Greedy,
    /// Gumbel-max: `argmax(logit_i - ln(-ln(u_i)))`, `u_i` from Philox keyed by [`RandomKey`], position and token id.
    Sample,
}

/// What a sampler guest returns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingPlan {
    /// Applied in order.
    pub stages: Vec<Stage>,
    /// Final choice.
    pub draw: Draw,
}

impl SamplingPlan {
    /// Greedy with no stages.
    #[must_use]
    pub fn greedy() -> Self {
        Self {
            stages: Vec::new(),
            draw: Draw::Greedy,
        }
    }
}

/// Key of a sequence's random numbers. Draws depend on it, the position and the token id alone, never on the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RandomKey {
    /// The request's seed.
    pub seed: u64,
    /// The choice's index, or a branch's lineage.
    pub lineage: u32,
}

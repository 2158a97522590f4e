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
    /// Tokens that would repeat an n-gram of the history get -inf (Hugging Face's `no_repeat_ngram_size`); 1 or more.
    NoRepeatNgram(u32),
    /// "Don't repeat yourself": a growing penalty on tokens that would go on with a repetition.
    Dry(Dry),
    /// Temperature by entropy: `min + (max - min) · (H / ln m)^exponent`, H in nats over the m tokens that are left.
    DynamicTemperature {
        /// At entropy 0; above 0.
        min: f32,
        /// At the entropy of equal probabilities; at least `min`.
        max: f32,
        /// Above 0.
        exponent: f32,
    },
    /// Keep logits of at least the largest minus this times the standard deviation of those that are left (Tang et al. 2024).
    TopNSigma(f32),
    /// Keep probabilities of at least this, and the best token (Hewitt et al. 2022).
    EpsilonCutoff(f32),
    /// Keep probabilities of at least `min(ε, √ε · e^-H)`, and the best token (Hewitt et al. 2022).
    EtaCutoff(f32),
    /// Tail-free sampling: from the best on, until the normalised absolute second differences of the sorted
    /// probabilities reach z.
    TailFree(f32),
    /// "Exclude top choices": with `probability`, of the tokens of at least `threshold` only the least likely stays.
    Xtc {
        /// Chance that it applies to a token, 0 to 1.
        probability: f32,
        /// A probability; above 0.5 never has an effect.
        threshold: f32,
    },
    /// Mirostat (Basu et al. 2021), the first algorithm: top-k by an estimate of Zipf's exponent. Its state is
    /// [`Sampled::mu`](crate::Sampled::mu).
    Mirostat1 {
        /// Target surprise, bits.
        tau: f32,
        /// Learning rate.
        eta: f32,
    },
    /// Mirostat, the second algorithm: keep tokens whose surprise is at most mu, and the best one.
    Mirostat2 {
        /// Target surprise, bits.
        tau: f32,
        /// Learning rate.
        eta: f32,
    },
    /// Soft watermark (Kirchenbauer et al. 2023): `delta` is added to the logits of the green tokens, a share `gamma` of
    /// the vocabulary that depends on the key and the `context` tokens before.
    Watermark(Watermark),
}

/// See [`Stage::Dry`]. The penalty `multiplier · base^(len - allowed_length)` is subtracted from the logit of a token that
/// would make the longest repetition that ends the history one longer, where that repetition has `len` tokens and
/// `len >= allowed_length`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dry {
    /// 0 or more.
    pub multiplier: f32,
    /// At least 1.
    pub base: f32,
    /// Repetitions of fewer tokens are free.
    pub allowed_length: u32,
    /// Tokens of the history's end that are looked at; 0 is all.
    pub range: u32,
    /// No repetition reaches over one of these.
    pub breakers: Vec<TokenId>,
}

/// See [`Stage::Watermark`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Watermark {
    /// Secret.
    pub key: u64,
    /// Share of green tokens, above 0 and below 1.
    pub gamma: f32,
    /// Added to their logits.
    pub delta: f32,
    /// Tokens before that choose the green ones, 1 to 8.
    pub context: u32,
}

/// How the token is chosen from the processed logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Draw {
    /// The best; the lowest id among equals.
    Greedy,
    /// Gumbel-max: `argmax(logit_i - ln(-ln(u_i)))`, `u_i` from Philox keyed by [`RandomKey`], position and token id.
    Sample,
    /// None: a guest chooses among the best candidates ([`SampleOutcome::Candidates`](crate::SampleOutcome::Candidates)).
    Candidates(Asked),
    /// None: a guest chooses from whole rows ([`SampleOutcome::Row`](crate::SampleOutcome::Row)).
    Row(Asked),
}

impl Draw {
    /// What a guest that chooses asked for.
    #[must_use]
    pub fn asked(&self) -> Option<Asked> {
        match *self {
            Self::Greedy | Self::Sample => None,
            Self::Candidates(asked) | Self::Row(asked) => Some(asked),
        }
    }
}

/// What a guest that chooses tokens wants to see of each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Best candidates; at least 1. Means nothing for whole rows.
    pub candidates: u32,
    /// Whether the branches are one search or choices of their own.
    pub branching: Branching,
    /// Whether the last position's hidden state is wanted: what the logits head reads.
    pub hidden: Hidden,
}

/// What the rows of one request are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Branching {
    /// Each of the request's `n` choices is one branch from the beginning; none forks; tokens stream.
    Choices,
    /// One branch at first, whatever `n` is. Branches fork, finish with a score and end; the guest selects at most `n` of
    /// the finished ones at the end; nothing streams before.
    Search,
}

/// Whether hidden states are handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hidden {
    /// No.
    Kept,
    /// Yes, f32.
    Shown,
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

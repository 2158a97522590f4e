//! What the engine is asked to do.

use crate::{Chooser, Constraint, EventSink, LogprobsMode, RequestId, SamplingPlan, Task, TokenId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Root of a request's prefix-cache keys. Requests share blocks only when their salts are equal, so it must cover
/// everything but tokens that KV contents depend on, and the tenant.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct CacheSalt(pub [u8; 32]);

/// Smaller runs earlier (as in vLLM); equals run in order of arrival.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Priority(pub i32);

/// Whose request it is: what it may hold, and its part of the machine where others want it too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The tenant's number; 0 where there are none.
    pub tenant: u64,
    /// Its part, relative to that of other tenants; at least 1.
    pub weight: u32,
    /// Most sequences of this tenant that run at once; further ones wait.
    pub max_running: Option<u32>,
    /// Most KV blocks that they hold, of all groups together; further ones wait.
    pub max_blocks: Option<u32>,
}

impl Default for Owner {
    fn default() -> Self {
        Self {
            tenant: 0,
            weight: 1,
            max_running: None,
            max_blocks: None,
        }
    }
}

/// One request: a prompt and the `n` choices that continue it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Unique over the engine's life.
    pub id: RequestId,
    /// Root of prefix-cache keys.
    pub cache_salt: CacheSalt,
    /// At least one token, all within the vocabulary.
    pub prompt: Vec<TokenId>,
    /// When to stop and what to report.
    pub params: GenerationParams,
    /// What the sampler guest returned.
    pub sampling: Arc<SamplingPlan>,
    /// Key of the random numbers, with the choice's index as lineage.
    pub seed: u64,
    /// Place in the queue, and who is preempted last.
    pub priority: Priority,
    /// Whose it is.
    pub owner: Owner,
}

/// What belongs to a request but is no data.
pub struct Attachments {
    /// Where its events go.
    pub sink: Box<dyn EventSink>,
    /// What its choices must follow, from their first token on; each forks its own.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Needed where the sampling plan's draw asks for one.
    pub chooser: Option<Box<dyn Chooser>>,
}

impl<S: EventSink + 'static> From<Box<S>> for Attachments {
    fn from(sink: Box<S>) -> Self {
        Self::from(sink as Box<dyn EventSink>)
    }
}

impl From<Box<dyn EventSink>> for Attachments {
    fn from(sink: Box<dyn EventSink>) -> Self {
        Self {
            sink,
            constraint: None,
            chooser: None,
        }
    }
}

impl std::fmt::Debug for Attachments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attachments")
            .field("constraint", &self.constraint.is_some())
            .field("chooser", &self.chooser.as_ref().map(|c| c.module()))
            .finish_non_exhaustive()
    }
}

/// When to stop and what to report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GenerationParams {
    /// Whether the prompt is continued or embedded. To embed one, `max_tokens` is 0, `n` is 1 and no log-probabilities are
    /// asked for.
    pub task: Task,
    /// Most tokens per choice, the stop token included. 0 only together with `prompt_logprobs` (scoring a prompt), or to
    /// embed.
    pub max_tokens: u32,
    /// Choices; at least 1.
    pub n: u32,
    /// EOS ids (those of `generation_config.json` too) and the request's stop token ids. Whoever ignores EOS leaves
    /// it out.
    pub stop_tokens: Vec<TokenId>,
    /// With each token: so many best ones. `None` and `Some(0)` both report the chosen token's own log-probability; but with
    /// `None`, tokens that a grammar forces are not computed one by one, and report 0.
    pub top_logprobs: Option<u32>,
    /// Log-probabilities of the prompt's tokens from the second on, each with so many best ones.
    pub prompt_logprobs: Option<u32>,
    /// Of which logits the log-probabilities are.
    pub logprobs: LogprobsMode,
    /// Most tokens guessed per step from the sequence's own n-grams (prompt lookup); 0 is none. What is generated does
    /// not depend on it.
    pub drafts: u32,
}

impl Default for GenerationParams {
    fn default() -> Self {
        Self {
            task: Task::Generate,
            max_tokens: 16,
            n: 1,
            stop_tokens: Vec::new(),
            top_logprobs: None,
            prompt_logprobs: None,
            logprobs: LogprobsMode::Raw,
            drafts: 0,
        }
    }
}

//! The device as the engine sees it.

#[allow(unused_imports)] // Named by documentation.
use crate::SampleOutcome;
use crate::{StepOutput, StepPlan, Ticket};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a cache group keeps, as far as block accounting goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupKind {
    /// A block per `block_size` positions.
    Full,
    /// Likewise, but blocks wholly before the last `window` positions may be dropped.
    Window {
        /// Positions a query sees, itself included.
        window: u32,
    },
    /// One block per sequence: a state that each token updates. No prefix hits, no partial sharing. A row that starts at 0
    /// begins with an empty state.
    Recurrent,
}

/// One cache group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupInfo {
    /// What it keeps.
    pub kind: GroupKind,
    /// Blocks that exist.
    pub blocks: u32,
}

/// What a model makes of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Task {
    /// Tokens that follow, one after the other.
    Generate,
    /// One vector.
    Embed,
}

/// Fixed properties of an executor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecutorInfo {
    /// Positions per block.
    pub block_size: u32,
    /// Cache groups in id order. Empty for a model without caches.
    pub groups: Vec<GroupInfo>,
    /// Slots.
    pub slots: u32,
    /// Most tokens in one step.
    pub max_step_tokens: u32,
    /// What a step costs whatever it computes, in tokens: it takes about as long as so many more (reading the weights, where
    /// arithmetic is cheap).
    pub step_overhead: u32,
    /// Longest sequence, tokens.
    pub max_len: u32,
    /// Size of the vocabulary.
    pub vocab: u32,
    /// The prompt must run as one chunk (prefix-LM masks, means over a prompt).
    pub whole_prompt: bool,
    /// How cached values depend on the length of their sequence.
    pub lengths: LengthRules,
    /// What the model was made for. One that embeds answers each sample with [`SampleOutcome::Embedding`](crate::SampleOutcome::Embedding).
    pub task: Task,
}

/// How what is cached of a position depends on the length of its sequence. The default: not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthRules {
    /// Values of a prompt longer than this depend on the prompt's length (dynamic rope).
    pub by_prompt_above: Option<u32>,
    /// Lengths, ascending. A sequence that grows beyond one is computed anew, since all its values differ (longrope).
    pub anew_above: Vec<u32>,
}

impl LengthRules {
    /// How many of [`Self::anew_above`] a sequence of `len` tokens is beyond.
    #[must_use]
    pub fn passed(&self, len: u32) -> usize {
        self.anew_above.partition_point(|&above| len > above)
    }
}

/// Why a device can go no further. The engine ends every request with it and reports itself dead.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "the device failed in {during}: {message}; restart the server, and see its log for the cause"
)]
pub struct ExecutorError {
    /// "launch", "sample" or "collect".
    pub during: &'static str,
    /// What the device said.
    pub message: String,
}

/// Runs steps in the order of their launch. Two may be under way at once.
///
/// Per ticket the engine calls `launch`, then `sample`, then `collect`, each once. `launch` and `sample` only
/// enqueue; `collect` waits. Forward pass and sampling are separate so that masks can be computed meanwhile.
pub trait Executor: Send {
    /// Fixed properties.
    fn info(&self) -> &ExecutorInfo;

    /// Enqueues the forward pass.
    ///
    /// # Errors
    /// When the device is lost. A plan that breaks the contract is an error too, never undefined behaviour.
    fn launch(&mut self, plan: StepPlan) -> Result<Ticket, ExecutorError>;

    /// Enqueues sampling of a launched step.
    ///
    /// # Errors
    /// When the device is lost.
    fn sample(&mut self, ticket: Ticket, masks: Masks) -> Result<(), ExecutorError>;

    /// Waits for a sampled step. Tickets are collected in launch order.
    ///
    /// # Errors
    /// When the device is lost.
    fn collect(&mut self, ticket: Ticket) -> Result<StepOutput, ExecutorError>;
}

/// Token masks of one step's samples (structured output).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Masks {
    /// Indices of the samples that have a mask, ascending; the others are free.
    pub samples: Vec<u32>,
    /// Words per mask: bit `t % 32` of word `t / 32` allows token t.
    pub stride: usize,
    /// `[samples, stride]`. Whoever made it may write the next masks into it when no one else holds it any more.
    pub words: Arc<Vec<u32>>,
}

impl Masks {
    /// The mask of sample 0, 1, … without end.
    pub fn by_sample(&self) -> impl Iterator<Item = Option<&[u32]>> + '_ {
        let masks = self.words.chunks_exact(self.stride.max(1));
        let mut masked = self.samples.iter().zip(masks).peekable();
        (0..).map(move |sample| {
            masked
                .next_if(|(index, _)| **index == sample)
                .map(|(_, words)| words)
        })
    }
}

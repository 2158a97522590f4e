//! What a device must be able to do, and the batch that it is given.

use std::time::Duration;

use guesthouse_engine::{
    BlockCopy, BlockId, ExecutorInfo, LogprobsMode, RandomKey, SampleOutcome, Sampled,
    SamplingPlan, Ticket, TokenId,
};

use crate::error::Result;
use crate::history::History;
use crate::prompt::{PromptMarks, PromptRules};

/// Bytes a device holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Weights in their packed form, norms and tables.
    pub weights: usize,
    /// Keys and values.
    pub kv: usize,
    /// Activations of the largest step, and scratch.
    pub arena: usize,
}

/// The tokens of one step.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    /// Ids, row after row. Those that `feeds` names are not known yet and stand as 0.
    pub tokens: &'a [TokenId],
    /// Tokens that earlier, unfinished steps choose; empty unless [`Device::feeding`] allows them.
    pub feeds: &'a [Feed],
    /// Sequences, in order of their tokens.
    pub rows: &'a [BatchRow<'a>],
    /// Indices into `tokens` whose logits are kept for [`Device::sample`].
    pub sampled: &'a [usize],
    /// Prompt tokens to score.
    pub scored: &'a [Score],
}

/// A token that an unfinished step chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feed {
    /// Index into [`Batch::tokens`].
    pub token: usize,
    /// The step.
    pub ticket: Ticket,
    /// Index of the draw in that step's [`Device::sample`].
    pub draw: usize,
}

/// Where a step's tokens may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feeding {
    /// All are known on the host when a step is launched.
    Host,
    /// Those that a launched step chooses stay on the device, so that the next one need not wait for the host.
    Device,
}

/// What a step produced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finished {
    /// One per draw.
    pub samples: Vec<SampleOutcome>,
    /// One per [`Batch::scored`].
    pub scores: Vec<Sampled>,
    /// Time for which the device had nothing to do before this step, though it followed another directly.
    pub exposed: Duration,
    /// Time from the beginning of its forward pass to the end of its sampling.
    pub took: Duration,
}

/// One sequence's part of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchRow<'a> {
    /// Slot of the sequence.
    pub slot: u32,
    /// Differs between all sequences that ever were in the slot.
    pub generation: u64,
    /// Index of its first token in [`Batch::tokens`].
    pub first: usize,
    /// Position of that token.
    pub start: u32,
    /// Tokens.
    pub len: u32,
    /// Length of the original prompt.
    pub prompt_len: u32,
    /// Tokens known at admission: the prompt, or more after a preemption.
    pub admitted_len: u32,
    /// What [`Device::prompt_rules`] find in the prompt.
    pub marks: PromptMarks,
    /// Block table of each cache group; covers `start + len` positions.
    pub tables: &'a [Vec<BlockId>],
}

/// A prompt token whose log-probability is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Score {
    /// Index into [`Batch::tokens`] of the token before it.
    pub token: usize,
    /// The token.
    pub target: TokenId,
    /// Best tokens to report.
    pub top: u32,
}

/// One draw.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// Index into [`Batch::sampled`].
    pub logits: usize,
    /// Stages and draw.
    pub plan: &'a SamplingPlan,
    /// Tokens so far, for penalties.
    pub history: &'a History,
    /// Key of the random numbers.
    pub random: RandomKey,
    /// A mirostat stage's bound on surprise, bits; `None` at a sequence's beginning.
    pub mu: Option<f32>,
    /// Bit `t % 32` of word `t / 32` allows token t.
    pub mask: Option<&'a [u32]>,
    /// Best tokens to report.
    pub top: u32,
    /// Of which logits they and the token's log-probability are.
    pub logprobs: LogprobsMode,
}

impl<'a> Draw<'a> {
    /// A draw of a request of its own that reports nothing but its token.
    pub(crate) fn plain(
        logits: usize,
        plan: &'a SamplingPlan,
        history: &'a History,
        seed: u64,
    ) -> Self {
        Self {
            logits,
            plan,
            history,
            random: RandomKey { seed, lineage: 0 },
            mu: None,
            mask: None,
            top: 0,
            logprobs: LogprobsMode::Raw,
        }
    }
}

/// A device with a loaded model. All calls come from one thread; indices in their arguments have been checked.
pub trait Device: Send {
    /// Fixed properties.
    fn info(&self) -> &ExecutorInfo;

    /// How the model reads prompts.
    fn prompt_rules(&self) -> PromptRules {
        PromptRules::default()
    }

    /// Bytes held.
    fn memory(&self) -> MemoryUse;

    /// Bytes per second that a large copy reads and writes, where measured.
    fn bandwidth(&self) -> Option<f64> {
        None
    }

    /// Copies KV blocks.
    ///
    /// # Errors
    /// When the device is lost.
    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<()>;

    /// Whether a batch may name tokens of unfinished steps.
    fn feeding(&self) -> Feeding {
        Feeding::Host
    }

    /// Begins to run the model over a batch and keeps the logits that `batch.sampled` names until [`Device::sample`].
    ///
    /// # Errors
    /// When the device is lost.
    fn forward(&mut self, ticket: Ticket, batch: &Batch<'_>) -> Result<()>;

    /// Begins to choose tokens from the logits of the last forward pass, which are dropped afterwards. All earlier steps
    /// are finished, so that histories are complete.
    ///
    /// # Errors
    /// When the device is lost.
    fn sample(&mut self, ticket: Ticket, draws: &[Draw<'_>]) -> Result<()>;

    /// Waits for a sampled step. Steps are finished in order.
    ///
    /// # Errors
    /// When the device is lost.
    fn finish(&mut self, ticket: Ticket) -> Result<Finished>;
}

//! What a device must be able to do, and the batch that it is given.

use guesthouse_engine::{
    BlockCopy, BlockId, ExecutorInfo, RandomKey, SampleOutcome, Sampled, SamplingPlan, Ticket,
    TokenId,
};

use crate::error::Result;
use crate::history::History;

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

/// The tokens of one step, resolved: no reference to other steps is left.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    /// Ids, row after row.
    pub tokens: &'a [TokenId],
    /// Sequences, in order of their tokens.
    pub rows: &'a [BatchRow<'a>],
    /// Indices into `tokens` whose logits are kept for [`Device::sample`].
    pub sampled: &'a [usize],
    /// Prompt tokens to score.
    pub scored: &'a [Score],
}

/// One sequence's part of a batch.
#[derive(Clone, Copy, Debug)]
pub struct BatchRow<'a> {
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
    /// Bit `t % 32` of word `t / 32` allows token t.
    pub mask: Option<&'a [u32]>,
    /// Best tokens to report.
    pub top: u32,
}

/// A device with a loaded model. All calls come from one thread; indices in their arguments have been checked.
pub trait Device: Send {
    /// Fixed properties.
    fn info(&self) -> &ExecutorInfo;

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

    /// Runs the model over a batch; keeps the logits that `batch.sampled` names until [`Device::sample`] and returns
    /// one entry per `batch.scored`.
    ///
    /// # Errors
    /// When the device is lost.
    fn forward(&mut self, ticket: Ticket, batch: &Batch<'_>) -> Result<Vec<Sampled>>;

    /// Chooses tokens from the logits of an earlier forward pass, which are dropped afterwards.
    ///
    /// # Errors
    /// When the device is lost.
    fn sample(&mut self, ticket: Ticket, draws: &[Draw<'_>]) -> Result<Vec<SampleOutcome>>;
}

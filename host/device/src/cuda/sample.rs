//! Sampling on the GPU.

use std::sync::Arc;

use guesthouse_engine::{SampleOutcome, Sampled, Ticket};

use super::driver::Gpu;
use super::ops::Tensor;
use super::options::CudaDtype;
use crate::device::{Draw, Score};
use crate::error::Result;

/// Sizes of a sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SamplerLimits {
    /// Elements of a row of logits.
    pub vocab: u32,
    /// Type of logits.
    pub logits: CudaDtype,
    /// Rows of logits at a time.
    pub rows: u32,
    /// Draws of one step.
    pub draws: u32,
    /// Steps whose results may be waited for at once.
    pub steps: u32,
}

/// Draws tokens from logits that are on the GPU. Everything is enqueued; results are fetched once the step's event has
/// passed.
pub(crate) struct Sampler {}

impl Sampler {
    /// Allocates what sampling needs.
    ///
    /// # Errors
    /// When memory is short.
    pub(crate) fn new(gpu: &Arc<Gpu>, limits: SamplerLimits) -> Result<Self> {
        let _ = (gpu, limits);
        Ok(Self {})
    }

    /// Device address of `[draws]` i32: the tokens of the last [`Self::sample`], in draw order, until the next one.
    pub(crate) fn sampled(&self) -> u64 {
        todo!()
    }

    /// Enqueues a step's draws from `logits [rows, vocab]`.
    ///
    /// # Errors
    /// When the driver refuses a launch.
    pub(crate) fn sample(
        &mut self,
        ticket: Ticket,
        logits: Tensor,
        draws: &[Draw<'_>],
    ) -> Result<()> {
        let _ = (ticket, logits, draws);
        todo!()
    }

    /// Enqueues scoring prompt tokens: row i of `logits` is what `scores[i]` is scored by. May be called several times per
    /// step, before its [`Self::sample`].
    ///
    /// # Errors
    /// When the driver refuses a launch.
    pub(crate) fn score(&mut self, ticket: Ticket, logits: Tensor, scores: &[Score]) -> Result<()> {
        let _ = (ticket, logits, scores);
        todo!()
    }

    /// Results of a step whose work has ended on the GPU: one outcome per draw, one entry per score, in order.
    ///
    /// # Errors
    /// When the step is not known.
    pub(crate) fn finish(&mut self, ticket: Ticket) -> Result<(Vec<SampleOutcome>, Vec<Sampled>)> {
        let _ = ticket;
        todo!()
    }
}

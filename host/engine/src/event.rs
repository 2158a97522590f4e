//! What the engine says about a request while it runs.

use crate::{EngineError, Sampled, TokenId};

/// One message. Per request: [`Started`](Event::Started), at most one [`PromptLogprobs`](Event::PromptLogprobs), then
/// each choice's tokens in order and its end; choices interleave. `Failed` without a choice may come at any time and
/// is the last. A cancelled request gets no further events.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The first step of the request was scheduled.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Those found in the prefix cache.
        cached_tokens: u32,
    },
    /// For prompt positions 1, 2, …: the prompt's own token there.
    PromptLogprobs(Vec<Sampled>),
    /// A token, a stop token included.
    Token {
        /// Which of the `n` choices.
        choice: u32,
        /// Token and log-probabilities.
        sampled: Sampled,
    },
    /// The prompt's vector; the only result of a request that embeds.
    Embedding(Vec<f32>),
    /// The choice is complete.
    Finished {
        /// Which of the `n` choices.
        choice: u32,
        /// Why.
        reason: FinishReason,
    },
    /// The request ended early; no event follows.
    Failed {
        /// The choice at fault, if one is.
        choice: Option<u32>,
        /// Why.
        error: EngineError,
    },
}

/// Why a choice is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token came; it was also sent as [`Event::Token`].
    Stop {
        /// Which; `None` where something beyond the engine stopped it (a stop string).
        token: Option<TokenId>,
    },
    /// `max_tokens` were generated, or the prompt was embedded.
    Length,
}

/// Nobody listens any more; the engine cancels the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the receiver of this request's events is gone")]
pub struct Disconnected;

/// Where a request's events go. Called on the engine's thread: must not block.
pub trait EventSink: Send {
    /// Takes one event.
    ///
    /// # Errors
    /// When nobody listens any more.
    fn send(&mut self, event: Event) -> Result<(), Disconnected>;
}

impl EventSink for std::sync::mpsc::Sender<Event> {
    fn send(&mut self, event: Event) -> Result<(), Disconnected> {
        std::sync::mpsc::Sender::send(self, event).map_err(|_| Disconnected)
    }
}

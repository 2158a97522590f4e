//! Guests that choose tokens (tiers 2 and 3), as the engine sees them.

use crate::{RandomKey, RequestId, TokenId};
use std::sync::Arc;

/// One request's guest. Dropped when the request ends; an answer under way is then lost.
pub trait Chooser: Send {
    /// Name of its module, for errors and for who gets grace.
    fn module(&self) -> &str;

    /// Begins to choose for all rows of the request. Must not block; the answer goes to `reply`, from any thread.
    fn choose(&mut self, rows: Rows, reply: Reply);

    /// Begins to pick and order the finished branches of a [`Branching::Search`](crate::Branching::Search), as above.
    fn select(&mut self, finished: Finished, reply: Reply);
}

/// All rows of one request, structure of arrays; one entry per row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// Numbers of the branches, unique within the request.
    pub branches: Vec<u32>,
    /// Which of the choices of the answer before each branch comes from; its own number the first time.
    pub choices: Vec<u32>,
    /// Token before the one to choose.
    pub last: Vec<TokenId>,
    /// Tokens generated so far.
    pub lengths: Vec<u32>,
    /// In (0, 1).
    pub uniform: Vec<f32>,
    /// Keys of random draws, and the positions they are for.
    pub random: Vec<(RandomKey, u32)>,
    /// What is chosen from.
    pub content: Content,
    /// `[rows, hidden size]` if asked for, else empty.
    pub hidden: Vec<f32>,
}

/// What is chosen from.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// The best of each row.
    Candidates {
        /// Per row.
        n: u32,
        /// `[rows, n]`, best first; where there are fewer, the rest has logits of -inf.
        tokens: Vec<TokenId>,
        /// `[rows, n]`.
        logits: Vec<f32>,
        /// `[rows]`, of whole rows.
        log_sum_exp: Vec<f32>,
        /// `[rows]`, of whole rows, nats.
        entropy: Vec<f32>,
    },
    /// `[rows, vocab]`.
    Logits(Vec<f32>),
}

impl Default for Content {
    fn default() -> Self {
        Self::Logits(Vec::new())
    }
}

/// Branches that go on or finish. A row that no choice names ends without a result.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choices {
    /// In the order in which their rows come in the next call.
    pub branches: Vec<Choice>,
}

/// One branch of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Index of the row that it continues.
    pub row: u32,
    /// Its next token: among the row's candidates, or anywhere in a whole row.
    pub token: TokenId,
    /// Whether it goes on.
    pub next: Next,
    /// Not NaN. What it would count if it ended here; only a search looks at it.
    pub score: f32,
}

/// What becomes of a branch after its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It comes back, unless the token is a stop token or the last that fits: then it is finished too.
    Continue,
    /// It is complete with this token.
    Finish,
}

/// Finished branches, in the order in which they finished.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finished {
    /// Numbers of the branches.
    pub branches: Vec<u32>,
    /// Their last scores.
    pub scores: Vec<f32>,
    /// Their generated tokens.
    pub lengths: Vec<u32>,
    /// Most that the client wants.
    pub wanted: u32,
}

/// What a guest said.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// To [`Chooser::choose`].
    Choices(Choices),
    /// To [`Chooser::select`]: indices into the finished branches, in the order they are to be returned, none twice.
    Selected(Vec<u32>),
}

/// Why a guest ends its request; names module, function and value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ChooserError(pub String);

/// Where an answer goes. Dropped without an answer it says so.
pub struct Reply {
    request: RequestId,
    to: Option<Arc<dyn Answers>>,
}

/// Takes answers; called from guests' threads.
pub trait Answers: Send + Sync {
    /// Takes the answer of a request's guest.
    fn put(&self, request: RequestId, answer: Result<Answer, ChooserError>);
}

impl Reply {
    /// The reply of a request.
    #[must_use]
    pub fn new(request: RequestId, to: Arc<dyn Answers>) -> Self {
        Self {
            request,
            to: Some(to),
        }
    }

    /// Whose it is.
    #[must_use]
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// Answers.
    pub fn send(mut self, answer: Result<Answer, ChooserError>) {
        if let Some(to) = self.to.take() {
            to.put(self.request, answer);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(to) = self.to.take() {
            let lost = ChooserError("the sampler guest ended without an answer".to_owned());
            to.put(self.request, Err(lost));
        }
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reply").field(&self.request).finish()
    }
}

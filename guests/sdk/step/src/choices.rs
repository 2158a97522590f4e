//! What a sampler answers.

use crate::Row;
use crate::bindings::exports::guesthouse::sampling::stepping as wit;

/// Branches that go on or finish. A row that none continues ends without a result; one that several continue forks.
///
/// In the next step the branches that went on come in the order in which they were put here, and [`Row::choice`] is the place.
#[derive(Clone, Debug, PartialEq)]
pub struct Choices(wit::Choices);

impl Default for Choices {
    fn default() -> Self {
        Self::new()
    }
}

impl Choices {
    /// None: all branches end.
    #[must_use]
    pub fn new() -> Self {
        Self(wit::Choices {
            parent: vec![],
            token: vec![],
            flags: vec![],
            score: vec![],
        })
    }

    /// A branch of `row` goes on with `token`. If the host finds that it ends here, at a stop token or the last that fits, it is
    /// finished with `score`, which must not be NaN; only searches use it.
    pub fn go_on<C>(&mut self, row: &Row<'_, C>, token: u32, score: f32) {
        self.put(row.index(), token, 0, score);
    }

    /// A branch of `row` is complete with `token`, and has this score.
    pub fn finish<C>(&mut self, row: &Row<'_, C>, token: u32, score: f32) {
        self.put(row.index(), token, 1, score);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.parent.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.parent.is_empty()
    }

    /// As the host takes them.
    #[must_use]
    pub fn into_wit(self) -> wit::Choices {
        self.0
    }

    fn put(&mut self, row: usize, token: u32, flags: u32, score: f32) {
        self.0.parent.push(row as u32);
        self.0.token.push(token);
        self.0.flags.push(flags);
        self.0.score.push(score);
    }
}

/// What a sampler makes of whole rows.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Any token of a row may be chosen.
    Choices(Choices),
    /// `[rows, vocab]`: the host draws one token per row from these instead; -inf removes a token.
    Logits(Vec<f32>),
}

impl Verdict {
    /// As the host takes it.
    #[must_use]
    pub fn into_wit(self) -> wit::Verdict {
        match self {
            Self::Choices(choices) => wit::Verdict::Choices(choices.into_wit()),
            Self::Logits(logits) => wit::Verdict::Logits(logits),
        }
    }
}

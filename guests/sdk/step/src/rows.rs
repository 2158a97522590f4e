//! The rows of one request, as a sampler reads them.

use crate::bindings::exports::guesthouse::sampling::stepping as wit;
use crate::random::{self, Uniforms};

#[cfg(test)]
mod tests;

/// All rows of one request in one step, in the order of the choices that they continue. With `Candidates` each has its best
/// tokens, with `Whole` all logits.
///
/// ```
/// use guesthouse_sdk_step::{Choices, Rows};
///
/// /// The likeliest token of each row.
/// fn best(rows: &Rows) -> Choices {
///     let mut choices = Choices::new();
///     for row in rows.iter() {
///         choices.go_on(&row, row.tokens()[0], 0.0);
///     }
///     choices
/// }
/// # let _ = best;
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rows<C = wit::Candidates> {
    rows: wit::Rows,
    content: C,
}

/// Rows with all their logits.
pub type WholeRows = Rows<Whole>;

/// Logits of whole rows, `[rows, vocab]`, after all stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Whole(Vec<f32>);

impl<C> Rows<C> {
    /// How many there are; at least one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.branches.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them, below [`Rows::len`].
    #[must_use]
    pub fn get(&self, index: usize) -> Row<'_, C> {
        Row { all: self, index }
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Row<'_, C>> {
        (0..self.len()).map(|index| self.get(index))
    }
}

impl Rows {
    /// From what the host sends.
    #[must_use]
    pub fn new(rows: wit::Rows, candidates: wit::Candidates) -> Self {
        Self {
            rows,
            content: candidates,
        }
    }
}

impl WholeRows {
    /// From what the host sends: `logits` is `[rows, vocab]`.
    #[must_use]
    pub fn whole(rows: wit::Rows, logits: Vec<f32>) -> Self {
        Self {
            rows,
            content: Whole(logits),
        }
    }

    /// Size of the vocabulary.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.content.0.len() / self.len()
    }

    /// Logits of one row, to change before they are given back.
    pub fn logits_mut(&mut self, index: usize) -> &mut [f32] {
        let vocab = self.vocab();
        &mut self.content.0[index * vocab..][..vocab]
    }

    /// All of them, `[rows, vocab]`.
    #[must_use]
    pub fn into_logits(self) -> Vec<f32> {
        self.content.0
    }
}

/// A token that a row offers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: u32,
    /// Its logit after all stages; finite.
    pub logit: f32,
    /// Its log-probability among all tokens of the row, not the candidates alone.
    pub logprob: f32,
}

/// One branch's row.
#[derive(Debug)]
pub struct Row<'a, C = wit::Candidates> {
    all: &'a Rows<C>,
    index: usize,
}

impl<C> Clone for Row<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for Row<'_, C> {}

impl<'a, C> Row<'a, C> {
    /// Its place among the rows.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The host's number of its branch.
    #[must_use]
    pub fn branch(&self) -> u32 {
        self.all.rows.branches[self.index]
    }

    /// Which choice of the answer before it continues: the place there. Its own number in the first step.
    #[must_use]
    pub fn choice(&self) -> usize {
        self.all.rows.choices[self.index] as usize
    }

    /// The token before the one to choose.
    #[must_use]
    pub fn last(&self) -> u32 {
        self.all.rows.last[self.index]
    }

    /// Tokens that its branch has generated so far.
    #[must_use]
    pub fn generated(&self) -> u32 {
        self.all.rows.lengths[self.index]
    }

    /// A number in (0, 1), reproducible from the request's seed.
    #[must_use]
    pub fn uniform(&self) -> f32 {
        self.all.rows.uniform[self.index]
    }

    /// As many such numbers as needed, derived from [`Row::uniform`]: for several draws from one row.
    #[must_use]
    pub fn uniforms(&self) -> Uniforms {
        Uniforms::new(self.uniform())
    }

    /// What the logits head read, `[hidden size]`; empty unless the plan asked for it.
    #[must_use]
    pub fn hidden(&self) -> &'a [f32] {
        let hidden = &self.all.rows.hidden;
        let width = hidden.len() / self.all.len();
        &hidden[self.index * width..][..width]
    }
}

impl<'a> Row<'a, Whole> {
    /// Logits of all tokens after all stages, by token id.
    #[must_use]
    pub fn logits(&self) -> &'a [f32] {
        let vocab = self.all.vocab();
        &self.all.content.0[self.index * vocab..][..vocab]
    }
}

impl<'a> Row<'a> {
    /// The candidates' tokens, best first; at least one.
    #[must_use]
    pub fn tokens(&self) -> &'a [u32] {
        let start = self.start();
        &self.all.content.tokens[start..][..self.logits().len()]
    }

    /// Their logits after all stages, without those that the stages removed.
    #[must_use]
    pub fn logits(&self) -> &'a [f32] {
        let all = &self.all.content.logits[self.start()..][..self.all.content.n as usize];
        let left = all.partition_point(|logit| *logit > f32::NEG_INFINITY);
        &all[..left]
    }

    /// Log-probability of the i-th best candidate, among all tokens of the row.
    #[must_use]
    pub fn logprob(&self, i: usize) -> f32 {
        self.logits()[i] - self.log_sum_exp()
    }

    /// The candidates, best first.
    pub fn candidates(&self) -> impl ExactSizeIterator<Item = Candidate> + use<'a> {
        let lse = self.log_sum_exp();
        let pairs = self.tokens().iter().zip(self.logits());
        pairs.map(move |(&token, &logit)| Candidate {
            token,
            logit,
            logprob: logit - lse,
        })
    }

    /// Log-sum-exp of the whole row after all stages.
    #[must_use]
    pub fn log_sum_exp(&self) -> f32 {
        self.all.content.log_sum_exp[self.index]
    }

    /// Entropy of the whole row after all stages, nats.
    #[must_use]
    pub fn entropy(&self) -> f32 {
        self.all.content.entropy[self.index]
    }

    /// A draw by the candidates' probabilities: the place of the first whose cumulative probability is above `uniform`.
    #[must_use]
    pub fn sample(&self, uniform: f32) -> usize {
        random::sample(self.logits(), uniform)
    }

    /// `n` different draws by the candidates' probabilities, without replacement: their places in the order drawn; fewer where
    /// there are fewer candidates.
    #[must_use]
    pub fn sample_distinct(&self, n: usize) -> Vec<usize> {
        random::sample_distinct(self.logits(), n, self.uniforms())
    }

    fn start(&self) -> usize {
        self.index * self.all.content.n as usize
    }
}

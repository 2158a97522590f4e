//! A sequence's tokens, how often each occurs, and what they repeat.

use guesthouse_engine::{Dry, SamplingPlan, Stage, TokenId};

use counts::Counts;
use dry::DryIndex;
use grams::Followers;

mod counts;
mod dry;
mod grams;

#[cfg(test)]
pub(crate) mod tests;

/// Occurrences of one token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// In prompt and output.
    pub all: u32,
    /// In the output.
    pub output: u32,
}

/// Token history of a slot. Counts and indices are kept only when asked for; without an index its question is answered from
/// the tokens alone, in time proportional to their number.
#[derive(Clone, Debug, Default)]
pub struct History {
    tokens: Vec<TokenId>,
    prompt_len: usize,
    counts: Option<Counts>,
    /// One for each distinct size of n-grams.
    followers: Vec<Followers>,
    dry: Vec<DryIndex>,
}

/// Whether a history counts its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// For plans with penalties.
    On,
    /// For all others.
    Off,
}

impl History {
    /// A history of known tokens, of which the first `prompt_len` are the prompt.
    #[must_use]
    pub fn new(tokens: &[TokenId], prompt_len: usize, counting: Counting) -> Self {
        let mut history = Self {
            tokens: Vec::new(),
            prompt_len,
            ..Self::default()
        };
        if counting == Counting::On {
            history.counts = Some(Counts::default());
        }
        history.extend(tokens);
        history
    }

    /// A history that keeps what the plan's stages ask of it.
    #[must_use]
    pub fn for_plan(tokens: &[TokenId], prompt_len: usize, plan: &SamplingPlan) -> Self {
        let counted = |s: &Stage| matches!(s, Stage::Penalties { .. } | Stage::NoRepeatNgram(1));
        let counting = if plan.stages.iter().any(counted) {
            Counting::On
        } else {
            Counting::Off
        };
        let mut history = Self::new(&[], prompt_len, counting);
        for stage in &plan.stages {
            match stage {
                Stage::NoRepeatNgram(n) if *n > 1 => {
                    let n = *n as usize;
                    if history.followers.iter().all(|f| f.n() != n) {
                        history.followers.push(Followers::new(n));
                    }
                }
                Stage::Dry(dry) if history.dry.iter().all(|d| d.dry != *dry) => {
                    history.dry.push(DryIndex::new(dry));
                }
                _ => {}
            }
        }
        history.extend(tokens);
        history
    }

    /// Appends tokens.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        if let Some(counts) = &mut self.counts {
            for (i, &token) in tokens.iter().enumerate() {
                let output = self.tokens.len() + i >= self.prompt_len;
                counts.add(token, u32::from(output));
            }
        }
        if self.followers.is_empty() && self.dry.is_empty() {
            self.tokens.extend_from_slice(tokens);
            return;
        }
        for &token in tokens {
            self.tokens.push(token);
            for index in &mut self.followers {
                index.push(&self.tokens);
            }
            for index in &mut self.dry {
                index.push(&self.tokens);
            }
        }
    }

    /// A copy as of the first `len` tokens, without indices: for one draw before drafts.
    #[must_use]
    pub fn before(&self, len: usize) -> Self {
        let mut copy = Self {
            tokens: self.tokens.clone(),
            prompt_len: self.prompt_len,
            counts: self.counts.clone(),
            ..Self::default()
        };
        copy.truncate(len);
        copy
    }

    /// Forgets all but the first `len` tokens: drafts that were refused.
    pub fn truncate(&mut self, len: usize) {
        while self.tokens.len() > len {
            let Some(token) = self.tokens.pop() else {
                break;
            };
            for index in &mut self.followers {
                index.pop();
            }
            for index in &mut self.dry {
                index.pop();
            }
            let output = self.tokens.len() >= self.prompt_len;
            if let Some(counts) = &mut self.counts {
                counts.take(token, u32::from(output));
            }
        }
    }

    /// All tokens.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Length of the original prompt.
    #[must_use]
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// Tokens generated so far.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.tokens.len().saturating_sub(self.prompt_len)
    }

    /// Each distinct token with its count; empty when counting is off.
    pub fn counts(&self) -> impl ExactSizeIterator<Item = (TokenId, Count)> + '_ {
        let list = self.counts.as_ref().map_or(&[][..], Counts::list);
        list.iter().copied()
    }

    /// Appends the tokens that would make the last `n` tokens equal to `n` earlier ones, as Hugging Face's
    /// `NoRepeatNGramLogitsProcessor` bans them; in no order, some maybe twice. None for `n = 0`.
    pub fn repeating(&self, n: u32, out: &mut Vec<TokenId>) {
        let n = n as usize;
        if n == 0 {
            return;
        }
        if n == 1 {
            match &self.counts {
                Some(counts) => out.extend(counts.list().iter().map(|c| c.0)),
                None => out.extend_from_slice(&self.tokens),
            }
        } else if let Some(index) = self.followers.iter().find(|f| f.n() == n) {
            out.extend(index.of_end(&self.tokens));
        } else if let Some(at) = (self.tokens.len() + 1).checked_sub(n) {
            let end = &self.tokens[at..];
            let grams = self.tokens.windows(n);
            out.extend(grams.filter(|g| g[..n - 1] == *end).map(|g| g[n - 1]));
        }
    }

    /// Appends what [`Stage::Dry`] subtracts from logits, one entry per token.
    pub fn dry_penalties(&self, dry: &Dry, out: &mut Vec<(TokenId, f32)>) {
        match self.dry.iter().find(|d| d.dry == *dry) {
            Some(index) => index.penalties(&self.tokens, out),
            None => dry::penalties(dry, &self.tokens, out),
        }
    }
}

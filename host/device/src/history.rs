//! A sequence's tokens, and how often each occurs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use guesthouse_engine::TokenId;

#[cfg(test)]
mod tests;

/// Occurrences of one token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// In prompt and output.
    pub all: u32,
    /// In the output.
    pub output: u32,
}

/// Token history of a slot. Counts are kept only when asked for.
#[derive(Clone, Debug, Default)]
pub struct History {
    tokens: Vec<TokenId>,
    prompt_len: usize,
    counts: Option<HashMap<TokenId, Count>>,
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
            counts: None,
        };
        if counting == Counting::On {
            history.counts = Some(HashMap::new());
        }
        history.extend(tokens);
        history
    }

    /// Appends tokens.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        if let Some(counts) = &mut self.counts {
            for (i, &token) in tokens.iter().enumerate() {
                let count = counts.entry(token).or_default();
                count.all += 1;
                count.output += u32::from(self.tokens.len() + i >= self.prompt_len);
            }
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// Forgets all but the first `len` tokens: drafts that were refused.
    pub fn truncate(&mut self, len: usize) {
        while self.tokens.len() > len {
            let Some(token) = self.tokens.pop() else {
                break;
            };
            let output = self.tokens.len() >= self.prompt_len;
            if let Some(counts) = &mut self.counts
                && let Entry::Occupied(mut entry) = counts.entry(token)
            {
                let count = entry.get_mut();
                count.all -= 1;
                count.output -= u32::from(output);
                if count.all == 0 {
                    entry.remove();
                }
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
    pub fn counts(&self) -> impl Iterator<Item = (TokenId, Count)> + '_ {
        self.counts
            .iter()
            .flatten()
            .map(|(&token, &count)| (token, count))
    }
}

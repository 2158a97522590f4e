//! Where a sequence's n-grams occurred before ("prompt lookup", Saxena 2023).

use crate::TokenId;
use std::collections::HashMap;

/// Most tokens indexed in one call: a long prompt is indexed over several steps.
const PER_CALL: usize = 1024;

/// Lengths of the n-grams that are looked up, tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// At least 1.
    pub(crate) min: u32,
    /// Tried first.
    pub(crate) max: u32,
}

/// The latest occurrence of each n-gram of a sequence that only grows.
#[derive(Clone, Debug)]
pub(crate) struct Index {
    lengths: Lengths,
    /// Hash of an n-gram to the position after it. What is found is compared.
    ends: HashMap<u64, u32>,
    /// N-grams that end at or before this position are in `ends`.
    indexed: usize,
}

/// SplitMix64's finaliser, over length and tokens.
fn hash(gram: &[TokenId]) -> u64 {
    gram.iter().fold(gram.len() as u64, |hash, &token| {
        let mut z = (hash ^ u64::from(token)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

impl Index {
    pub(crate) fn new(lengths: Lengths) -> Self {
        Self {
            lengths,
            ends: HashMap::new(),
            indexed: 0,
        }
    }

    /// The n-grams that end at `end`, longest first.
    fn grams(lengths: Lengths, tokens: &[TokenId], end: usize) -> impl Iterator<Item = &[TokenId]> {
        (lengths.min.max(1)..=lengths.max)
            .rev()
            .filter_map(move |n| {
                let start = end.checked_sub(n as usize)?;
                tokens.get(start..end)
            })
    }

    /// At most `most` tokens that followed the latest earlier occurrence of the longest n-gram that ends `tokens`; where it
    /// overlaps the end, as if the repetition went on.
    pub(crate) fn guess(&mut self, tokens: &[TokenId], most: usize) -> Vec<TokenId> {
        // The end itself is no earlier occurrence.
        let before = tokens.len().saturating_sub(1);
        let until = before.min(self.indexed + PER_CALL);
        for end in self.indexed + 1..=until {
            for gram in Self::grams(self.lengths, tokens, end) {
                self.ends.insert(hash(gram), end as u32);
            }
        }
        self.indexed = until.max(self.indexed);
        let found = Self::grams(self.lengths, tokens, tokens.len()).find_map(|gram| {
            let end = *self.ends.get(&hash(gram))? as usize;
            let same = end
                .checked_sub(gram.len())
                .and_then(|start| tokens.get(start..end));
            (same == Some(gram)).then_some(end)
        });
        let Some(end) = found else {
            return Vec::new();
        };
        let period = tokens.len() - end;
        (0..most)
            .map(|index| tokens[end + index % period])
            .collect()
    }
}

#[cfg(test)]
mod tests;

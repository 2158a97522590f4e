//! How often each token occurs, listed densely so that a step reads it in one go.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use guesthouse_engine::TokenId;

use super::Count;

/// Distinct tokens and their counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// In no order.
    list: Vec<(TokenId, Count)>,
    /// Where in the list.
    places: HashMap<TokenId, u32>,
}

impl Counts {
    pub(super) fn list(&self) -> &[(TokenId, Count)] {
        &self.list
    }

    /// One more of a token; `output` is 1 in the output and 0 in the prompt.
    pub(super) fn add(&mut self, token: TokenId, output: u32) {
        let at = match self.places.entry(token) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                let at = self.list.len() as u32;
                self.list.push((token, Count::default()));
                *entry.insert(at)
            }
        };
        let count = &mut self.list[at as usize].1;
        count.all += 1;
        count.output += output;
    }

    /// One less of a token that was added.
    pub(super) fn take(&mut self, token: TokenId, output: u32) {
        let Some(&at) = self.places.get(&token) else {
            return;
        };
        let count = &mut self.list[at as usize].1;
        count.all -= 1;
        count.output -= output;
        if count.all > 0 {
            return;
        }
        self.list.swap_remove(at as usize);
        self.places.remove(&token);
        if let Some(&(moved, _)) = self.list.get(at as usize) {
            self.places.insert(moved, at);
        }
    }
}

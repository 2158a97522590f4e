//! Divides a step's prefill attention into tiles of queries, longest first.

use std::cmp::Reverse;

use crate::cuda::ops::attention_generic::Which;
use crate::cuda::ops::{Limits, PlanRow, Planner};

#[cfg(test)]
mod tests;

/// Words of an entry, `Entry` of the kernels; the plan's head is as long.
pub(super) const ENTRY_WORDS: u32 = 8;

/// What plans depend on beside the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Most tokens of an entry.
    pub tokens: u32,
    /// Positions of a tile of keys.
    pub kv_tile: u32,
    /// Positions a query sees.
    pub window: Option<u32>,
    /// Rows that are computed.
    pub which: Which,
}

/// Tokens of one row that a block computes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    token: u32,
    tokens: u32,
    /// Of the first token in its sequence.
    position: u32,
    kv_len: u32,
    slot: u32,
}

/// Writes plans of the prefill kernels: `[count, 0, 0, 0, 0, 0, 0, 0]`, then `count` entries `[token, tokens, position,
/// kv_len, slot, 0, 0, 0]`.
pub(super) struct PrefillPlanner {
    geometry: Geometry,
    entries: Vec<Entry>,
}

impl PrefillPlanner {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            entries: Vec::new(),
        }
    }

    /// Tiles of keys that an entry visits.
    fn tiles(&self, entry: &Entry) -> u32 {
        let from = self
            .geometry
            .window
            .map_or(0, |w| (entry.position + 1).saturating_sub(w));
        (entry.position + entry.tokens).div_ceil(self.geometry.kv_tile)
            - from / self.geometry.kv_tile
    }
}

impl Planner for PrefillPlanner {
    fn capacity(&self, limits: &Limits) -> usize {
        // Each row's last entry may be short.
        let entries = limits.tokens.div_ceil(self.geometry.tokens) + limits.rows;
        (entries.min(limits.tokens) + 1) as usize * ENTRY_WORDS as usize
    }

    fn plan(&mut self, rows: &[PlanRow], out: &mut Vec<i32>) {
        self.entries.clear();
        for row in rows {
            let mine = match self.geometry.which {
                Which::Single => row.len == 1,
                Which::Long => row.len > 1,
            };
            if !mine {
                continue;
            }
            let position = row.kv_len - row.len;
            for from in (0..row.len).step_by(self.geometry.tokens as usize) {
                self.entries.push(Entry {
                    token: row.first + from,
                    tokens: (row.len - from).min(self.geometry.tokens),
                    position: position + from,
                    kv_len: row.kv_len,
                    slot: row.slot,
                });
            }
        }
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_by_key(|e| Reverse(self.tiles(e)));
        out.extend([entries.len() as i32, 0, 0, 0, 0, 0, 0, 0]);
        for e in &entries {
            let words = [e.token, e.tokens, e.position, e.kv_len, e.slot, 0, 0, 0];
            out.extend(words.map(|word| word as i32));
        }
        self.entries = entries;
    }
}

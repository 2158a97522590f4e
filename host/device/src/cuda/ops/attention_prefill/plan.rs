//! Divides a step's prefill attention into tiles of queries, in an order in which those that run at the same time share keys.
//!
//! Tiles of one sequence read the same keys. What runs at any time is limited to some rows and some heads (a section) whose
//! keys and values fit in L2; within a section long tiles come before short ones, so that the blocks end together.

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
    pub kv_heads: u32,
    /// Bytes of a position's key and value of one head.
    pub position_bytes: u32,
    /// Bytes of keys and values in a section, where one row and head are no more.
    pub section_bytes: u64,
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
    prefix_len: u32,
    section: u32,
}

/// Writes plans of the prefill kernels: `[count, 0, heads, 0, 0, 0, 0, 0]`, then `count` entries `[token, tokens, position,
/// kv_len, slot, prefix_len, 0, 0]`. `heads` are those of a section.
pub(super) struct PrefillPlanner {
    geometry: Geometry,
    rows: Vec<PlanRow>,
    entries: Vec<Entry>,
}

impl PrefillPlanner {
    pub(super) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            rows: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// Tiles of keys that an entry visits.
    fn tiles(&self, entry: &Entry) -> u32 {
        let from = self
            .geometry
            .window
            .map_or(0, |w| (entry.position + 1).saturating_sub(w));
        let to = (entry.position + entry.tokens).max(entry.prefix_len);
        to.div_ceil(self.geometry.kv_tile) - from / self.geometry.kv_tile
    }

    /// Bytes of the keys and values of one head that a row sees.
    fn bytes(&self, row: &PlanRow) -> u64 {
        let seen = self
            .geometry
            .window
            .map_or(row.kv_len, |w| row.kv_len.min(w.saturating_add(row.len)));
        u64::from(seen) * u64::from(self.geometry.position_bytes)
    }

    /// Heads of a section: as many as fit of the longest row, and a divisor of all.
    fn heads(&self) -> u32 {
        let longest = self.rows.iter().map(|r| self.bytes(r)).max().unwrap_or(0);
        let all = self.geometry.kv_heads;
        (1..=all)
            .rev()
            .find(|n| {
                all.is_multiple_of(*n) && u64::from(*n) * longest <= self.geometry.section_bytes
            })
            .unwrap_or(1)
    }
}

impl Planner for PrefillPlanner {
    fn capacity(&self, limits: &Limits) -> usize {
        // Each row's last entry may be short.
        let entries = limits.tokens.div_ceil(self.geometry.tokens) + limits.rows;
        (entries.min(limits.tokens) + 1) as usize * ENTRY_WORDS as usize
    }

    fn plan(&mut self, rows: &[PlanRow], out: &mut Vec<i32>) {
        self.rows.clear();
        self.entries.clear();
        self.rows
            .extend(rows.iter().filter(|row| match self.geometry.which {
                Which::Single => row.len == 1,
                Which::Long => row.len > 1,
            }));
        self.rows.sort_by_key(|row| Reverse(row.kv_len));
        let heads = self.heads();
        let (mut section, mut bytes) = (0, 0);
        for row in &self.rows {
            let mine = self.bytes(row) * u64::from(heads);
            if bytes > 0 && bytes + mine > self.geometry.section_bytes {
                section += 1;
                bytes = 0;
            }
            bytes += mine;
            let position = row.kv_len - row.len;
            for from in (0..row.len).step_by(self.geometry.tokens as usize) {
                self.entries.push(Entry {
                    token: row.first + from,
                    tokens: (row.len - from).min(self.geometry.tokens),
                    position: position + from,
                    kv_len: row.kv_len,
                    slot: row.slot,
                    prefix_len: row.prefix_len,
                    section,
                });
            }
        }
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_by_key(|e| (e.section, Reverse(self.tiles(e))));
        out.extend([entries.len() as i32, 0, heads as i32, 0, 0, 0, 0, 0]);
        for e in &entries {
            let words = [
                e.token,
                e.tokens,
                e.position,
                e.kv_len,
                e.slot,
                e.prefix_len,
                0,
                0,
            ];
            out.extend(words.map(|word| word as i32));
        }
        self.entries = entries;
    }
}

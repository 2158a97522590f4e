//! Cuts a step's decode attention into work items and deals them to the blocks of a fixed grid.
//!
//! A pair is a row and one group of query heads that share a KV head; its visible positions are a range of tiles. An item
//! is a part of a pair's range; the items of a pair that was cut are its pieces, numbered from `first piece` on.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::cuda::graphs::bucket;
use crate::cuda::ops::{Limits, PlanRow, Planner};

#[cfg(test)]
mod tests;

/// Positions of a tile, `TILE` of the kernel.
pub(crate) const TILE: u32 = 16;

/// Most query heads of an item of decode attention, `PACK` of the kernel.
pub(crate) const MAX_PACK: u32 = 16;

/// Words of an item, `Item` of the kernel.
pub(crate) const ITEM_WORDS: usize = 8;

/// What an item costs beside its tiles, in tiles: its queries, its merge, the switch.
const OVERHEAD: f64 = 1.0;

/// Where ranges may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cuts {
    /// Where the blocks come out even.
    Even(Even),
    /// At multiples of so many tiles, whatever the batch.
    Fixed { tiles: u32 },
}

/// What cuts are worth, in tiles, as measured: they depend on how many warps share an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Even {
    /// Least of a piece, where a pair has as many.
    pub least: u32,
    /// Cost of cutting a pair that a block could have to itself: its pieces meet in global memory.
    pub cut: u32,
    /// A pair no longer than this stays whole if a block has nothing else to do.
    pub uncut: u32,
}

/// What plans depend on beside the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub kv_heads: u32,
    /// Query heads per KV head.
    pub group: u32,
    /// Most query heads of an item.
    pub most: u32,
    /// Positions a query sees.
    pub window: Option<u32>,
    /// Blocks of the grid.
    pub blocks: u32,
    pub cuts: Cuts,
    /// Rows of one token that a step has, rounded up to its bucket; steps with other numbers are not planned.
    pub rows: (u32, u32),
}

impl Geometry {
    /// Query heads of an item, but for the last of a group.
    pub(crate) fn pack(&self) -> u32 {
        self.group.min(self.most)
    }

    /// Pairs of a row.
    pub(crate) fn units(&self) -> u32 {
        self.kv_heads * self.group.div_ceil(self.pack())
    }

    /// First query head of a row's unit.
    fn q_head(&self, unit: u32) -> u32 {
        let parts = self.group.div_ceil(self.pack());
        unit / parts * self.group + unit % parts * self.pack()
    }

    /// Visible tiles of a row.
    fn tiles(&self, kv_len: u32) -> (u32, u32) {
        let from = self.window.map_or(0, |w| kv_len.saturating_sub(w));
        (from / TILE, kv_len.div_ceil(TILE))
    }

    /// Most pieces of one pair under fixed cuts.
    fn fixed_pieces(&self, len: u32, tiles: u32) -> usize {
        let seen = match self.window {
            // A range that begins anywhere touches one more.
            Some(w) if w < len => w.div_ceil(TILE * tiles) + 1,
            _ => len.div_ceil(TILE * tiles),
        };
        seen.max(1) as usize
    }

    /// Most items of a step.
    pub(crate) fn max_items(&self, rows: u32, len: u32) -> usize {
        let pairs = rows as usize * self.units() as usize;
        match self.cuts {
            // Each block but the last ends with at most one cut.
            Cuts::Even(_) => pairs + self.blocks as usize,
            Cuts::Fixed { tiles } => pairs * self.fixed_pieces(len, tiles),
        }
    }

    /// Most pieces of a step.
    pub(crate) fn max_pieces(&self, rows: u32, len: u32) -> usize {
        match self.cuts {
            Cuts::Even(_) => 2 * self.blocks as usize,
            Cuts::Fixed { tiles } => match self.fixed_pieces(len, tiles) {
                1 => 1,
                pieces => rows as usize * self.units() as usize * pieces,
            },
        }
    }

    /// Most pairs of a step that are cut.
    pub(crate) fn max_cut_pairs(&self, rows: u32, len: u32) -> usize {
        match self.cuts {
            Cuts::Even(_) => self.blocks as usize,
            Cuts::Fixed { tiles } if self.fixed_pieces(len, tiles) == 1 => 0,
            Cuts::Fixed { .. } => rows as usize * self.units() as usize,
        }
    }

    /// Words before the items: `starts`, and padding.
    pub(crate) fn items_at(&self) -> usize {
        (self.blocks as usize + 1).next_multiple_of(ITEM_WORDS)
    }
}

/// `Item` of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    token: u32,
    slot: u32,
    q_head: u32,
    kv_len: u32,
    begin: u32,
    end: u32,
    /// Its pair's first piece; none when the item is all of its pair.
    piece: Option<u32>,
    index: u32,
    pieces: u32,
}

impl Item {
    fn words(&self) -> [i32; ITEM_WORDS] {
        let piece = self.piece.map_or(-1, |p| p as i32);
        let share = (self.index | self.pieces << 16) as i32;
        [
            self.token as i32,
            self.slot as i32,
            self.q_head as i32,
            self.kv_len as i32,
            self.begin as i32,
            self.end as i32,
            piece,
            share,
        ]
    }
}

/// Plans decode attention. Its words: `starts [blocks + 1]`, the index of each block's second item; then the items, namely the
/// first of each block, which is empty where a block has nothing to do, and after these all others, block by block.
pub(crate) struct DecodePlanner {
    geometry: Geometry,
    items: Vec<Item>,
    /// First item of each block.
    starts: Vec<u32>,
    // Of fixed cuts: the blocks by load, and the block of each item.
    loads: BinaryHeap<Reverse<(u64, u32)>>,
    dealt: Vec<(u32, Item)>,
}

impl DecodePlanner {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            items: Vec::new(),
            starts: Vec::new(),
            loads: BinaryHeap::new(),
            dealt: Vec::new(),
        }
    }

    /// Token, first query head, first piece and number of pieces of each pair of the last plan that was cut.
    pub(crate) fn cut_pairs(&self) -> impl Iterator<Item = [u32; 4]> {
        let first = self.items.iter().filter(|item| item.index == 0);
        first.filter_map(|i| Some([i.token, i.q_head, i.piece?, i.pieces]))
    }

    /// Walks the pairs in order and fills block after block, each with its share of what is left.
    fn even(&mut self, rows: &[PlanRow], even: Even) {
        let g = self.geometry;
        let units = g.units();
        let work = |row: &PlanRow| {
            let (begin, end) = g.tiles(row.kv_len);
            f64::from(units) * (f64::from(end - begin) + OVERHEAD)
        };
        let mut left: f64 = rows.iter().map(work).sum();
        let mut pieces = 0;
        let mut most = 0.0;
        let mut block = Share::open(left, g.blocks, even, most);
        self.starts.push(0);
        for row in rows {
            let (first, end) = g.tiles(row.kv_len);
            for unit in 0..units {
                let from = self.items.len();
                let mut begin = first;
                while begin < end {
                    let last = self.starts.len() == g.blocks as usize;
                    let take = if last {
                        end - begin
                    } else {
                        block.take(end - begin, begin == first)
                    };
                    if take > 0 {
                        self.items.push(Item {
                            token: row.first,
                            slot: row.slot,
                            q_head: g.q_head(unit),
                            kv_len: row.kv_len,
                            begin,
                            end: begin + take,
                            piece: None,
                            index: 0,
                            pieces: 1,
                        });
                        begin += take;
                        block.spend(take);
                        left -= f64::from(take) + if begin == end { OVERHEAD } else { 0.0 };
                    }
                    if !last && (begin < end || block.is_full()) {
                        self.starts.push(self.items.len() as u32);
                        let blocks = g.blocks - self.starts.len() as u32 + 1;
                        most = block.spent.max(most);
                        block = Share::open(left, blocks, even, most);
                    }
                }
                pieces = number(&mut self.items[from..], pieces);
            }
        }
    }

    /// Cuts at fixed tiles and deals the items, largest first, each to the block with the least to do.
    fn fixed(&mut self, rows: &[PlanRow], tiles: u32) {
        let g = self.geometry;
        let mut pieces = 0;
        for row in rows {
            let (first, end) = g.tiles(row.kv_len);
            for unit in 0..g.units() {
                let from = self.items.len();
                let mut begin = first;
                while begin < end {
                    let to = end.min((begin / tiles + 1) * tiles);
                    self.items.push(Item {
                        token: row.first,
                        slot: row.slot,
                        q_head: g.q_head(unit),
                        kv_len: row.kv_len,
                        begin,
                        end: to,
                        piece: None,
                        index: 0,
                        pieces: 1,
                    });
                    begin = to;
                }
                pieces = number(&mut self.items[from..], pieces);
            }
        }
        self.items
            .sort_by_key(|item| Reverse(item.end - item.begin));
        self.loads.clear();
        self.loads.extend((0..g.blocks).map(|b| Reverse((0, b))));
        self.dealt.clear();
        for item in &self.items {
            if let Some(mut least) = self.loads.peek_mut() {
                self.dealt.push((least.0.1, *item));
                least.0.0 += u64::from(item.end - item.begin) + OVERHEAD as u64;
            }
        }
        self.dealt.sort_by_key(|(block, _)| *block);
        self.items.clear();
        for (block, item) in &self.dealt {
            while self.starts.len() <= *block as usize {
                self.starts.push(self.items.len() as u32);
            }
            self.items.push(*item);
        }
    }
}

/// Makes a pair's items its pieces, if they are more than one; returns the number of pieces so far.
fn number(items: &mut [Item], pieces: u32) -> u32 {
    let count = items.len() as u32;
    if count < 2 {
        return pieces;
    }
    for (index, item) in items.iter_mut().enumerate() {
        item.piece = Some(pieces);
        item.index = index as u32;
        item.pieces = count;
    }
    pieces + count
}

/// What a block may take, in tiles.
struct Share {
    even: Even,
    budget: f64,
    spent: f64,
    /// What the fullest block has.
    most: f64,
}

impl Share {
    /// One of `blocks` equal shares of what is left, each of which ends with a cut.
    fn open(left: f64, blocks: u32, even: Even, most: f64) -> Self {
        let cuts = OVERHEAD * f64::from(blocks - 1);
        Self {
            even,
            budget: ((left + cuts) / f64::from(blocks)).max(f64::from(even.least) + OVERHEAD),
            spent: 0.0,
            most,
        }
    }

    /// How many of the `tiles` that are left of a pair to take; 0 when the block is done.
    fn take(&self, tiles: u32, is_whole: bool) -> u32 {
        let Even { least, cut, uncut } = self.even;
        let room = self.budget - self.spent;
        let cost = f64::from(tiles) + OVERHEAD;
        let keep = || {
            cost <= room + f64::from(cut).min(self.budget / 8.0)
                || cost <= self.most - self.spent
                || self.spent == 0.0 && tiles <= uncut
        };
        if cost <= room + f64::from(least) / 2.0 || is_whole && keep() {
            return tiles;
        }
        let take = (room - OVERHEAD).round().max(0.0) as u32;
        if take < least || is_whole && take < cut {
            if self.spent > 0.0 {
                return 0;
            }
            // A block that has nothing yet takes something: the last one has room for what is left.
            return Self::cut(tiles, take.max(least), least);
        }
        Self::cut(tiles, take, least)
    }

    /// `take`, or less or more so that what is left is not too small.
    fn cut(tiles: u32, take: u32, least: u32) -> u32 {
        if take >= tiles {
            tiles
        } else if tiles - take >= least {
            take
        } else if tiles >= 2 * least {
            tiles - least
        } else {
            tiles
        }
    }

    fn spend(&mut self, tiles: u32) {
        self.spent += f64::from(tiles) + OVERHEAD;
    }

    fn is_full(&self) -> bool {
        self.budget - self.spent < OVERHEAD + 0.5
    }
}

impl Planner for DecodePlanner {
    fn capacity(&self, limits: &Limits) -> usize {
        let items = self.geometry.max_items(limits.rows, limits.len);
        self.geometry.items_at() + (self.geometry.blocks as usize + items) * ITEM_WORDS
    }

    fn plan(&mut self, rows: &[PlanRow], out: &mut Vec<i32>) {
        self.items.clear();
        self.starts.clear();
        let single = |row: &&PlanRow| row.len == 1 && row.kv_len > 0;
        // The usual step has no other rows: no copy then.
        let some;
        let rows = if rows.iter().all(|row| single(&row)) {
            rows
        } else {
            some = rows.iter().filter(single).copied().collect::<Vec<_>>();
            &some
        };
        let (from, to) = self.geometry.rows;
        if !(from..=to).contains(&bucket(rows.len() as u32)) {
            return;
        }
        match self.geometry.cuts {
            Cuts::Even(even) => self.even(rows, even),
            Cuts::Fixed { tiles } => self.fixed(rows, tiles),
        }
        let blocks = self.geometry.blocks as usize;
        self.starts.resize(blocks + 1, self.items.len() as u32);
        let begin = out.len();
        out.resize(begin + self.geometry.items_at(), 0);
        for bounds in self.starts.windows(2) {
            let first = self.items[bounds[0] as usize..bounds[1] as usize].first();
            out.extend_from_slice(&first.map_or([0; ITEM_WORDS], Item::words));
        }
        let mut index = blocks;
        for (block, bounds) in self.starts.windows(2).enumerate() {
            out[begin + block] = index as i32;
            let items = &self.items[bounds[0] as usize..bounds[1] as usize];
            for item in items.iter().skip(1) {
                out.extend_from_slice(&item.words());
                index += 1;
            }
        }
        out[begin + blocks] = index as i32;
    }
}

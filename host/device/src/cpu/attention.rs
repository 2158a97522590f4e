//! Paged attention with an online softmax (Milakov and Gimelshein 2018; Dao et al. 2022).
//!
//! Keys are taken in tiles of 64 positions that start at multiples of 64, whatever the query, the chunk or the batch. A
//! query's scores for a tile are chains over the key's elements, one lane per position; its output is a chain over the
//! visible positions in ascending order, one lane per element. So its result depends on nothing but the sequence.
//! Positions a query does not see are neither used nor, where no query of the unit sees them, read.
//!
//! A unit is a tile of queries of one sequence times the query heads of one KV head (some of them when they are many, one
//! when there are too few units).

#![allow(unsafe_code)]
#![allow(clippy::needless_range_loop)] // Loops over vectors become registers: plain indices say which.

use std::ops::Range;
use std::sync::Arc;

use super::kv::{KvShape, RUN};
use super::math;
use super::memory::Tensor;
use super::ops::{Ctx, Instr, Place, QueryTile, Units, WorkerScratch};
use super::simd::{Kernel, Simd, largest, sum};

#[cfg(test)]
mod tests;

/// Positions of a tile.
const TILE: usize = 64;

/// Most heads of a unit: their queries and sums stay in the second-level cache.
const UNIT_HEADS: usize = 16;

/// Queries whose scores are computed together.
const QUERIES: usize = 4;

pub(crate) struct PagedAttention {
    /// Cache id.
    pub cache: usize,
    pub shape: KvShape,
    /// Query heads.
    pub heads: usize,
    pub scale: f32,
    pub window: Option<u32>,
    pub softcap: Option<f32>,
    /// Slope per head.
    pub alibi: Option<Arc<[f32]>>,
    /// Logit per head.
    pub sinks: Option<Arc<[f32]>>,
    pub q: Place,
    pub y: Place,
}

impl PagedAttention {
    /// Query heads per KV head.
    fn group(&self) -> usize {
        self.heads / self.shape.heads
    }

    /// Query heads in a unit.
    fn unit_heads(&self, ctx: &Ctx<'_>) -> usize {
        let whole = ctx.tiles.len() * self.shape.heads;
        if whole < 4 * ctx.workers {
            return 1;
        }
        let group = self.group();
        let fits = |n: &usize| group.is_multiple_of(*n);
        (1..=group.min(UNIT_HEADS)).rev().find(fits).unwrap_or(1)
    }
}

impl Instr for PagedAttention {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units {
            count: ctx.tiles.len() * (self.heads / self.unit_heads(ctx)),
            grain: 1,
        }
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, scratch: &mut WorkerScratch) {
        let unit_heads = self.unit_heads(ctx);
        let per_tile = self.heads / unit_heads;
        for unit in units {
            let first_head = unit % per_tile * unit_heads;
            let unit = Unit {
                op: self,
                ctx,
                tile: ctx.tiles[unit / per_tile],
                heads: first_head..first_head + unit_heads,
                scratch: &mut scratch.attention,
            };
            // SAFETY: units write the outputs of different (token, head) pairs.
            unsafe { ctx.isa.run(unit) };
        }
    }
}

/// Queries are numbered `token * heads + head` within the unit.
struct Unit<'a> {
    op: &'a PagedAttention,
    ctx: &'a Ctx<'a>,
    tile: QueryTile,
    /// Query heads, all of one KV head.
    heads: Range<usize>,
    scratch: &'a mut Vec<f32>,
}

/// Scratch of a unit, one entry per query.
struct State<'a> {
    /// `[TILE]` scores, then weights.
    scores: &'a mut [f32],
    /// `[v_pad]` weighted sums.
    sums: &'a mut [f32],
    /// Largest score so far.
    most: &'a mut [f32],
    /// Sum of weights so far.
    total: &'a mut [f32],
}

impl Kernel for Unit<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (op, ctx, shape) = (self.op, self.ctx, self.op.shape);
        let heads = self.heads.len();
        let queries = self.tile.len * heads;
        let v_pad = shape.v_pad();
        let need = queries * (TILE + v_pad + 2);
        if self.scratch.len() < need {
            self.scratch.resize(need, 0.0);
        }
        let (scores, rest) = self.scratch.split_at_mut(queries * TILE);
        let (sums, rest) = rest.split_at_mut(queries * v_pad);
        let (most, rest) = rest.split_at_mut(queries);
        let state = State {
            scores,
            sums,
            most,
            total: &mut rest[..queries],
        };
        state.sums.fill(0.0);
        for query in 0..queries {
            // A sink is a key seen first: its weight counts and it has no value.
            let sink = op
                .sinks
                .as_ref()
                .map(|s| s[self.heads.start + query % heads]);
            state.most[query] = sink.unwrap_or(f32::NEG_INFINITY);
            state.total[query] = if sink.is_some() { 1.0 } else { 0.0 };
        }
        let row = &ctx.batch.rows[self.tile.row];
        let table: &[_] = &row.tables[shape.group];
        let kv = ctx.kv.caches[op.cache].memory.floats();
        let kv_head = self.heads.start / op.group();
        let q = ctx.tensor(&op.q);
        // End of the positions that a query at `p` sees: more than those before it within a prefix.
        let visible_to = |p: u32| row.marks.visible_to(p, row.start + row.len) as usize;
        let end = visible_to(ctx.positions[self.tile.token + self.tile.len - 1]);
        let first = visible_from(op.window, ctx.positions[self.tile.token] as usize);
        // SAFETY: the row's table covers all positions below `end`, and those from `first` on are in memory.
        unsafe {
            let mut tile = first / TILE * TILE;
            while tile < end {
                let see = |token: usize| {
                    let p = ctx.positions[self.tile.token + token];
                    let from = visible_from(op.window, p as usize).max(tile) - tile;
                    let to = visible_to(p).min(tile + TILE).saturating_sub(tile);
                    from.min(TILE)..to
                };
                // Runs that some query sees.
                let all = (first.max(tile) - tile)..end.min(tile + TILE) - tile;
                let runs = all.start / RUN..all.end.div_ceil(RUN);
                let keys = |run: usize| {
                    kv.add(shape.keys(table, kv_head, tile + run * RUN))
                        .cast_const()
                };
                let of = |query: usize| {
                    q.at(self.tile.token + query / heads)
                        .add((self.heads.start + query % heads) * shape.k_dim)
                        .cast_const()
                };
                let scores = state.scores.as_mut_ptr();
                if queries == 1 && runs.len() == TILE / RUN {
                    // One query alone would wait for its own chain: take all runs of the tile together.
                    let keys = [keys(0), keys(1), keys(2), keys(3)];
                    score::<S, 1, 4>([of(0)], keys, shape.k_dim, scores);
                } else {
                    for run in runs {
                        let keys = [keys(run)];
                        let mut query = 0;
                        while query < queries {
                            let to = scores.add(query * TILE + run * RUN);
                            match queries - query {
                                1 => score::<S, 1, 1>([of(query)], keys, shape.k_dim, to),
                                2 => {
                                    let q = [of(query), of(query + 1)];
                                    score::<S, 2, 1>(q, keys, shape.k_dim, to);
                                }
                                3 => {
                                    let q = [of(query), of(query + 1), of(query + 2)];
                                    score::<S, 3, 1>(q, keys, shape.k_dim, to);
                                }
                                _ => {
                                    let q =
                                        [of(query), of(query + 1), of(query + 2), of(query + 3)];
                                    score::<S, QUERIES, 1>(q, keys, shape.k_dim, to);
                                }
                            }
                            query += QUERIES;
                        }
                    }
                }
                for token in 0..self.tile.len {
                    let seen = see(token);
                    if seen.is_empty() {
                        continue;
                    }
                    let position = ctx.positions[self.tile.token + token] as usize;
                    for head in 0..heads {
                        let query = token * heads + head;
                        let bias = op.alibi.as_ref().map(|slopes| {
                            (
                                slopes[self.heads.start + head],
                                tile as f32 - position as f32,
                            )
                        });
                        let scores = &mut state.scores[query * TILE..(query + 1) * TILE];
                        let weights = Softmax {
                            scale: op.scale,
                            softcap: op.softcap,
                            bias,
                            seen: seen.clone(),
                        };
                        let shrink = weights.run::<S>(
                            scores,
                            &mut state.most[query],
                            &mut state.total[query],
                        );
                        if shrink != 1.0 {
                            for s in &mut state.sums[query * v_pad..(query + 1) * v_pad] {
                                *s *= shrink;
                            }
                        }
                    }
                    let values = |at: usize| {
                        let run = kv.add(shape.values(table, kv_head, tile + at)).cast_const();
                        run.add(at % RUN * v_pad)
                    };
                    let mut head = 0;
                    while head < heads {
                        let query = token * heads + head;
                        let w = state.scores.as_ptr().add(query * TILE);
                        let to = state.sums.as_mut_ptr().add(query * v_pad);
                        match heads - head {
                            1 => weigh::<S, 1>(w, &seen, values, v_pad, to),
                            2 => weigh::<S, 2>(w, &seen, values, v_pad, to),
                            _ => weigh::<S, 3>(w, &seen, values, v_pad, to),
                        }
                        head += 3;
                    }
                }
                tile += TILE;
            }
            let y = ctx.tensor(&op.y);
            finish(&state, self.tile.token, &self.heads, &y, shape.v_dim, v_pad);
        }
    }
}

/// First position that a query at `p` sees.
#[inline(always)]
fn visible_from(window: Option<u32>, p: usize) -> usize {
    window.map_or(0, |w| (p + 1).saturating_sub(w as usize))
}

/// Scores of N queries for R runs of 16 keys: `to[n * TILE + r * RUN + position]`.
#[inline(always)]
unsafe fn score<S: Simd, const N: usize, const R: usize>(
    q: [*const f32; N],
    keys: [*const f32; R],
    k_dim: usize,
    to: *mut f32,
) {
    let vectors = RUN / S::LANES;
    // SAFETY: keys hold `[k_dim][16]` each, each q `k_dim`, and `to` N rows of at least 16 R.
    unsafe {
        let mut sums = [[[S::splat(0.0); 4]; R]; N];
        for d in 0..k_dim {
            for r in 0..R {
                let mut k = [S::splat(0.0); 4];
                for v in 0..vectors {
                    k[v] = S::load(keys[r].add(d * RUN + v * S::LANES));
                }
                for n in 0..N {
                    let x = S::splat(*q[n].add(d));
                    for v in 0..vectors {
                        sums[n][r][v] = S::fma(k[v], x, sums[n][r][v]);
                    }
                }
            }
        }
        for n in 0..N {
            for r in 0..R {
                for v in 0..vectors {
                    S::store(to.add(n * TILE + r * RUN + v * S::LANES), sums[n][r][v]);
                }
            }
        }
    }
}

/// One query's pass over a tile.
struct Softmax {
    scale: f32,
    softcap: Option<f32>,
    /// Slope, and tile start minus query position.
    bias: Option<(f32, f32)>,
    /// Positions of the tile that count.
    seen: Range<usize>,
}

impl Softmax {
    /// Turns scores into weights relative to the new maximum; returns what earlier sums must be multiplied by.
    #[inline(always)]
    unsafe fn run<S: Simd>(&self, scores: &mut [f32], most: &mut f32, total: &mut f32) -> f32 {
        const COUNT: [f32; TILE] = {
            let mut c = [0.0; TILE];
            let mut i = 0;
            while i < TILE {
                c[i] = i as f32;
                i += 1;
            }
            c
        };
        scores[..self.seen.start].fill(f32::NEG_INFINITY);
        scores[self.seen.end..].fill(f32::NEG_INFINITY);
        // SAFETY: scores are TILE long, a whole number of vectors.
        unsafe {
            let p = scores.as_mut_ptr();
            let mut high = S::splat(f32::NEG_INFINITY);
            for i in (0..TILE).step_by(S::LANES) {
                let mut x = S::mul(S::load(p.add(i)), S::splat(self.scale));
                if let Some(cap) = self.softcap {
                    x = S::mul(S::splat(cap), math::tanh::<S>(S::div(x, S::splat(cap))));
                }
                if let Some((slope, start)) = self.bias {
                    let distance = S::add(S::load(COUNT.as_ptr().add(i)), S::splat(start));
                    x = S::fma(S::splat(slope), distance, x);
                }
                S::store(p.add(i), x);
            }
            // A soft cap makes -inf finite, a negative scale turns it.
            scores[..self.seen.start].fill(f32::NEG_INFINITY);
            scores[self.seen.end..].fill(f32::NEG_INFINITY);
            let p = scores.as_mut_ptr();
            for i in (0..TILE).step_by(S::LANES) {
                high = S::max(S::load(p.add(i)), high);
            }
            let new = most.max(largest::<S>(high));
            // -inf only when every score is: then all weights are e^0 less than nothing, i.e. 0.
            let base = if new == f32::NEG_INFINITY { 0.0 } else { new };
            let mut lanes = S::splat(0.0);
            for i in (0..TILE).step_by(S::LANES) {
                let w = math::exp::<S>(S::sub(S::load(p.add(i)), S::splat(base)));
                S::store(p.add(i), w);
                lanes = S::add(lanes, w);
            }
            let mut shrink = [0f32; 16];
            S::store(shrink.as_mut_ptr(), math::exp::<S>(S::splat(*most - base)));
            *total = *total * shrink[0] + sum::<S>(lanes);
            *most = new;
            shrink[0]
        }
    }
}

/// Adds `Σ weight × value` over the seen positions to the sums of H heads: `to[h * v_pad + element]`.
#[inline(always)]
unsafe fn weigh<S: Simd, const H: usize>(
    weights: *const f32,
    seen: &Range<usize>,
    values: impl Fn(usize) -> *const f32,
    v_pad: usize,
    to: *mut f32,
) {
    let vectors = v_pad / S::LANES;
    let mut v = 0;
    while v < vectors {
        // SAFETY: `values(at)` has v_pad elements, a whole number of vectors; weights have TILE per head.
        unsafe {
            if H == 1 && vectors - v >= 8 {
                columns::<S, H, 8>(weights, seen, &values, v_pad, to, v * S::LANES);
                v += 8;
            } else if vectors - v >= 4 {
                columns::<S, H, 4>(weights, seen, &values, v_pad, to, v * S::LANES);
                v += 4;
            } else {
                columns::<S, H, 1>(weights, seen, &values, v_pad, to, v * S::LANES);
                v += 1;
            }
        }
    }
}

#[inline(always)]
unsafe fn columns<S: Simd, const H: usize, const V: usize>(
    weights: *const f32,
    seen: &Range<usize>,
    values: &impl Fn(usize) -> *const f32,
    v_pad: usize,
    to: *mut f32,
    at: usize,
) {
    // SAFETY: see `weigh`; elements at..at + V × LANES exist.
    unsafe {
        let mut sums = [[S::splat(0.0); V]; H];
        for (h, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = S::load(to.add(h * v_pad + at + v * S::LANES));
            }
        }
        let mut position = seen.start;
        while position < seen.end {
            let end = seen.end.min((position / RUN + 1) * RUN);
            let mut value = values(position).add(at);
            while position < end {
                let mut loaded = [S::splat(0.0); V];
                for (v, loaded) in loaded.iter_mut().enumerate() {
                    *loaded = S::load(value.add(v * S::LANES));
                }
                for (h, sums) in sums.iter_mut().enumerate() {
                    let w = S::splat(*weights.add(h * TILE + position));
                    for v in 0..V {
                        sums[v] = S::fma(w, loaded[v], sums[v]);
                    }
                }
                value = value.wrapping_add(v_pad);
                position += 1;
            }
        }
        for (h, sums) in sums.iter().enumerate() {
            for (v, &sum) in sums.iter().enumerate() {
                S::store(to.add(h * v_pad + at + v * S::LANES), sum);
            }
        }
    }
}

/// Divides sums by totals.
#[inline(always)]
unsafe fn finish(
    state: &State<'_>,
    token: usize,
    heads: &Range<usize>,
    y: &Tensor,
    v_dim: usize,
    v_pad: usize,
) {
    for (query, sums) in state.sums.chunks_exact(v_pad).enumerate() {
        let row = token + query / heads.len();
        let head = heads.start + query % heads.len();
        // SAFETY: the unit alone writes this head of this row.
        let out = unsafe { std::slice::from_raw_parts_mut(y.at(row).add(head * v_dim), v_dim) };
        let factor = 1.0 / state.total[query];
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = sum * factor;
        }
    }
}

//! Layers with a state of fixed size per sequence.
//!
//! A sequence's tokens are walked in order by one worker per unit (a block of channels, or a head), so what a token gets
//! depends on neither the batch nor the chunk it came in. A row that starts at position 0 begins with a state of zeros,
//! whatever its block held before.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use guesthouse_graph::Activation;

use super::pointwise::{self, Unary};
use super::{Ctx, Instr, Place, Units, WorkerScratch};
use crate::cpu::simd::{Kernel, Simd};
use crate::device::BatchRow;

/// Channels of a unit of [`CausalConv`].
const CHANNELS: usize = 64;

/// Where the states of one layer are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    /// Cache id.
    pub cache: usize,
    pub group: usize,
    /// Floats of a state, which are those of a block.
    pub floats: usize,
}

impl State {
    /// First float of a row's state.
    fn of(&self, ctx: &Ctx<'_>, row: &BatchRow<'_>) -> *mut f32 {
        let block = row.tables[self.group][0].0 as usize;
        let memory = &ctx.kv.caches[self.cache].memory;
        debug_assert!((block + 1) * self.floats * 4 <= memory.len());
        memory.floats().wrapping_add(block * self.floats)
    }
}

/// `[c, width]` → `[width, c]`
pub(crate) fn transposed(weight: &[f32], c: usize) -> Arc<[f32]> {
    let width = weight.len() / c.max(1);
    (0..width * c)
        .map(|i| weight[i % c * width + i / c])
        .collect()
}

/// Depthwise causal convolution; see [`guesthouse_graph::Op::CausalConv`].
pub(crate) struct CausalConv {
    /// `[width, c]`
    pub weight: Arc<[f32]>,
    /// `[c]`
    pub bias: Option<Arc<[f32]>>,
    pub activation: Option<Activation>,
    /// `[width - 1, c]`, oldest first.
    pub state: State,
    /// At least 2.
    pub width: usize,
    pub x: Place,
    pub y: Place,
}

impl CausalConv {
    fn blocks(&self) -> usize {
        self.x.width.div_ceil(CHANNELS)
    }
}

impl Instr for CausalConv {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units {
            count: ctx.batch.rows.len() * self.blocks(),
            grain: 1,
        }
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, scratch: &mut WorkerScratch) {
        let floats = (self.width + 1) * CHANNELS;
        if scratch.attention.len() < floats {
            scratch.attention.resize(floats, 0.0);
        }
        for unit in units {
            let first = unit % self.blocks() * CHANNELS;
            let conv = ConvUnit {
                conv: self,
                ctx,
                row: &ctx.batch.rows[unit / self.blocks()],
                channels: first..self.x.width.min(first + CHANNELS),
                scratch: &mut scratch.attention[..floats],
            };
            // SAFETY: a unit is a block of channels of one sequence: of its rows and of its state.
            unsafe { ctx.isa.run(conv) };
        }
    }
}

/// A block of channels over one row's tokens.
struct ConvUnit<'a> {
    conv: &'a CausalConv,
    ctx: &'a Ctx<'a>,
    row: &'a BatchRow<'a>,
    channels: Range<usize>,
    /// The last `width` inputs, the i-th of state and tokens at `i % width`, and a sum: `[width + 1, CHANNELS]`.
    scratch: &'a mut [f32],
}

impl Kernel for ConvUnit<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (conv, row, at) = (self.conv, self.row, self.channels.start);
        let (n, c, width) = (self.channels.len(), conv.x.width, conv.width);
        let (x, y) = (self.ctx.tensor(&conv.x), self.ctx.tensor(&conv.y));
        let (ring, sum) = self.scratch.split_at_mut(width * CHANNELS);
        let sum = &mut sum[..n];
        // SAFETY: the block is this sequence's, and the columns are this unit's.
        let states = unsafe {
            std::slice::from_raw_parts_mut(conv.state.of(self.ctx, row), (width - 1) * c)
        };
        for (i, state) in states.chunks_exact(c).enumerate() {
            let old = &mut ring[i * CHANNELS..][..n];
            if row.start == 0 {
                old.fill(0.0);
            } else {
                old.copy_from_slice(&state[at..at + n]);
            }
        }
        for t in 0..row.len as usize {
            // SAFETY: the token's rows exist; nobody else reads or writes these columns of y.
            let (x, y) = unsafe {
                let y = y.at(row.first + t).wrapping_add(at);
                (
                    &x.row(row.first + t)[at..at + n],
                    std::slice::from_raw_parts_mut(y, n),
                )
            };
            ring[(t + width - 1) % width * CHANNELS..][..n].copy_from_slice(x);
            match &conv.bias {
                Some(bias) => sum.copy_from_slice(&bias[at..at + n]),
                None => sum.fill(0.0),
            }
            for j in 0..width {
                let input = &ring[(t + j) % width * CHANNELS..][..n];
                let weight = &conv.weight[j * c + at..][..n];
                for ((sum, x), w) in sum.iter_mut().zip(input).zip(weight) {
                    *sum += x * w;
                }
            }
            let function = conv.activation.map_or(Unary::Copy, Unary::Activation);
            // SAFETY: the instruction set is there.
            unsafe { pointwise::map::<S>(function, sum, y) };
        }
        for (i, state) in states.chunks_exact_mut(c).enumerate() {
            let last = &ring[(row.len as usize + i) % width * CHANNELS..][..n];
            state[at..at + n].copy_from_slice(last);
        }
    }
}

/// Gated delta rule; see [`guesthouse_graph::Op::DeltaRule`].
pub(crate) struct DeltaRule {
    pub scale: f32,
    /// `[heads, k, v]`
    pub state: State,
    pub heads: usize,
    /// k and v.
    pub dims: (usize, usize),
    /// q, k, v, g, beta.
    pub inputs: [Place; 5],
    pub y: Place,
}

impl Instr for DeltaRule {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units {
            count: ctx.batch.rows.len() * self.heads,
            grain: 1,
        }
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, scratch: &mut WorkerScratch) {
        let (_, v) = self.dims;
        if scratch.attention.len() < v {
            scratch.attention.resize(v, 0.0);
        }
        for unit in units {
            let rule = DeltaUnit {
                rule: self,
                ctx,
                row: &ctx.batch.rows[unit / self.heads],
                head: unit % self.heads,
                read: &mut scratch.attention[..v],
            };
            // SAFETY: a unit is a head of one sequence: of its rows and of its state.
            unsafe { ctx.isa.run(rule) };
        }
    }
}

/// A head over one row's tokens.
struct DeltaUnit<'a> {
    rule: &'a DeltaRule,
    ctx: &'a Ctx<'a>,
    row: &'a BatchRow<'a>,
    head: usize,
    /// `Sᵀk`, then what is added of k: `[v]`.
    read: &'a mut [f32],
}

impl Kernel for DeltaUnit<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (rule, row, head) = (self.rule, self.row, self.head);
        let (k_dim, v_dim) = rule.dims;
        let [q, k, v, g, beta] = rule.inputs.map(|place| self.ctx.tensor(&place));
        let y = self.ctx.tensor(&rule.y);
        let size = k_dim * v_dim;
        // SAFETY: the block is this sequence's, and the head is this unit's.
        let state = unsafe {
            let all = rule.state.of(self.ctx, row);
            std::slice::from_raw_parts_mut(all.add(head * size), size)
        };
        if row.start == 0 {
            state.fill(0.0);
        }
        for t in row.first..row.first + row.len as usize {
            // SAFETY: the token's rows exist; nobody else reads or writes this head of y.
            let (q, k, v, y) = unsafe {
                let y = y.at(t).wrapping_add(head * v_dim);
                (
                    &q.row(t)[head * k_dim..][..k_dim],
                    &k.row(t)[head * k_dim..][..k_dim],
                    &v.row(t)[head * v_dim..][..v_dim],
                    std::slice::from_raw_parts_mut(y, v_dim),
                )
            };
            // SAFETY: as above.
            let (decay, beta) = unsafe { (g.row(t)[head].exp(), beta.row(t)[head]) };
            let read = &mut self.read[..v_dim];
            read.fill(0.0);
            for (line, &k) in state.chunks_exact_mut(v_dim).zip(k) {
                for (s, read) in line.iter_mut().zip(&mut *read) {
                    *s *= decay;
                    *read += k * *s;
                }
            }
            for (read, &v) in read.iter_mut().zip(v) {
                *read = beta * (v - *read);
            }
            y.fill(0.0);
            for ((line, &k), &q) in state.chunks_exact_mut(v_dim).zip(k).zip(q) {
                let q = q * rule.scale;
                for ((s, &add), y) in line.iter_mut().zip(&*read).zip(&mut *y) {
                    *s += k * add;
                    *y += q * *s;
                }
            }
        }
    }
}

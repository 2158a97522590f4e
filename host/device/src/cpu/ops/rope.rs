//! Rotary embeddings, and writing keys and values.
//!
//! Frequencies and angles are computed in f32 as Hugging Face's `modeling_rope_utils` does. Cosines and sines of a step's
//! tokens are made once per distinct rope, by [`RopeTable`], and used by all layers.

#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ops::Range;

use guesthouse_graph::{Rope, RopeScaling, RopeStyle};

use super::{Ctx, Instr, Place, Units, WorkerScratch};
use crate::cpu::kv::{KvShape, RUN};
use crate::cpu::simd::{Kernel, Simd};

#[cfg(test)]
mod tests;

/// How a rope's frequencies come about.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Frequencies {
    /// The same for every token.
    Fixed(Vec<f32>),
    /// From a base that depends on the length.
    Dynamic {
        theta: f32,
        factor: f32,
        original: f32,
    },
    /// Likewise, Qwen 1's rule.
    DynamicQwen { theta: f32, original: f32 },
    /// One of two sets.
    Long {
        short: Vec<f32>,
        long: Vec<f32>,
        original: u32,
    },
}

impl Frequencies {
    /// Those of a token. `len` is the larger of its sequence's prompt length and its position + 1; `admitted` tokens were
    /// known when the sequence was admitted.
    pub(crate) fn at(&self, len: u32, admitted: u32, rotary: usize) -> Cow<'_, [f32]> {
        match self {
            Self::Fixed(f) => Cow::Borrowed(f),
            Self::Dynamic {
                theta,
                factor,
                original,
            } => {
                let theta = dynamic_theta(*theta, *factor, *original, len, rotary);
                Cow::Owned(plain(theta, rotary))
            }
            Self::DynamicQwen { theta, original } => {
                let theta = qwen_theta(*theta, *original, len, rotary);
                Cow::Owned(plain(theta, rotary))
            }
            Self::Long {
                short,
                long,
                original,
            } => Cow::Borrowed(if len.max(admitted) > *original {
                long
            } else {
                short
            }),
        }
    }
}

/// `theta^(2i / rotary)`, i below rotary / 2.
fn powers(theta: f32, rotary: usize) -> impl Iterator<Item = f32> {
    (0..rotary / 2).map(move |i| theta.powf((2 * i) as f32 / rotary as f32))
}

fn plain(theta: f32, rotary: usize) -> Vec<f32> {
    powers(theta, rotary).map(|p| 1.0 / p).collect()
}

/// Frequencies of a rope and the factor on its cosines and sines. `factors` is the checkpoint tensor of
/// [`RopeScaling::Factors`], `rotary / 2` long.
pub(crate) fn frequencies(rope: &Rope, factors: Option<&[f32]>) -> (Frequencies, f32) {
    let (rotary, theta) = (rope.rotary as usize, rope.theta);
    let fixed = |f| (Frequencies::Fixed(f), 1.0);
    match &rope.scaling {
        RopeScaling::None => fixed(plain(theta, rotary)),
        RopeScaling::Linear { factor } => fixed(
            plain(theta, rotary)
                .into_iter()
                .map(|f| f / factor)
                .collect(),
        ),
        RopeScaling::Factors { .. } => {
            let factors = factors.unwrap_or_default();
            fixed(
                plain(theta, rotary)
                    .into_iter()
                    .zip(factors)
                    .map(|(f, by)| f / by)
                    .collect(),
            )
        }
        RopeScaling::Llama3 {
            factor,
            low,
            high,
            original,
        } => {
            let original = *original as f32;
            let (low_wave, high_wave) = (original / low, original / high);
            let scale = |f: f32| {
                let wave = std::f32::consts::TAU / f;
                if wave > low_wave {
                    f / factor
                } else if wave < high_wave {
                    f
                } else {
                    let smooth = (original / wave - low) / (high - low);
                    (1.0 - smooth) * f / factor + smooth * f
                }
            };
            fixed(plain(theta, rotary).into_iter().map(scale).collect())
        }
        RopeScaling::Yarn {
            factor,
            original,
            beta_fast,
            beta_slow,
            attention_factor,
            truncate,
        } => {
            let dim = f64::from(rope.rotary);
            let correction = |rotations: f32| {
                let turns = f64::from(*original) / (f64::from(rotations) * std::f64::consts::TAU);
                dim * turns.ln() / (2.0 * f64::from(theta).ln())
            };
            let (mut low, mut high) = (correction(*beta_fast), correction(*beta_slow));
            if *truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            low = low.max(0.0);
            high = high.min(dim - 1.0);
            if low == high {
                high += 0.001;
            }
            let (low, span) = (low as f32, (high - low) as f32);
            let each = powers(theta, rotary).enumerate().map(|(i, p)| {
                let ramp = ((i as f32 - low) / span).clamp(0.0, 1.0);
                let keep = 1.0 - ramp;
                1.0 / (factor * p) * (1.0 - keep) + 1.0 / p * keep
            });
            (Frequencies::Fixed(each.collect()), *attention_factor)
        }
        RopeScaling::Dynamic { factor, original } => (
            Frequencies::Dynamic {
                theta,
                factor: *factor,
                original: *original as f32,
            },
            1.0,
        ),
        RopeScaling::DynamicQwen { original } => (
            Frequencies::DynamicQwen {
                theta,
                original: *original as f32,
            },
            1.0,
        ),
        RopeScaling::LongRope {
            short,
            long,
            original,
            attention_factor,
        } => {
            let scaled = |by: &[f32]| {
                powers(theta, rotary)
                    .zip(by)
                    .map(|(p, by)| 1.0 / (by * p))
                    .collect()
            };
            let both = Frequencies::Long {
                short: scaled(short),
                long: scaled(long),
                original: *original,
            };
            (both, *attention_factor)
        }
    }
}

/// Base of the frequencies at a length (`LlamaDynamicNTKScalingRotaryEmbedding`).
fn dynamic_theta(theta: f32, factor: f32, original: f32, len: u32, rotary: usize) -> f32 {
    let (factor, original) = (f64::from(factor), f64::from(original));
    let len = f64::from(len).max(original);
    let d = rotary as f64;
    (f64::from(theta) * (factor * len / original - (factor - 1.0)).powf(d / (d - 2.0))) as f32
}

fn qwen_theta(theta: f32, original: f32, len: u32, rotary: usize) -> f32 {
    let ratio = f64::from(len) / f64::from(original);
    let alpha = (2f64.powf((ratio.log2() + 1.0).ceil()) - 1.0).max(1.0);
    let d = rotary as f64;
    (f64::from(theta) * alpha.powf(d / (d - 2.0))) as f32
}

/// Fills a table of cosines and sines, `[token][rotary / 2]` each, for the step's tokens.
pub(crate) struct RopeTable {
    /// Index into [`Ctx::rope_tables`].
    pub table: usize,
    pub frequencies: Frequencies,
    pub factor: f32,
    pub half: usize,
    /// Integers, of which column `axis` counts.
    pub positions: Place,
    pub axis: usize,
}

impl Instr for RopeTable {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units::new(ctx.batch.tokens.len(), 64 * self.half, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        let positions = ctx.tensor(&self.positions);
        for t in units {
            let row = &ctx.batch.rows[ctx.row_of[t] as usize];
            let len = row.prompt_len.max(ctx.positions[t] + 1);
            let rotary = 2 * self.half;
            let frequencies = self.frequencies.at(len, row.admitted_len, rotary);
            // SAFETY: the table has room for two halves per token of the largest step; a unit is a token.
            let (cos, sin) = unsafe {
                let at = ctx.rope_tables[self.table].floats().add(t * rotary);
                let both = std::slice::from_raw_parts_mut(at, rotary);
                both.split_at_mut(self.half)
            };
            // SAFETY: the positions value has a row per token and a column `axis`.
            let position = unsafe { positions.ints(t)[self.axis] } as f32;
            for ((cos, sin), f) in cos.iter_mut().zip(sin).zip(frequencies.iter()) {
                let angle = position * f;
                *cos = angle.cos() * self.factor;
                *sin = angle.sin() * self.factor;
            }
        }
    }
}

/// How heads rotate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rotation {
    pub table: usize,
    pub half: usize,
    /// First rotated element of a head.
    pub start: usize,
    pub style: RopeStyle,
}

impl Rotation {
    /// # Safety
    /// The table was filled for this step.
    unsafe fn table<'a>(&self, ctx: &Ctx<'a>, token: usize) -> (&'a [f32], &'a [f32]) {
        // SAFETY: the table holds `2 * half` floats per token.
        let both = unsafe {
            let at = ctx.rope_tables[self.table]
                .floats()
                .add(token * 2 * self.half);
            std::slice::from_raw_parts(at.cast_const(), 2 * self.half)
        };
        both.split_at(self.half)
    }
}

/// Rotates each `d` elements of x into y.
struct Rotate<'a> {
    rotation: Rotation,
    d: usize,
    cos: &'a [f32],
    sin: &'a [f32],
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Rotation {
            half, start, style, ..
        } = self.rotation;
        for (x, y) in self
            .x
            .chunks_exact(self.d)
            .zip(self.y.chunks_exact_mut(self.d))
        {
            let end = start + 2 * half;
            y[..start].copy_from_slice(&x[..start]);
            y[end..].copy_from_slice(&x[end..]);
            let (x, y) = (&x[start..end], &mut y[start..end]);
            match style {
                RopeStyle::Neox => {
                    let (x1, x2) = x.split_at(half);
                    let (y1, y2) = y.split_at_mut(half);
                    let angles = self.cos.iter().zip(self.sin);
                    let xs = x1.iter().zip(x2);
                    for (((y1, y2), (x1, x2)), (cos, sin)) in
                        y1.iter_mut().zip(y2).zip(xs).zip(angles)
                    {
                        *y1 = x1 * cos - x2 * sin;
                        *y2 = x2 * cos + x1 * sin;
                    }
                }
                RopeStyle::Interleaved => {
                    let angles = self.cos.iter().zip(self.sin);
                    let pairs = x.chunks_exact(2).zip(y.chunks_exact_mut(2));
                    for ((x, y), (cos, sin)) in pairs.zip(angles) {
                        y[0] = x[0] * cos - x[1] * sin;
                        y[1] = x[1] * cos + x[0] * sin;
                    }
                }
            }
        }
    }
}

/// Rotates a value.
pub(crate) struct RopeApply {
    pub rotation: Rotation,
    pub d: usize,
    pub x: Place,
    pub y: Place,
}

impl Instr for RopeApply {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units::new(ctx.rows(self.y.arena), 2 * self.y.width, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        let (x, y) = (ctx.tensor(&self.x), ctx.tensor(&self.y));
        for t in units {
            // SAFETY: a unit is a row of y, as wide as x; the table was filled earlier in the program.
            unsafe {
                let (cos, sin) = self.rotation.table(ctx, t);
                let rotate = Rotate {
                    rotation: self.rotation,
                    d: self.d,
                    cos,
                    sin,
                    x: x.row(t),
                    y: y.row_mut(t),
                };
                ctx.isa.run(rotate);
            }
        }
    }
}

/// Writes keys (rotated or not) and values to a cache; where values are the prefix of keys, k is the rest of them.
pub(crate) struct WriteKv {
    pub rotation: Option<Rotation>,
    /// Cache id.
    pub cache: usize,
    pub shape: KvShape,
    pub k: Place,
    pub v: Place,
}

impl Instr for WriteKv {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units::new(
            ctx.batch.tokens.len(),
            4 * (self.k.width + self.v.width),
            ctx.workers,
        )
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, scratch: &mut WorkerScratch) {
        let cache = &ctx.kv.caches[self.cache];
        let shape = self.shape;
        let (k, v) = (ctx.tensor(&self.k), ctx.tensor(&self.v));
        let memory = cache.memory.floats();
        let start = shape.k_start();
        let rest = shape.k_dim - start;
        scratch
            .attention
            .resize(scratch.attention.len().max(self.k.width), 0.0);
        for t in units {
            let row = &ctx.batch.rows[ctx.row_of[t] as usize];
            let table = &row.tables[shape.group];
            let position = ctx.positions[t] as usize;
            let lane = position % RUN;
            // SAFETY: tables cover the step's positions and name blocks of the buffer; a unit is a token, and a token's
            // keys and values are its own.
            unsafe {
                let keys = match self.rotation {
                    None => k.row(t),
                    Some(rotation) => {
                        let (cos, sin) = rotation.table(ctx, t);
                        let y = &mut scratch.attention[..self.k.width];
                        ctx.isa.run(Rotate {
                            rotation,
                            d: rest,
                            cos,
                            sin,
                            x: k.row(t),
                            y: &mut *y,
                        });
                        &*y
                    }
                };
                for (head, keys) in keys.chunks_exact(rest).enumerate() {
                    let at = memory.add(shape.keys(table, head, position) + lane);
                    for (d, &key) in keys.iter().enumerate() {
                        *at.add((start + d) * RUN) = key;
                    }
                }
                for (head, values) in v.row(t).chunks_exact(shape.v_dim).enumerate() {
                    let keys = memory.add(shape.keys(table, head, position) + lane);
                    for (d, &value) in values[..start].iter().enumerate() {
                        *keys.add(d * RUN) = value;
                    }
                    let at = shape.values(table, head, position) + lane * shape.v_pad();
                    std::ptr::copy_nonoverlapping(values.as_ptr(), memory.add(at), shape.v_dim);
                }
            }
        }
    }
}

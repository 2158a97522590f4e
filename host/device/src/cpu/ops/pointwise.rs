//! Element by element.

#![allow(unsafe_code)]

use std::ops::Range;

use guesthouse_graph::{Activation, Gate, GateLayout};

use super::{Ctx, Instr, Place, Units, WorkerScratch};
use crate::cpu::math;
use crate::cpu::simd::{Isa, Kernel, Simd};

/// A function of one number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unary {
    Activation(Activation),
    Scale(f32),
    Clamp(f32, f32),
    SoftCap(f32),
    Copy,
}

/// `y = f(x)`
pub(crate) struct Map {
    pub function: Unary,
    pub x: Place,
    pub y: Place,
}

impl Instr for Map {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units::new(ctx.rows(self.y.arena), 4 * self.y.width, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        let (x, y) = (ctx.tensor(&self.x), ctx.tensor(&self.y));
        for row in units {
            // SAFETY: a unit is a row of y, as wide as x.
            unsafe {
                ctx.isa.run(MapRow {
                    function: self.function,
                    x: x.row(row),
                    y: y.row_mut(row),
                });
            };
        }
    }
}

struct MapRow<'a> {
    function: Unary,
    x: &'a [f32],
    y: &'a mut [f32],
}

/// `y = expression(a, b)` over vectors of two equally long slices; the tail is padded with zeros. A macro, because a
/// closure's body would not be compiled for the kernel's instruction set.
macro_rules! vectors {
    ($y:expr, [$first:expr, $second:expr], |$a:pat_param, $b:pat_param| $result:expr) => {{
        let (y, first, second): (&mut [f32], &[f32], &[f32]) = ($y, $first, $second);
        let n = S::LANES;
        let whole = y.len() / n * n;
        debug_assert!(first.len() == y.len() && second.len() == y.len());
        let mut i = 0;
        while i < whole {
            let ($a, $b) = (
                S::load(first.as_ptr().add(i)),
                S::load(second.as_ptr().add(i)),
            );
            S::store(y.as_mut_ptr().add(i), $result);
            i += n;
        }
        if whole < y.len() {
            let tail = y.len() - whole;
            let mut buffers = [[0f32; 16]; 2];
            buffers[0][..tail].copy_from_slice(&first[whole..]);
            buffers[1][..tail].copy_from_slice(&second[whole..]);
            let ($a, $b) = (S::load(buffers[0].as_ptr()), S::load(buffers[1].as_ptr()));
            S::store(buffers[0].as_mut_ptr(), $result);
            y[whole..].copy_from_slice(&buffers[0][..tail]);
        }
    }};
}

impl Kernel for MapRow<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's promise.
        unsafe { map::<S>(self.function, self.x, self.y) };
    }
}

/// `y = function(x)`, equally long.
#[inline(always)]
pub(super) unsafe fn map<S: Simd>(function: Unary, x: &[f32], y: &mut [f32]) {
    // SAFETY: the closures do register arithmetic; the instruction set is there.
    unsafe {
        match function {
            Unary::Activation(Activation::Softplus) => {
                // Rare and short: the standard library's functions, element by element.
                for (x, y) in x.iter().zip(y) {
                    *y = x.max(0.0) + (-x.abs()).exp().ln_1p();
                }
            }
            Unary::Activation(a) => activate::<S>(a, x, y),
            Unary::Scale(by) => vectors!(y, [x, x], |x, _| S::mul(S::splat(by), x)),
            Unary::Clamp(low, high) => {
                vectors!(y, [x, x], |x, _| {
                    S::min(S::splat(high), S::max(S::splat(low), x))
                });
            }
            Unary::SoftCap(cap) => vectors!(y, [x, x], |x, _| {
                S::mul(S::splat(cap), math::tanh::<S>(S::div(x, S::splat(cap))))
            }),
            Unary::Copy => y.copy_from_slice(x),
        }
    }
}

#[inline(always)]
unsafe fn activate<S: Simd>(a: Activation, x: &[f32], y: &mut [f32]) {
    // SAFETY: register arithmetic; the instruction set is there.
    unsafe {
        match a {
            Activation::Silu => vectors!(y, [x, x], |x, _| silu::<S>(x)),
            Activation::Gelu => vectors!(y, [x, x], |x, _| gelu::<S>(x)),
            Activation::GeluTanh => vectors!(y, [x, x], |x, _| gelu_tanh::<S>(x)),
            Activation::QuickGelu => vectors!(y, [x, x], |x, _| quick_gelu::<S>(x)),
            Activation::Relu => vectors!(y, [x, x], |x, _| relu::<S>(x)),
            Activation::Relu2 => vectors!(y, [x, x], |x, _| {
                let x = relu::<S>(x);
                S::mul(x, x)
            }),
            Activation::Sigmoid => vectors!(y, [x, x], |x, _| math::sigmoid::<S>(x)),
            Activation::Tanh => vectors!(y, [x, x], |x, _| math::tanh::<S>(x)),
            Activation::Exp => vectors!(y, [x, x], |x, _| math::exp::<S>(x)),
            Activation::Softplus => {}
        }
    }
}

#[inline(always)]
unsafe fn silu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: register arithmetic.
    unsafe {
        let e = math::exp::<S>(S::sub(S::splat(0.0), x));
        S::div(x, S::add(S::splat(1.0), e))
    }
}

#[inline(always)]
unsafe fn quick_gelu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: register arithmetic.
    unsafe { S::mul(x, math::sigmoid::<S>(S::mul(S::splat(1.702), x))) }
}

#[inline(always)]
unsafe fn relu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: register arithmetic. NaN stays: `max` returns its second operand then.
    unsafe { S::max(S::splat(0.0), x) }
}

#[inline(always)]
unsafe fn gelu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: register arithmetic.
    unsafe {
        let e = math::erf::<S>(S::mul(x, S::splat(std::f32::consts::FRAC_1_SQRT_2)));
        S::mul(S::mul(S::splat(0.5), x), S::add(S::splat(1.0), e))
    }
}

#[inline(always)]
unsafe fn gelu_tanh<S: Simd>(x: S::F) -> S::F {
    // sqrt(2 / π)
    const C: f32 = 0.797_884_6;
    // SAFETY: register arithmetic.
    unsafe {
        let cube = S::mul(S::mul(x, x), x);
        let inner = S::mul(S::splat(C), S::fma(S::splat(0.044_715), cube, x));
        S::mul(
            S::mul(S::splat(0.5), x),
            S::add(S::splat(1.0), math::tanh::<S>(inner)),
        )
    }
}

/// Where a gated activation finds its two inputs.
pub(crate) enum GateInput {
    /// Two values.
    Pair(Place, Place),
    /// One value of twice the width.
    Merged(Place, GateLayout),
}

/// `act(gate) * up`
pub(crate) struct Gated {
    pub gate: Gate,
    pub input: GateInput,
    pub y: Place,
}

/// Elements of one unit.
const GATED_PIECE: usize = 1024;

impl Instr for Gated {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        let pieces = self.y.width.div_ceil(GATED_PIECE);
        Units::new(
            ctx.rows(self.y.arena) * pieces,
            8 * self.y.width.min(GATED_PIECE),
            ctx.workers,
        )
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        let y = ctx.tensor(&self.y);
        let pieces = self.y.width.div_ceil(GATED_PIECE);
        let mut apart = [[0f32; GATED_PIECE]; 2];
        for unit in units {
            let (row, start) = (unit / pieces, unit % pieces * GATED_PIECE);
            let end = self.y.width.min(start + GATED_PIECE);
            // SAFETY: a unit is a piece of a row of y; inputs have the widths that loading checked.
            unsafe {
                let y = &mut std::slice::from_raw_parts_mut(y.at(row), self.y.width)[start..end];
                let (gate, up) = match &self.input {
                    GateInput::Pair(gate, up) => (
                        &ctx.tensor(gate).row(row)[start..end],
                        &ctx.tensor(up).row(row)[start..end],
                    ),
                    GateInput::Merged(x, GateLayout::Halves) => {
                        let (gate, up) = ctx.tensor(x).row(row).split_at(self.y.width);
                        (&gate[start..end], &up[start..end])
                    }
                    GateInput::Merged(x, GateLayout::Interleaved) => {
                        let pairs = ctx.tensor(x).row(row)[2 * start..2 * end].chunks_exact(2);
                        let [gate, up] = &mut apart;
                        for ((pair, gate), up) in pairs.zip(&mut *gate).zip(&mut *up) {
                            (*gate, *up) = (pair[0], pair[1]);
                        }
                        (&gate[..end - start], &up[..end - start])
                    }
                };
                ctx.isa.run(GatedPiece {
                    function: self.gate,
                    gate,
                    up,
                    y,
                });
            }
        }
    }
}

struct GatedPiece<'a> {
    function: Gate,
    gate: &'a [f32],
    up: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for GatedPiece<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: register arithmetic; slices are equally long.
        unsafe {
            match self.function {
                Gate::Plain(Activation::Silu) => {
                    vectors!(self.y, [self.gate, self.up], |g, u| S::mul(silu::<S>(g), u));
                }
                Gate::Plain(Activation::GeluTanh) => {
                    vectors!(self.y, [self.gate, self.up], |g, u| S::mul(
                        gelu_tanh::<S>(g),
                        u
                    ));
                }
                Gate::Plain(a) => {
                    MapRow {
                        function: Unary::Activation(a),
                        x: self.gate,
                        y: &mut *self.y,
                    }
                    .run::<S>();
                    for (y, up) in self.y.iter_mut().zip(self.up) {
                        *y *= up;
                    }
                }
                Gate::Clamped { alpha, limit } => vectors!(self.y, [self.gate, self.up], |g, u| {
                    let g = S::min(S::splat(limit), g);
                    let u = S::min(S::splat(limit), S::max(S::splat(-limit), u));
                    let s = math::sigmoid::<S>(S::mul(S::splat(alpha), g));
                    S::mul(S::mul(g, s), S::add(u, S::splat(1.0)))
                }),
            }
        }
    }
}

/// `y = act(gate) * up` over equally long slices.
pub(crate) fn gated(isa: Isa, function: Gate, gate: &[f32], up: &[f32], y: &mut [f32]) {
    assert!(gate.len() == y.len() && up.len() == y.len());
    // SAFETY: slices are equally long.
    unsafe {
        isa.run(GatedPiece {
            function,
            gate,
            up,
            y,
        });
    }
}

/// A function of two numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Binary {
    Add,
    Mul,
}

/// How the second operand's elements meet the first's.
pub(crate) enum Spread {
    /// Equal widths.
    Same,
    /// One number.
    One,
    /// Element of b for each element of a.
    Index(Vec<u32>),
}

/// `y = a ∘ b`
pub(crate) struct Zip {
    pub function: Binary,
    pub a: Place,
    pub b: Place,
    pub spread: Spread,
    pub y: Place,
}

impl Instr for Zip {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units::new(ctx.rows(self.y.arena), self.y.width, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        let (a, b, y) = (
            ctx.tensor(&self.a),
            ctx.tensor(&self.b),
            ctx.tensor(&self.y),
        );
        for row in units {
            // SAFETY: a unit is a row of y, as wide as a; the spread's indices are below b's width.
            unsafe {
                let (a, b, y) = (a.row(row), b.row(row), y.row_mut(row));
                match self.function {
                    Binary::Add => zip(&self.spread, a, b, y, |a, b| a + b),
                    Binary::Mul => zip(&self.spread, a, b, y, |a, b| a * b),
                }
            }
        }
    }
}

fn zip(spread: &Spread, a: &[f32], b: &[f32], y: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    match spread {
        Spread::Same => {
            for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
                *y = f(*a, *b);
            }
        }
        Spread::One => {
            for (y, a) in y.iter_mut().zip(a) {
                *y = f(*a, b[0]);
            }
        }
        Spread::Index(index) => {
            for ((y, a), &i) in y.iter_mut().zip(a).zip(index) {
                *y = f(*a, b[i as usize]);
            }
        }
    }
}

/// Qwen 1's factor on queries beyond the length of training.
pub(crate) struct LogNScale {
    pub train_len: f32,
    pub x: Place,
    pub positions: Place,
    pub y: Place,
}

impl Instr for LogNScale {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units::new(ctx.rows(self.y.arena), self.y.width, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        let (x, p, y) = (
            ctx.tensor(&self.x),
            ctx.tensor(&self.positions),
            ctx.tensor(&self.y),
        );
        for row in units {
            // SAFETY: a unit is a row of y, as wide as x.
            unsafe {
                let position = p.ints(row)[0] as f32;
                let by = ((position + 1.0).ln() / self.train_len.ln()).max(1.0);
                for (y, x) in y.row_mut(row).iter_mut().zip(x.row(row)) {
                    *y = x * by;
                }
            }
        }
    }
}

/// Integers to floats.
pub(crate) struct IntsToFloats {
    pub x: Place,
    pub y: Place,
}

impl Instr for IntsToFloats {
    fn units(&self, ctx: &Ctx<'_>) -> Units {
        Units::new(ctx.rows(self.y.arena), self.y.width, ctx.workers)
    }

    unsafe fn run(&self, ctx: &Ctx<'_>, units: Range<usize>, _: &mut WorkerScratch) {
        let (x, y) = (ctx.tensor(&self.x), ctx.tensor(&self.y));
        for row in units {
            // SAFETY: a unit is a row of y, as wide as x.
            unsafe {
                for (y, &x) in y.row_mut(row).iter_mut().zip(x.ints(row)) {
                    *y = x as f32;
                }
            }
        }
    }
}

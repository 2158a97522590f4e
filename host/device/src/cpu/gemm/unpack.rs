//! From packed bits to f32 in registers, exactly as the reference dequantization computes it.
//!
//! Every quantized weight is `a·q + b` with an unsigned integer q, and a, b per row and sub-block. `a·q` is exact in f32
//! for all types (11 bits of f16 scale, up to 8 of sub-scale, up to 8 of quant, never more than 24 together), and where
//! the format subtracts a constant c from q, `b = −c·a` and `a·q + b` are exact as well. Where it has a minimum the sum
//! is rounded once, in the reference too. So a fused multiply-add gives the reference's bits (but for the sign of zero).

#![allow(unsafe_code)]

use guesthouse_weights::BlockType;

use super::super::pack::{PANEL, mxfp4, planes};
use super::super::simd::Simd;

/// Integers that hold 8 consecutive columns of `LANES` rows, or the address of plain elements.
#[derive(Clone, Copy)]
pub(super) struct Octet<S: Simd> {
    low: S::I,
    high: S::I,
    plain: *const u8,
}

/// A packed format. `block` points to a whole panel block; `lane` is the first row, a multiple of `LANES` below 16.
///
/// # Safety of its functions
/// `block` is valid for the format's panel block; `sub < BLOCK / SUB`, `octet < SUB / 8`, `i < 8`; the instruction set
/// of `S` is available. All offsets are then inside the block: the largest is that of the last octet and lane.
pub(super) trait Unpack {
    /// Columns of a block.
    const BLOCK: usize;
    /// Columns that share a and b.
    const SUB: usize;
    /// Bytes of a panel block.
    const BYTES: usize;

    unsafe fn affine<S: Simd>(block: *const u8, sub: usize, lane: usize) -> (S::F, S::F);
    unsafe fn octet<S: Simd>(block: *const u8, sub: usize, octet: usize, lane: usize) -> Octet<S>;
    unsafe fn weight<S: Simd>(octet: &Octet<S>, i: usize, affine: (S::F, S::F)) -> S::F;
}

macro_rules! plain {
    ($name:ident, $size:literal, $load:ident, $ty:ty) => {
        pub(super) struct $name;

        impl Unpack for $name {
            const BLOCK: usize = 8;
            const SUB: usize = 8;
            const BYTES: usize = 8 * PANEL * $size;

            #[inline(always)]
            unsafe fn affine<S: Simd>(_: *const u8, _: usize, _: usize) -> (S::F, S::F) {
                // SAFETY: the trait's contract.
                unsafe { (S::splat(1.0), S::splat(0.0)) }
            }
            #[inline(always)]
            unsafe fn octet<S: Simd>(
                block: *const u8,
                _: usize,
                _: usize,
                lane: usize,
            ) -> Octet<S> {
                // SAFETY: lane < 16 stays in the first of 8 columns.
                unsafe {
                    Octet {
                        low: S::isplat(0),
                        high: S::isplat(0),
                        plain: block.add(lane * $size),
                    }
                }
            }
            #[inline(always)]
            unsafe fn weight<S: Simd>(octet: &Octet<S>, i: usize, _: (S::F, S::F)) -> S::F {
                // SAFETY: column i < 8 of the block, 16 rows each.
                unsafe { S::$load(octet.plain.add(i * PANEL * $size).cast::<$ty>()) }
            }
        }
    };
}

plain!(F32, 4, load, f32);
plain!(F16, 2, load_f16, u16);
plain!(Bf16, 2, load_bf16, u16);

/// Loads an f16 per row.
#[inline(always)]
unsafe fn half<S: Simd>(block: *const u8, at: usize, lane: usize) -> S::F {
    // SAFETY: 16 f16 stand at `at`.
    unsafe { S::load_f16(block.add(at + 2 * lane).cast()) }
}

#[inline(always)]
unsafe fn word<S: Simd>(block: *const u8, at: usize, index: usize, lane: usize) -> S::I {
    // SAFETY: a plane of u32 has 16 per index.
    unsafe { S::iload(block.add(at + index * 4 * PANEL + 4 * lane).cast()) }
}

macro_rules! quant {
    ($name:ident, $ty:ident, $sub:literal,
     |$block:ident, $s:ident, $lane:ident, $at:ident| $affine:expr,
     |$o:ident| $octet:expr,
     |$low:ident, $high:ident, $i:ident| $q:expr) => {
        pub(super) struct $name;

        impl Unpack for $name {
            const BLOCK: usize = BlockType::$ty.block_len();
            const SUB: usize = $sub;
            const BYTES: usize = planes::bytes(BlockType::$ty);

            #[inline(always)]
            unsafe fn affine<S: Simd>($block: *const u8, $s: usize, $lane: usize) -> (S::F, S::F) {
                let $at = const { planes::of(BlockType::$ty) };
                // SAFETY: the trait's contract; offsets are those of the layout.
                unsafe { $affine }
            }
            #[inline(always)]
            unsafe fn octet<S: Simd>(
                $block: *const u8,
                $s: usize,
                $o: usize,
                $lane: usize,
            ) -> Octet<S> {
                let $at = const { planes::of(BlockType::$ty) };
                // SAFETY: the trait's contract; offsets are those of the layout.
                let (low, high) = unsafe { $octet };
                Octet {
                    low,
                    high,
                    plain: $block,
                }
            }
            #[inline(always)]
            unsafe fn weight<S: Simd>(octet: &Octet<S>, $i: usize, (a, b): (S::F, S::F)) -> S::F {
                let ($low, $high) = (octet.low, octet.high);
                // SAFETY: shifts are below 32.
                unsafe {
                    let q = $q;
                    S::fma(a, S::to_f32(q), b)
                }
            }
        }
    };
}

/// `-c·a` for a format whose quants are around c.
#[inline(always)]
unsafe fn around<S: Simd>(a: S::F, c: f32) -> (S::F, S::F) {
    // SAFETY: register arithmetic.
    unsafe { (a, S::mul(a, S::splat(-c))) }
}

/// Scale and negated minimum from f16 pairs and integer sub-scales.
#[inline(always)]
unsafe fn with_min<S: Simd>(d: S::F, s: S::I, m: S::F, sm: S::I) -> (S::F, S::F) {
    // SAFETY: register arithmetic.
    unsafe {
        let minimum = S::mul(m, S::to_f32(sm));
        (S::mul(d, S::to_f32(s)), S::sub(S::splat(0.0), minimum))
    }
}

/// Four bits `i` of 8.
#[inline(always)]
unsafe fn nibble<S: Simd>(low: S::I, i: usize) -> S::I {
    // SAFETY: 4·7 < 32.
    unsafe { S::and(S::shr(low, 4 * i as i32), S::isplat(15)) }
}

/// Shifts so that bit `from` comes to bit `to`.
#[inline(always)]
unsafe fn moved<S: Simd>(x: S::I, from: i32, to: i32) -> S::I {
    // SAFETY: distances are below 32.
    unsafe {
        if from > to {
            S::shr(x, from - to)
        } else {
            S::shl(x, to - from)
        }
    }
}

/// A nibble with a fifth bit, of which `high` has 8 in its low bits.
#[inline(always)]
unsafe fn five<S: Simd>(low: S::I, high: S::I, i: usize) -> S::I {
    // SAFETY: shifts are below 32.
    unsafe {
        let bit = S::and(moved::<S>(high, i as i32, 4), S::isplat(16));
        S::or(nibble::<S>(low, i), bit)
    }
}

quant!(
    Q4_0,
    Q4_0,
    32,
    |block, _sub, lane, _at| around::<S>(half::<S>(block, 0, lane), 8.0),
    |o| (word::<S>(block, _at.low, o, lane), S::isplat(0)),
    |low, _high, i| nibble::<S>(low, i)
);

quant!(
    Q4_1,
    Q4_1,
    32,
    |block, _sub, lane, at| (half::<S>(block, 0, lane), half::<S>(block, at.min, lane)),
    |o| (word::<S>(block, at.low, o, lane), S::isplat(0)),
    |low, _high, i| nibble::<S>(low, i)
);

quant!(
    Q5_0,
    Q5_0,
    32,
    |block, _sub, lane, _at| around::<S>(half::<S>(block, 0, lane), 16.0),
    |o| (
        word::<S>(block, _at.low, o, lane),
        S::shr(word::<S>(block, _at.high, 0, lane), 8 * o as i32)
    ),
    |low, high, i| five::<S>(low, high, i)
);

quant!(
    Q5_1,
    Q5_1,
    32,
    |block, _sub, lane, at| (half::<S>(block, 0, lane), half::<S>(block, at.min, lane)),
    |o| (
        word::<S>(block, at.low, o, lane),
        S::shr(word::<S>(block, at.high, 0, lane), 8 * o as i32)
    ),
    |low, high, i| five::<S>(low, high, i)
);

quant!(
    Q8_0,
    Q8_0,
    32,
    |block, _sub, lane, _at| around::<S>(half::<S>(block, 0, lane), 128.0),
    |o| (
        word::<S>(block, _at.low, 2 * o, lane),
        word::<S>(block, _at.low, 2 * o + 1, lane)
    ),
    |low, high, i| S::and(
        S::shr(if i < 4 { low } else { high }, 8 * (i % 4) as i32),
        S::isplat(255)
    )
);

quant!(
    Q2K,
    Q2K,
    16,
    |block, sub, lane, at| {
        let s = S::iload_u8(block.add(at.scales + sub * PANEL + lane));
        with_min::<S>(
            half::<S>(block, 0, lane),
            S::and(s, S::isplat(15)),
            half::<S>(block, at.min, lane),
            S::shr(s, 4),
        )
    },
    |o| (
        S::shr(word::<S>(block, at.low, sub, lane), 16 * o as i32),
        S::isplat(0)
    ),
    |low, _high, i| S::and(S::shr(low, 2 * i as i32), S::isplat(3))
);

quant!(
    Q3K,
    Q3K,
    16,
    |block, sub, lane, at| {
        let s = S::to_f32(S::iload_i8(
            block.add(at.scales + sub * PANEL + lane).cast(),
        ));
        around::<S>(S::mul(half::<S>(block, 0, lane), s), 4.0)
    },
    |o| (
        S::shr(word::<S>(block, at.low, sub, lane), 16 * o as i32),
        S::shr(
            S::iload_u16(block.add(at.high + sub * 2 * PANEL + 2 * lane).cast()),
            8 * o as i32
        )
    ),
    |low, high, i| S::or(
        S::and(S::shr(low, 2 * i as i32), S::isplat(3)),
        S::and(moved::<S>(high, i as i32, 2), S::isplat(4))
    )
);

quant!(
    Q4K,
    Q4K,
    32,
    |block, sub, lane, at| with_min::<S>(
        half::<S>(block, 0, lane),
        S::iload_u8(block.add(at.scales + sub * PANEL + lane)),
        half::<S>(block, at.min, lane),
        S::iload_u8(block.add(at.mins + sub * PANEL + lane))
    ),
    |o| (word::<S>(block, at.low, 4 * sub + o, lane), S::isplat(0)),
    |low, _high, i| nibble::<S>(low, i)
);

quant!(
    Q5K,
    Q5K,
    32,
    |block, sub, lane, at| with_min::<S>(
        half::<S>(block, 0, lane),
        S::iload_u8(block.add(at.scales + sub * PANEL + lane)),
        half::<S>(block, at.min, lane),
        S::iload_u8(block.add(at.mins + sub * PANEL + lane))
    ),
    |o| (
        word::<S>(block, at.low, 4 * sub + o, lane),
        S::shr(word::<S>(block, at.high, sub, lane), 8 * o as i32)
    ),
    |low, high, i| five::<S>(low, high, i)
);

quant!(
    Q6K,
    Q6K,
    16,
    |block, sub, lane, at| {
        let s = S::to_f32(S::iload_i8(
            block.add(at.scales + sub * PANEL + lane).cast(),
        ));
        around::<S>(S::mul(half::<S>(block, 0, lane), s), 32.0)
    },
    |o| (
        word::<S>(block, at.low, 2 * sub + o, lane),
        S::shr(word::<S>(block, at.high, sub, lane), 16 * o as i32)
    ),
    |low, high, i| S::or(
        nibble::<S>(low, i),
        S::and(moved::<S>(high, 2 * i as i32, 4), S::isplat(48))
    )
);

pub(super) struct Mxfp4;

impl Unpack for Mxfp4 {
    const BLOCK: usize = mxfp4::LEN;
    const SUB: usize = mxfp4::LEN;
    const BYTES: usize = mxfp4::BYTES;

    #[inline(always)]
    unsafe fn affine<S: Simd>(block: *const u8, _: usize, lane: usize) -> (S::F, S::F) {
        // SAFETY: 16 scale bytes stand first.
        unsafe {
            let e = S::iload_u8(block.add(lane));
            // 2^(e − 127), which for e = 0 is not a normal number; 255 gives infinities, whose sum with b is NaN.
            let scale = S::max(
                S::splat(f32::from_bits(1 << 22)),
                S::from_bits(S::shl(e, 23)),
            );
            around::<S>(S::mul(scale, S::splat(0.5)), 12.0)
        }
    }

    #[inline(always)]
    unsafe fn octet<S: Simd>(block: *const u8, _: usize, o: usize, lane: usize) -> Octet<S> {
        // SAFETY: four words of low bits per row, one of high bits.
        unsafe {
            Octet {
                low: word::<S>(block, mxfp4::LOW, o, lane),
                high: S::shr(word::<S>(block, mxfp4::HIGH, 0, lane), 8 * o as i32),
                plain: block,
            }
        }
    }

    #[inline(always)]
    unsafe fn weight<S: Simd>(octet: &Octet<S>, i: usize, (a, b): (S::F, S::F)) -> S::F {
        // SAFETY: shifts are below 32.
        unsafe { S::fma(a, S::to_f32(five::<S>(octet.low, octet.high, i)), b) }
    }
}

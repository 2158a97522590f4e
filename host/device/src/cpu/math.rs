//! exp, tanh, erf and what is made of them, on vectors.
//!
//! Polynomials are minimax fits made for this file (Lawson's algorithm against mpmath); with f32 rounding, results are
//! within a few units in the last place of f64, which the tests measure.

#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // Register arithmetic only; callers have the instruction set.

use super::simd::Simd;

#[cfg(test)]
mod tests;

#[inline(always)]
unsafe fn polynomial<S: Simd, const N: usize>(x: S::F, c: [f32; N]) -> S::F {
    unsafe {
        let mut sum = S::splat(c[N - 1]);
        for i in (0..N - 1).rev() {
            sum = S::fma(sum, x, S::splat(c[i]));
        }
        sum
    }
}

/// e^x; 0 below -86.6, infinity above 88.72, NaN of NaN.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const LOW: f32 = -86.6;
    const HIGH: f32 = 88.722_83;
    unsafe {
        let bounded = S::min(S::splat(HIGH), S::max(S::splat(LOW), x));
        let n = S::round(S::mul(bounded, S::splat(std::f32::consts::LOG2_E)));
        let whole = S::to_f32(n);
        let r = S::fma(whole, S::splat(-LN2_HIGH), bounded);
        let r = S::fma(whole, S::splat(-LN2_LOW), r);
        let tail = polynomial::<S, 5>(
            r,
            [
                0.5,
                0.166_665_18,
                0.041_666_206,
                0.008_368_884,
                0.001_395_047_9,
            ],
        );
        let p = S::add(S::fma(S::mul(r, r), tail, r), S::splat(1.0));
        // 2^(n - 1), doubled afterwards, so that n = 128 does not overflow.
        let power = S::from_bits(S::shl(S::iadd(n, S::isplat(126)), 23));
        let y = S::mul(S::mul(p, power), S::splat(2.0));
        let y = S::select_lt(S::splat(HIGH), x, S::splat(f32::INFINITY), y);
        S::select_lt(x, S::splat(LOW), S::splat(0.0), y)
    }
}

/// Bits of the sign, and the value without it.
#[inline(always)]
unsafe fn split_sign<S: Simd>(x: S::F) -> (S::I, S::F) {
    unsafe {
        let bits = S::to_bits(x);
        (
            S::and(bits, S::isplat(i32::MIN)),
            S::from_bits(S::and(bits, S::isplat(i32::MAX))),
        )
    }
}

#[inline(always)]
unsafe fn with_sign<S: Simd>(sign: S::I, x: S::F) -> S::F {
    unsafe { S::from_bits(S::or(sign, S::to_bits(x))) }
}

#[inline(always)]
pub(crate) unsafe fn tanh<S: Simd>(x: S::F) -> S::F {
    unsafe {
        let (sign, a) = split_sign::<S>(x);
        let u = S::mul(a, a);
        let c = [
            -0.333_332_84,
            0.133_314_91,
            -0.053_743_497,
            0.020_650_579,
            -0.005_717_037,
        ];
        let small = S::fma(S::mul(a, u), polynomial::<S, 5>(u, c), a);
        let e = exp::<S>(S::add(a, a));
        let large = S::sub(
            S::splat(1.0),
            S::div(S::splat(2.0), S::add(e, S::splat(1.0))),
        );
        with_sign::<S>(sign, S::select_lt(a, S::splat(0.625), small, large))
    }
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub(crate) unsafe fn sigmoid<S: Simd>(x: S::F) -> S::F {
    unsafe {
        let e = exp::<S>(S::sub(S::splat(0.0), x));
        S::div(S::splat(1.0), S::add(S::splat(1.0), e))
    }
}

#[inline(always)]
pub(crate) unsafe fn erf<S: Simd>(x: S::F) -> S::F {
    unsafe {
        let (sign, a) = split_sign::<S>(x);
        let u = S::mul(a, a);
        let near = S::mul(
            a,
            polynomial::<S, 7>(
                u,
                [
                    // Within one unit of 2/√π.
                    std::f32::consts::FRAC_2_SQRT_PI,
                    -0.376_126_26,
                    0.112_836,
                    -0.026_854_444,
                    0.005_189_535,
                    -8.020_841e-4,
                    7.889_119e-5,
                ],
            ),
        );
        // -ln(1 - erf) as a polynomial; beyond 4 the result is 1.
        let far = S::min(S::splat(4.0), a);
        let t = polynomial::<S, 9>(
            far,
            [
                -2.043_598_8e-4,
                1.129_661_2,
                0.633_039_6,
                0.108_638_994,
                -0.025_373_556,
                0.004_282_383,
                -4.637_88e-4,
                2.531_480_8e-5,
                -2.513_265_5e-7,
            ],
        );
        let far = S::sub(S::splat(1.0), exp::<S>(S::sub(S::splat(0.0), t)));
        with_sign::<S>(sign, S::select_lt(a, S::splat(1.0), near, far))
    }
}

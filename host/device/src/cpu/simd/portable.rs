//! Arrays of 8 lanes in plain Rust, for machines without the sets we know. Multiplies and adds round separately.

#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // Only loads and stores are unsafe, under `Simd`'s contract.

use half::{bf16, f16};

use super::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Portable;

const N: usize = 8;

#[inline(always)]
fn zip<A: Copy, B: Copy, C>(a: [A; N], b: [B; N], f: impl Fn(A, B) -> C) -> [C; N] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
unsafe fn lanes<T: Copy, C>(p: *const T, f: impl Fn(T) -> C) -> [C; N] {
    std::array::from_fn(|i| f(unsafe { p.add(i).read_unaligned() }))
}

impl Simd for Portable {
    type F = [f32; N];
    type I = [i32; N];
    const LANES: usize = N;

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; N] {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; N] {
        unsafe { p.cast::<[f32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: [f32; N]) {
        unsafe { p.cast::<[f32; N]>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> [f32; N] {
        unsafe { lanes(p, |b| f16::from_bits(b).to_f32()) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> [f32; N] {
        unsafe { lanes(p, |b| bf16::from_bits(b).to_f32()) }
    }
    #[inline(always)]
    unsafe fn add(a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn max(a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: [f32; N], b: [f32; N]) -> [f32; N] {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn fma(a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn select_lt(a: [f32; N], b: [f32; N], x: [f32; N], y: [f32; N]) -> [f32; N] {
        std::array::from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    unsafe fn round(a: [f32; N]) -> [i32; N] {
        a.map(|a| a.round_ties_even() as i32)
    }
    #[inline(always)]
    unsafe fn to_f32(a: [i32; N]) -> [f32; N] {
        a.map(|a| a as f32)
    }
    #[inline(always)]
    unsafe fn from_bits(a: [i32; N]) -> [f32; N] {
        a.map(|a| f32::from_bits(a.cast_unsigned()))
    }
    #[inline(always)]
    unsafe fn to_bits(a: [f32; N]) -> [i32; N] {
        a.map(|a| a.to_bits().cast_signed())
    }
    #[inline(always)]
    unsafe fn isplat(x: i32) -> [i32; N] {
        [x; N]
    }
    #[inline(always)]
    unsafe fn iload(p: *const u32) -> [i32; N] {
        unsafe { p.cast::<[i32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn iload_u16(p: *const u16) -> [i32; N] {
        unsafe { lanes(p, i32::from) }
    }
    #[inline(always)]
    unsafe fn iload_u8(p: *const u8) -> [i32; N] {
        unsafe { lanes(p, i32::from) }
    }
    #[inline(always)]
    unsafe fn iload_i8(p: *const i8) -> [i32; N] {
        unsafe { lanes(p, i32::from) }
    }
    #[inline(always)]
    unsafe fn iadd(a: [i32; N], b: [i32; N]) -> [i32; N] {
        zip(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn and(a: [i32; N], b: [i32; N]) -> [i32; N] {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    unsafe fn or(a: [i32; N], b: [i32; N]) -> [i32; N] {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    unsafe fn shr(a: [i32; N], n: i32) -> [i32; N] {
        a.map(|a| (a.cast_unsigned() >> n).cast_signed())
    }
    #[inline(always)]
    unsafe fn shl(a: [i32; N], n: i32) -> [i32; N] {
        a.map(|a| a << n)
    }
}

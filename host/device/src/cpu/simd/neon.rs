//! NEON: 4 lanes. Part of every aarch64.

#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // Each function forwards to one intrinsic under `Simd`'s contract.

use std::arch::aarch64::*;

use super::{Kernel, Simd};

#[inline(always)]
fn half(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

#[derive(Clone, Copy)]
pub(super) struct Neon;

/// Compiles `kernel` with NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn enter<K: Kernel>(kernel: K) -> K::Out {
    unsafe { kernel.run::<Neon>() }
}

impl Simd for Neon {
    type F = float32x4_t;
    type I = int32x4_t;
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: float32x4_t) {
        unsafe { vst1q_f32(p, x) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> float32x4_t {
        unsafe { vld1q_f32([half(*p), half(*p.add(1)), half(*p.add(2)), half(*p.add(3))].as_ptr()) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> float32x4_t {
        unsafe {
            vreinterpretq_f32_s32(vshlq_n_s32::<16>(vreinterpretq_s32_u32(vmovl_u16(
                vld1_u16(p),
            ))))
        }
    }
    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn select_lt(
        a: float32x4_t,
        b: float32x4_t,
        x: float32x4_t,
        y: float32x4_t,
    ) -> float32x4_t {
        unsafe { vbslq_f32(vcltq_f32(a, b), x, y) }
    }
    #[inline(always)]
    unsafe fn round(a: float32x4_t) -> int32x4_t {
        unsafe { vcvtnq_s32_f32(a) }
    }
    #[inline(always)]
    unsafe fn to_f32(a: int32x4_t) -> float32x4_t {
        unsafe { vcvtq_f32_s32(a) }
    }
    #[inline(always)]
    unsafe fn from_bits(a: int32x4_t) -> float32x4_t {
        unsafe { vreinterpretq_f32_s32(a) }
    }
    #[inline(always)]
    unsafe fn to_bits(a: float32x4_t) -> int32x4_t {
        unsafe { vreinterpretq_s32_f32(a) }
    }
    #[inline(always)]
    unsafe fn isplat(x: i32) -> int32x4_t {
        unsafe { vdupq_n_s32(x) }
    }
    #[inline(always)]
    unsafe fn iload(p: *const u32) -> int32x4_t {
        unsafe { vld1q_s32(p.cast()) }
    }
    #[inline(always)]
    unsafe fn iload_u16(p: *const u16) -> int32x4_t {
        unsafe { vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p))) }
    }
    #[inline(always)]
    unsafe fn iload_u8(p: *const u8) -> int32x4_t {
        unsafe {
            vld1q_s32(
                [
                    i32::from(*p),
                    i32::from(*p.add(1)),
                    i32::from(*p.add(2)),
                    i32::from(*p.add(3)),
                ]
                .as_ptr(),
            )
        }
    }
    #[inline(always)]
    unsafe fn iload_i8(p: *const i8) -> int32x4_t {
        unsafe {
            vld1q_s32(
                [
                    i32::from(*p),
                    i32::from(*p.add(1)),
                    i32::from(*p.add(2)),
                    i32::from(*p.add(3)),
                ]
                .as_ptr(),
            )
        }
    }
    #[inline(always)]
    unsafe fn iadd(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vaddq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn and(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vandq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vorrq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn shr(a: int32x4_t, n: i32) -> int32x4_t {
        unsafe { vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-n))) }
    }
    #[inline(always)]
    unsafe fn shl(a: int32x4_t, n: i32) -> int32x4_t {
        unsafe { vshlq_s32(a, vdupq_n_s32(n)) }
    }
}

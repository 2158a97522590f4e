//! Vectors of f32, written once for every instruction set.
//!
//! A kernel is a struct that implements [`Kernel`]; [`Isa::run`] calls it inside a function compiled for the
//! instruction set at hand. Everything between there and the intrinsics is `#[inline(always)]`, or the compiler would
//! not use the wider registers.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

#[cfg(test)]
mod tests;

pub(crate) use portable::Portable;

/// A vector type of f32 and one of i32 with as many lanes.
///
/// # Safety of its functions
/// The instruction set must be available (guaranteed inside [`Kernel::run`] when called through [`Isa::run`]), and
/// pointers must be valid for `LANES` elements of the pointee; no alignment is needed.
pub(crate) trait Simd: Copy + 'static {
    /// Floats.
    type F: Copy;
    /// Signed 32-bit integers.
    type I: Copy;
    /// Lanes; divides 16.
    const LANES: usize;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, x: Self::F);
    unsafe fn load_f16(p: *const u16) -> Self::F;
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `b` where either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `b` where either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once where the instruction set can.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `x` where `a < b`, else `y`.
    unsafe fn select_lt(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// Nearest integer, ties to even; undefined lanes outside i32.
    unsafe fn round(a: Self::F) -> Self::I;
    unsafe fn to_f32(a: Self::I) -> Self::F;
    unsafe fn from_bits(a: Self::I) -> Self::F;
    unsafe fn to_bits(a: Self::F) -> Self::I;

    unsafe fn isplat(x: i32) -> Self::I;
    unsafe fn iload(p: *const u32) -> Self::I;
    unsafe fn iload_u16(p: *const u16) -> Self::I;
    unsafe fn iload_u8(p: *const u8) -> Self::I;
    unsafe fn iload_i8(p: *const i8) -> Self::I;
    unsafe fn iadd(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    /// Logical shift right, `n < 32`.
    unsafe fn shr(a: Self::I, n: i32) -> Self::I;
    /// Shift left, `n < 32`.
    unsafe fn shl(a: Self::I, n: i32) -> Self::I;
}

/// Sum of the lanes in a fixed order: halves added until one is left.
#[inline(always)]
pub(crate) unsafe fn sum<S: Simd>(x: S::F) -> f32 {
    let mut lanes = [0f32; 16];
    // SAFETY: 16 floats hold any vector; the caller has the instruction set.
    unsafe { S::store(lanes.as_mut_ptr(), x) };
    let mut n = S::LANES;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] += lanes[i + n];
        }
    }
    lanes[0]
}

/// Largest lane; NaN lanes are ignored.
#[inline(always)]
pub(crate) unsafe fn largest<S: Simd>(x: S::F) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    // SAFETY: 16 floats hold any vector; the caller has the instruction set.
    unsafe { S::store(lanes.as_mut_ptr(), x) };
    let mut n = S::LANES;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] = lanes[i].max(lanes[i + n]);
        }
    }
    lanes[0]
}

/// Code to compile for an instruction set.
pub(crate) trait Kernel {
    /// What it computes.
    type Out;

    /// Runs with vectors `S`. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// The machine has the instruction set of `S`, and the implementor's fields meet its own documented needs.
    unsafe fn run<S: Simd>(self) -> Self::Out;
}

/// An instruction set that this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[allow(dead_code)]
    Portable,
}

impl Isa {
    /// The best one here.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = std::arch::is_x86_feature_detected!("avx2")
                && std::arch::is_x86_feature_detected!("fma")
                && std::arch::is_x86_feature_detected!("f16c");
            if avx2 && std::arch::is_x86_feature_detected!("avx512f") {
                return Self::Avx512;
            }
            if avx2 {
                return Self::Avx2;
            }
            Self::Portable
        }
        #[cfg(target_arch = "aarch64")]
        {
            Self::Neon
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            Self::Portable
        }
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }

    /// Runs a kernel compiled for this set.
    ///
    /// # Safety
    /// What [`Kernel::run`] says about the kernel's fields. The instruction set is there: only [`Isa::detect`]
    /// makes one (tests make `Portable`, which is always there).
    #[inline]
    pub(crate) unsafe fn run<K: Kernel>(self, kernel: K) -> K::Out {
        // SAFETY: each arm's instruction set was detected; the caller vouches for the kernel.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Self::Avx512 => avx512::enter(kernel),
                #[cfg(target_arch = "x86_64")]
                Self::Avx2 => avx2::enter(kernel),
                #[cfg(target_arch = "aarch64")]
                Self::Neon => neon::enter(kernel),
                Self::Portable => kernel.run::<Portable>(),
            }
        }
    }
}

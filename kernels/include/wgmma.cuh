// arch: sm_90a
// Warpgroup matrix multiply-accumulate of Hopper: D[64, N] (f32, registers) += A[64, 16] B[16, N], 16-bit operands.
//
// All 128 threads of a warpgroup call these together. Accumulator element (row, col) of a warpgroup's 64 rows: thread t of
// the warpgroup, lane l = t % 32, warp w = t / 32, holds in d[4 j + i]: row 16 w + l / 4 + 8 (i / 2), col 8 j + 2 (l % 4) + i % 2.
// A in registers has the same order: a[0], a[1] are columns 0-7 of rows l / 4 and l / 4 + 8, a[2], a[3] columns 8-15.
//
// A sequence is: wgmma_fence(); any number of wgmma_*(); wgmma_commit(); wgmma_wait<groups still in flight>(). Accumulators
// and register operands may not be touched between; `hold(d)` after the wait keeps the compiler from moving uses above it.
#pragma once
#include "include/base.cuh"
#include "include/tma.cuh"

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int IN_FLIGHT> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(IN_FLIGHT) : "memory"); }

// Keeps uses of registers that an asynchronous product writes (or reads) from being moved above this point.
template <int N> DEVICE void hold(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> DEVICE void hold(u32 (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

// Matrix descriptors. A tile in shared memory is made of swizzle atoms: 8 lines of SWIZZLE bytes, whose 16-byte pieces are
// permuted by the low bits of the line number, as TMA does with the swizzle mode of that width. Tiles are aligned to 8 * SWIZZLE.
//
// K-major (a line is one row of A or column of B, elements along K): `stride` is the distance in bytes between atoms along
// M or N, 8 * SWIZZLE when they are packed. The next 16 elements of K in the same atom are 32 bytes further (`advance`).
// MN-major (a line is one k, elements along N; the transposed flag is set): `stride` is the distance between groups of 8 k,
// `leading` that between atoms along N. The next 16 elements of K are 2 * stride further.
template <int SWIZZLE> DEVICE u64 matrix_desc(u32 address, u32 stride, u32 leading = 16) {
  static_assert(SWIZZLE == 128 || SWIZZLE == 64 || SWIZZLE == 32, "swizzle width in bytes");
  constexpr u64 mode = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : 3;
  return (u64)((address & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | mode << 62;
}
DEVICE u64 advance(u64 desc, u32 bytes) { return desc + (bytes >> 4); }

// Whether a line of B runs along K or along N.
enum Major { K_MAJOR = 0, MN_MAJOR = 1 };

template <class T> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<bf16> = true;

// wgmma_ss: A (K-major) and B by descriptor. wgmma_rs: A in four registers. With accumulate == 0 D is overwritten.
// One pair per N; T is bf16 or f16.
template <class T, Major B, int M> DEVICE void wgmma_ss(float (&d)[M], u64 a, u64 b, int accumulate);
template <class T, Major B, int M> DEVICE void wgmma_rs(float (&d)[M], const u32* a, u64 b, int accumulate);

// Operand lists: "+f" of 4 accumulators from d[i].
#define ACC4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ACC8(i) ACC4(i), ACC4(i + 4)
#define ACC16(i) ACC8(i), ACC8(i + 8)
#define ACC32(i) ACC16(i), ACC16(i + 16)
#define ACC64(i) ACC32(i), ACC32(i + 32)

template <int N> struct Wgmma;


#define D_8 \
      "%0, %1, %2, %3"

template <> struct Wgmma<8> {
  template <class T, Major B> DEVICE static void ss(float (&d)[4], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %6, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE " {" D_8 "}, %4, %5, p, 1, 1, 0, %7;}" \
                           : ACC4(0) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[4], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %9, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32." TYPE " {" D_8 "}, {%4, %5, %6, %7}, %8, p, 1, 1, %10;}" \
                           : ACC4(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_8

#define D_16 \
      "%0, %1, %2, %3, %4, %5, %6, %7"

template <> struct Wgmma<16> {
  template <class T, Major B> DEVICE static void ss(float (&d)[8], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE " {" D_16 "}, %8, %9, p, 1, 1, 0, %11;}" \
                           : ACC8(0) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[8], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %13, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32." TYPE " {" D_16 "}, {%8, %9, %10, %11}, %12, p, 1, 1, %14;}" \
                           : ACC8(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_16

#define D_24 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11"

template <> struct Wgmma<24> {
  template <class T, Major B> DEVICE static void ss(float (&d)[12], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %14, 0; wgmma.mma_async.sync.aligned.m64n24k16.f32." TYPE " {" D_24 "}, %12, %13, p, 1, 1, 0, %15;}" \
                           : ACC8(0), ACC4(8) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[12], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %17, 0; wgmma.mma_async.sync.aligned.m64n24k16.f32." TYPE " {" D_24 "}, {%12, %13, %14, %15}, %16, p, 1, 1, %18;}" \
                           : ACC8(0), ACC4(8) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_24

#define D_32 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"

template <> struct Wgmma<32> {
  template <class T, Major B> DEVICE static void ss(float (&d)[16], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE " {" D_32 "}, %16, %17, p, 1, 1, 0, %19;}" \
                           : ACC16(0) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[16], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32." TYPE " {" D_32 "}, {%16, %17, %18, %19}, %20, p, 1, 1, %22;}" \
                           : ACC16(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_32

#define D_40 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19"

template <> struct Wgmma<40> {
  template <class T, Major B> DEVICE static void ss(float (&d)[20], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %22, 0; wgmma.mma_async.sync.aligned.m64n40k16.f32." TYPE " {" D_40 "}, %20, %21, p, 1, 1, 0, %23;}" \
                           : ACC16(0), ACC4(16) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[20], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %25, 0; wgmma.mma_async.sync.aligned.m64n40k16.f32." TYPE " {" D_40 "}, {%20, %21, %22, %23}, %24, p, 1, 1, %26;}" \
                           : ACC16(0), ACC4(16) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_40

#define D_48 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23"

template <> struct Wgmma<48> {
  template <class T, Major B> DEVICE static void ss(float (&d)[24], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %26, 0; wgmma.mma_async.sync.aligned.m64n48k16.f32." TYPE " {" D_48 "}, %24, %25, p, 1, 1, 0, %27;}" \
                           : ACC16(0), ACC8(16) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[24], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %29, 0; wgmma.mma_async.sync.aligned.m64n48k16.f32." TYPE " {" D_48 "}, {%24, %25, %26, %27}, %28, p, 1, 1, %30;}" \
                           : ACC16(0), ACC8(16) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_48

#define D_56 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27"

template <> struct Wgmma<56> {
  template <class T, Major B> DEVICE static void ss(float (&d)[28], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %30, 0; wgmma.mma_async.sync.aligned.m64n56k16.f32." TYPE " {" D_56 "}, %28, %29, p, 1, 1, 0, %31;}" \
                           : ACC16(0), ACC8(16), ACC4(24) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[28], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %33, 0; wgmma.mma_async.sync.aligned.m64n56k16.f32." TYPE " {" D_56 "}, {%28, %29, %30, %31}, %32, p, 1, 1, %34;}" \
                           : ACC16(0), ACC8(16), ACC4(24) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_56

#define D_64 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"

template <> struct Wgmma<64> {
  template <class T, Major B> DEVICE static void ss(float (&d)[32], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE " {" D_64 "}, %32, %33, p, 1, 1, 0, %35;}" \
                           : ACC32(0) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[32], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE " {" D_64 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;}" \
                           : ACC32(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_64

#define D_80 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39"

template <> struct Wgmma<80> {
  template <class T, Major B> DEVICE static void ss(float (&d)[40], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %42, 0; wgmma.mma_async.sync.aligned.m64n80k16.f32." TYPE " {" D_80 "}, %40, %41, p, 1, 1, 0, %43;}" \
                           : ACC32(0), ACC8(32) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[40], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %45, 0; wgmma.mma_async.sync.aligned.m64n80k16.f32." TYPE " {" D_80 "}, {%40, %41, %42, %43}, %44, p, 1, 1, %46;}" \
                           : ACC32(0), ACC8(32) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_80

#define D_96 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47"

template <> struct Wgmma<96> {
  template <class T, Major B> DEVICE static void ss(float (&d)[48], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %50, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32." TYPE " {" D_96 "}, %48, %49, p, 1, 1, 0, %51;}" \
                           : ACC32(0), ACC16(32) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[48], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %53, 0; wgmma.mma_async.sync.aligned.m64n96k16.f32." TYPE " {" D_96 "}, {%48, %49, %50, %51}, %52, p, 1, 1, %54;}" \
                           : ACC32(0), ACC16(32) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_96

#define D_112 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55"

template <> struct Wgmma<112> {
  template <class T, Major B> DEVICE static void ss(float (&d)[56], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %58, 0; wgmma.mma_async.sync.aligned.m64n112k16.f32." TYPE " {" D_112 "}, %56, %57, p, 1, 1, 0, %59;}" \
                           : ACC32(0), ACC16(32), ACC8(48) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[56], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %61, 0; wgmma.mma_async.sync.aligned.m64n112k16.f32." TYPE " {" D_112 "}, {%56, %57, %58, %59}, %60, p, 1, 1, %62;}" \
                           : ACC32(0), ACC16(32), ACC8(48) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_112

#define D_128 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
      "%60, %61, %62, %63"

template <> struct Wgmma<128> {
  template <class T, Major B> DEVICE static void ss(float (&d)[64], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE " {" D_128 "}, %64, %65, p, 1, 1, 0, %67;}" \
                           : ACC64(0) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[64], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE " {" D_128 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;}" \
                           : ACC64(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_128

#define D_144 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
      "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71"

template <> struct Wgmma<144> {
  template <class T, Major B> DEVICE static void ss(float (&d)[72], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %74, 0; wgmma.mma_async.sync.aligned.m64n144k16.f32." TYPE " {" D_144 "}, %72, %73, p, 1, 1, 0, %75;}" \
                           : ACC64(0), ACC8(64) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[72], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %77, 0; wgmma.mma_async.sync.aligned.m64n144k16.f32." TYPE " {" D_144 "}, {%72, %73, %74, %75}, %76, p, 1, 1, %78;}" \
                           : ACC64(0), ACC8(64) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_144

#define D_160 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
      "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"

template <> struct Wgmma<160> {
  template <class T, Major B> DEVICE static void ss(float (&d)[80], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %82, 0; wgmma.mma_async.sync.aligned.m64n160k16.f32." TYPE " {" D_160 "}, %80, %81, p, 1, 1, 0, %83;}" \
                           : ACC64(0), ACC16(64) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[80], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %85, 0; wgmma.mma_async.sync.aligned.m64n160k16.f32." TYPE " {" D_160 "}, {%80, %81, %82, %83}, %84, p, 1, 1, %86;}" \
                           : ACC64(0), ACC16(64) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_160

#define D_176 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
      "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
      "%80, %81, %82, %83, %84, %85, %86, %87"

template <> struct Wgmma<176> {
  template <class T, Major B> DEVICE static void ss(float (&d)[88], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %90, 0; wgmma.mma_async.sync.aligned.m64n176k16.f32." TYPE " {" D_176 "}, %88, %89, p, 1, 1, 0, %91;}" \
                           : ACC64(0), ACC16(64), ACC8(80) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[88], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %93, 0; wgmma.mma_async.sync.aligned.m64n176k16.f32." TYPE " {" D_176 "}, {%88, %89, %90, %91}, %92, p, 1, 1, %94;}" \
                           : ACC64(0), ACC16(64), ACC8(80) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_176

#define D_192 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
      "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

template <> struct Wgmma<192> {
  template <class T, Major B> DEVICE static void ss(float (&d)[96], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %98, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32." TYPE " {" D_192 "}, %96, %97, p, 1, 1, 0, %99;}" \
                           : ACC64(0), ACC32(64) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[96], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %101, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32." TYPE " {" D_192 "}, {%96, %97, %98, %99}, %100, p, 1, 1, %102;}" \
                           : ACC64(0), ACC32(64) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_192

#define D_208 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
      "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, " \
      "%100, %101, %102, %103"

template <> struct Wgmma<208> {
  template <class T, Major B> DEVICE static void ss(float (&d)[104], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %106, 0; wgmma.mma_async.sync.aligned.m64n208k16.f32." TYPE " {" D_208 "}, %104, %105, p, 1, 1, 0, %107;}" \
                           : ACC64(0), ACC32(64), ACC8(96) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[104], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %109, 0; wgmma.mma_async.sync.aligned.m64n208k16.f32." TYPE " {" D_208 "}, {%104, %105, %106, %107}, %108, p, 1, 1, %110;}" \
                           : ACC64(0), ACC32(64), ACC8(96) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_208

#define D_224 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
      "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, " \
      "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"

template <> struct Wgmma<224> {
  template <class T, Major B> DEVICE static void ss(float (&d)[112], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %114, 0; wgmma.mma_async.sync.aligned.m64n224k16.f32." TYPE " {" D_224 "}, %112, %113, p, 1, 1, 0, %115;}" \
                           : ACC64(0), ACC32(64), ACC16(96) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[112], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %117, 0; wgmma.mma_async.sync.aligned.m64n224k16.f32." TYPE " {" D_224 "}, {%112, %113, %114, %115}, %116, p, 1, 1, %118;}" \
                           : ACC64(0), ACC32(64), ACC16(96) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_224

#define D_240 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
      "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, " \
      "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119"

template <> struct Wgmma<240> {
  template <class T, Major B> DEVICE static void ss(float (&d)[120], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %122, 0; wgmma.mma_async.sync.aligned.m64n240k16.f32." TYPE " {" D_240 "}, %120, %121, p, 1, 1, 0, %123;}" \
                           : ACC64(0), ACC32(64), ACC16(96), ACC8(112) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[120], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %125, 0; wgmma.mma_async.sync.aligned.m64n240k16.f32." TYPE " {" D_240 "}, {%120, %121, %122, %123}, %124, p, 1, 1, %126;}" \
                           : ACC64(0), ACC32(64), ACC16(96), ACC8(112) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_240

#define D_256 \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
      "%60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, " \
      "%100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, " \
      "%120, %121, %122, %123, %124, %125, %126, %127"

template <> struct Wgmma<256> {
  template <class T, Major B> DEVICE static void ss(float (&d)[128], u64 a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %130, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE " {" D_256 "}, %128, %129, p, 1, 1, 0, %131;}" \
                           : ACC64(0), ACC64(64) : "l"(a), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
  template <class T, Major B> DEVICE static void rs(float (&d)[128], const u32* a, u64 b, int accumulate) {
#define RUN(TYPE) asm volatile("{.reg .pred p; setp.ne.b32 p, %133, 0; wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE " {" D_256 "}, {%128, %129, %130, %131}, %132, p, 1, 1, %134;}" \
                           : ACC64(0), ACC64(64) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"((int)B))
    if constexpr (is_bf16<T>) RUN("bf16.bf16"); else RUN("f16.f16");
#undef RUN
  }
};
#undef D_256


#undef ACC4
#undef ACC8
#undef ACC16
#undef ACC32
#undef ACC64

template <class T, Major B, int M> DEVICE void wgmma_ss(float (&d)[M], u64 a, u64 b, int accumulate) {
  Wgmma<2 * M>::template ss<T, B>(d, a, b, accumulate);
}
template <class T, Major B, int M> DEVICE void wgmma_rs(float (&d)[M], const u32* a, u64 b, int accumulate) {
  Wgmma<2 * M>::template rs<T, B>(d, a, b, accumulate);
}

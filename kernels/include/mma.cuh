// Warp-level matrix instructions of sm_80 and later: ldmatrix, mma.sync m16n8k16 with f32 sums, and cp.async.
//
// Fragments of m16n8k16 in the 32 lanes, with g = lane / 4 and t = lane % 4 (two elements a register, lower half first):
//   A [16 x 16], row-major: a0 = (g, 2t..), a1 = (g + 8, 2t..), a2 = (g, 2t + 8..), a3 = (g + 8, 2t + 8..)
//   B [16 x 8], by column:  b0 = (k = 2t.., n = g), b1 = (k = 2t + 8.., n = g)
//   C, D [16 x 8], f32:     c0, c1 = (g, 2t..), c2, c3 = (g + 8, 2t..)
// So two neighbouring C tiles, packed, are the A fragment of a product over their 16 columns:
// a = {pack(c[0], c[1]), pack(c[2], c[3]), pack(next c[0], c[1]), pack(next c[2], c[3])}.
#pragma once
#include "include/base.cuh"

// Address in the shared window, which the asm operands below take.
DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Four 8 x 8 matrices of 16-bit elements. Lane l gives the address (16-byte aligned) of row l % 8 of matrix l / 8; register i
// receives matrix i: row lane / 4, elements 2 (lane % 4) and the next.
// A from row-major [m][k] shared memory: address of row (l % 16), column 8 * (l / 16).
// B for two n-tiles from [n][k] shared memory (keys): address of row (l % 8 + 8 * (l / 16)), column 8 * (l / 8 % 2);
// then r[0], r[1] are b0, b1 of the first n-tile and r[2], r[3] those of the second.
DEVICE void ldmatrix(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
DEVICE void ldmatrix(u32 (&r)[2], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}

// The same, each matrix transposed: register i receives elements (2 (lane % 4) and the next, lane / 4).
// B for two n-tiles from [k][n] shared memory (values): address of row (l % 16), column 8 * (l / 16); then r[0], r[1] are b0, b1
// of the first n-tile and r[2], r[3] those of the second.
DEVICE void ldmatrix_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
DEVICE void ldmatrix_transposed(u32 (&r)[2], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}

// An 8 x 8 matrix of 16-bit elements across the warp, transposed: turns a C tile, packed, into B of the next product.
DEVICE u32 transposed(u32 x) {
  u32 y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// d += a * b. T is bf16 or f16.
template <class T> DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);
template <> DEVICE void mma<bf16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> DEVICE void mma<f16>(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes from global to shared memory, both aligned to 16, without passing through registers or L1. L2 reads whole lines:
// neighbours ask for the rest (streaming a cache on an H200 is 2.5 % faster so).
DEVICE void copy_async16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The same for what is read once: L2 gives it up before anything else. `policy` comes from `read_once`.
DEVICE void copy_async16_once(u32 to, const void* from, u64 policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy) : "memory");
}
DEVICE u64 read_once() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
// The same; what lies beyond the first `bytes` (0 .. 16) is written as zero and not read.
DEVICE void copy_async16(u32 to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// Closes the group of copies that this thread has issued since the last one.
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most LEFT groups of this thread are under way. Other threads see the data after a barrier.
template <int LEFT> DEVICE void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

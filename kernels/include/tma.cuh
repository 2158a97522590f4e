// Asynchronous copies into shared memory and what they need: mbarriers, bulk and tensor copies (sm_90+), named
// barriers, clusters. The older cp.async stands in mma.cuh.
//
// Shared-memory addresses are 32-bit (`smem_address`). An mbarrier is a u64 in shared memory, 8-byte aligned; one thread
// initialises it, calls `mbarrier_fence_init` and the block synchronises before anyone uses it. A wait for `parity` p
// returns once the phase of that parity is complete: a fresh barrier is in phase 0, so a consumer's first wait is for 0,
// and a producer's first wait for an empty slot is for 1 (returns at once).
#pragma once
#include "include/base.cuh"

DEVICE u32 smem_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// A CUtensorMap, made on the host; a member of the kernel's __grid_constant__ parameter.
struct __align__(64) TensorMap {
  u64 opaque[16];
};

// One thread of a converged warp; the same one every time.
DEVICE bool elect_one() {
#if __CUDA_ARCH__ >= 900
  u32 chosen;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(chosen));
  return chosen != 0;
#else
  return threadIdx.x % 32 == 0;
#endif
}

// Barrier `id` (1..15; 0 is __syncthreads) among `threads` threads, a multiple of 32.
DEVICE void named_sync(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
DEVICE void named_arrive(u32 id, u32 threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

// ---- mbarrier
DEVICE void mbarrier_init(u64* bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(bar)), "r"(arrivals) : "memory");
}
// Makes initialisations visible to the copy engine and to the other blocks of a cluster.
DEVICE void mbarrier_fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Makes ordinary shared-memory writes of this thread visible to the copy engine and to wgmma. Comes before the barrier.
DEVICE void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

DEVICE void mbarrier_arrive(u64* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(bar)) : "memory");
}
// Arrives, and has the phase wait for `bytes` of copies too. Call before the copies are issued.
DEVICE void mbarrier_arrive_expect(u64* bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(bar)), "r"(bytes) : "memory");
}
DEVICE void mbarrier_expect(u64* bar, u32 bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(smem_address(bar)), "r"(bytes) : "memory");
}
DEVICE bool mbarrier_test(u64* bar, u32 parity) {
  u32 done;
  asm volatile(
      "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(smem_address(bar)), "r"(parity)
      : "memory");
  return done != 0;
}
DEVICE void mbarrier_wait(u64* bar, u32 parity) {
  while (!mbarrier_test(bar, parity)) {
  }
}
// The same address in block `rank` of the cluster. A block must not exit while others may still use its shared memory.
DEVICE u32 cluster_address(const void* p, u32 rank) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(smem_address(p)), "r"(rank));
  return remote;
}
// Arrives at the barrier of block `rank`. Says that this block has read what copies brought; it publishes no ordinary
// stores to that block (release at cluster scope would cost a microsecond).
DEVICE void mbarrier_arrive_cluster(u64* bar, u32 rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(bar, rank)) : "memory");
}

// ---- L2 policies of copies, as createpolicy would make them.
static constexpr u64 L2_EVICT_NORMAL = 0x1000000000000000ull;
static constexpr u64 L2_EVICT_FIRST = 0x12F0000000000000ull;
static constexpr u64 L2_EVICT_LAST = 0x14F0000000000000ull;

// ---- bulk copies, one thread each. Addresses and `bytes` are multiples of 16; counts towards `bar`'s transaction bytes.
DEVICE void bulk_load(void* smem, const void* global, u32 bytes, u64* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   smem_address(smem)),
               "l"(global), "r"(bytes), "r"(smem_address(bar))
               : "memory");
}
DEVICE void bulk_load(void* smem, const void* global, u32 bytes, u64* bar, u64 policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                   smem_address(smem)),
               "l"(global), "r"(bytes), "r"(smem_address(bar)), "l"(policy)
               : "memory");
}
// Brings `bytes` to L2 only.
DEVICE void bulk_prefetch(const void* global, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}
// Shared to global. The source may be overwritten after `bulk_store_wait_read`.
DEVICE void bulk_store(void* global, const void* smem, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(smem_address(smem)), "r"(bytes)
               : "memory");
}
DEVICE void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> DEVICE void bulk_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
template <int N> DEVICE void bulk_store_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }

// ---- tensor copies. Coordinates count elements, innermost dimension first. What lies outside the
// tensor is read as zero and still counts its bytes. The shared-memory address is a multiple of 128, or of 1024 where the
// map's 128-byte swizzle shall start at row 0 of its pattern.
DEVICE void tensor_prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

#define TENSOR_LOAD_ARGS "l"(map), "r"(smem_address(smem)), "r"(smem_address(bar))
#define TENSOR_LOAD(dims) "cp.async.bulk.tensor." dims ".shared::cluster.global.mbarrier::complete_tx::bytes"

DEVICE void tensor_load_2d(void* smem, const TensorMap* map, u64* bar, int c0, int c1) {
  asm volatile(TENSOR_LOAD("2d") " [%1], [%0, {%3, %4}], [%2];" ::TENSOR_LOAD_ARGS, "r"(c0), "r"(c1) : "memory");
}
DEVICE void tensor_load_3d(void* smem, const TensorMap* map, u64* bar, int c0, int c1, int c2) {
  asm volatile(TENSOR_LOAD("3d") " [%1], [%0, {%3, %4, %5}], [%2];" ::TENSOR_LOAD_ARGS, "r"(c0), "r"(c1), "r"(c2) : "memory");
}
DEVICE void tensor_load_4d(void* smem, const TensorMap* map, u64* bar, int c0, int c1, int c2, int c3) {
  asm volatile(TENSOR_LOAD("4d") " [%1], [%0, {%3, %4, %5, %6}], [%2];" ::TENSOR_LOAD_ARGS, "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
DEVICE void tensor_load_5d(void* smem, const TensorMap* map, u64* bar, int c0, int c1, int c2, int c3, int c4) {
  asm volatile(TENSOR_LOAD("5d") " [%1], [%0, {%3, %4, %5, %6, %7}], [%2];" ::TENSOR_LOAD_ARGS, "r"(c0), "r"(c1), "r"(c2),
               "r"(c3), "r"(c4)
               : "memory");
}

// With an L2 policy.
DEVICE void tensor_load_2d(void* smem, const TensorMap* map, u64* bar, u64 policy, int c0, int c1) {
  asm volatile(TENSOR_LOAD("2d") ".L2::cache_hint [%1], [%0, {%4, %5}], [%2], %3;" ::TENSOR_LOAD_ARGS, "l"(policy), "r"(c0), "r"(c1)
               : "memory");
}
DEVICE void tensor_load_3d(void* smem, const TensorMap* map, u64* bar, u64 policy, int c0, int c1, int c2) {
  asm volatile(TENSOR_LOAD("3d") ".L2::cache_hint [%1], [%0, {%4, %5, %6}], [%2], %3;" ::TENSOR_LOAD_ARGS, "l"(policy), "r"(c0),
               "r"(c1), "r"(c2)
               : "memory");
}
DEVICE void tensor_load_4d(void* smem, const TensorMap* map, u64* bar, u64 policy, int c0, int c1, int c2, int c3) {
  asm volatile(TENSOR_LOAD("4d") ".L2::cache_hint [%1], [%0, {%4, %5, %6, %7}], [%2], %3;" ::TENSOR_LOAD_ARGS, "l"(policy), "r"(c0),
               "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
DEVICE void tensor_load_5d(void* smem, const TensorMap* map, u64* bar, u64 policy, int c0, int c1, int c2, int c3, int c4) {
  asm volatile(TENSOR_LOAD("5d") ".L2::cache_hint [%1], [%0, {%4, %5, %6, %7, %8}], [%2], %3;" ::TENSOR_LOAD_ARGS, "l"(policy),
               "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
               : "memory");
}

// To the same shared-memory offset (and barrier offset) in each block of the cluster whose bit is set in `blocks`. Each of
// them expects the bytes on its own barrier.
DEVICE void tensor_load_2d_multicast(void* smem, const TensorMap* map, u64* bar, u16 blocks, int c0, int c1) {
  asm volatile(TENSOR_LOAD("2d") ".multicast::cluster [%1], [%0, {%4, %5}], [%2], %3;" ::TENSOR_LOAD_ARGS, "h"(blocks), "r"(c0),
               "r"(c1)
               : "memory");
}
DEVICE void tensor_load_3d_multicast(void* smem, const TensorMap* map, u64* bar, u16 blocks, int c0, int c1, int c2) {
  asm volatile(TENSOR_LOAD("3d") ".multicast::cluster [%1], [%0, {%4, %5, %6}], [%2], %3;" ::TENSOR_LOAD_ARGS, "h"(blocks), "r"(c0),
               "r"(c1), "r"(c2)
               : "memory");
}
// Shared to global; commit and wait as for `bulk_store`. What lies outside the tensor is not written.
DEVICE void tensor_store_2d(const TensorMap* map, const void* smem, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(smem_address(smem)),
               "r"(c0), "r"(c1)
               : "memory");
}
DEVICE void tensor_store_3d(const TensorMap* map, const void* smem, int c0, int c1, int c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
               "r"(smem_address(smem)), "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
#undef TENSOR_LOAD
#undef TENSOR_LOAD_ARGS

// ---- clusters
DEVICE u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// Without publishing this block's ordinary stores, for which a fence of the whole GPU is needed.
DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// All threads of all blocks of the cluster.
DEVICE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
DEVICE float cluster_load(u32 address) {
  float x;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}
DEVICE void cluster_store(u32 address, float x) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Registers a thread of this warpgroup: all its warps call it, in a kernel with __launch_bounds__(threads, 1).
template <int N> DEVICE void registers_more() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> DEVICE void registers_fewer() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
#endif

#endif  // sm_90

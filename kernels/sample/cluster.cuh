// The blocks that share one draw: a cluster on sm_90 and later, one block elsewhere.
//
// CLUSTER says how many blocks. Each holds a slice of the row; small values are pushed into the others' shared memory
// and become visible at `cluster_sync`, larger ones are pulled after it.
#pragma once

#if CLUSTER > 1 && __CUDA_ARCH__ >= 900
#define CLUSTERED 1
constexpr int CTAS = CLUSTER;
#else
#define CLUSTERED 0
constexpr int CTAS = 1;
#endif

DEVICE u32 cta_rank() {
#if CLUSTERED
  u32 r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
#else
  return 0;
#endif
}

// Barrier over all threads of all blocks; orders shared memory of all of them.
DEVICE void cluster_sync() {
  __syncwarp();
#if CLUSTERED
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// A block's shared memory may be written by others only once it runs: between these two calls all of them begin.
DEVICE void cluster_enter() {
#if CLUSTERED
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
DEVICE void cluster_entered() {
#if CLUSTERED
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

// Address of block `cta`'s copy of a shared variable.
DEVICE u32 peer_address(const void* p, u32 cta) {
  u32 a = (u32)__cvta_generic_to_shared(p);
#if CLUSTERED
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(a) : "r"(cta));
#endif
  return a;
}

DEVICE u32 peer_load(const u32* p, u32 cta) {
#if CLUSTERED
  u32 x;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(x) : "r"(peer_address(p, cta)) : "memory");
  return x;
#else
  return *p;
#endif
}

DEVICE u64 peer_load(const u64* p, u32 cta) {
#if CLUSTERED
  u64 x;
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(x) : "r"(peer_address(p, cta)) : "memory");
  return x;
#else
  return *p;
#endif
}

DEVICE void peer_store(u64* p, u32 cta, u64 x) {
#if CLUSTERED
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(peer_address(p, cta)), "l"(x) : "memory");
#else
  *p = x;
#endif
}

DEVICE void peer_store(u32* p, u32 cta, u32 x) {
#if CLUSTERED
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(peer_address(p, cta)), "r"(x) : "memory");
#else
  *p = x;
#endif
}

// arch: sm_80+
// variants: MODEL_BF16 TOKENS=1; MODEL_F16 TOKENS=8 OUT_F32; MODEL_BF16 TOKENS=16 GATE=1 ROWS=16; MODEL_BF16 TOKENS=4 SPLIT=4
//
// y [M, N] = x [M, K] · weight [N, K]ᵀ (+ bias [N]) for a few tokens: bound by reading the weights once.
//
// A block takes whole tiles of ROWS weight rows, neighbours in memory, and streams them through a ring in shared memory.
// Its warps share out K; their sums meet in shared memory, in warp order. Weights are the n = 8 side of mma.m16n8k16,
// tokens the m side, so up to 8 tokens cost what one does. With SPLIT > 1 the blocks of a cluster (sm_90) share out K
// once more, so that each holds only its part of x. The order of every sum depends on K and the defines alone.
//
// The ring is filled before the wait for the previous kernel, and `ahead` more bytes are brought to L2: what runs
// meanwhile (norms, attention) needs little bandwidth.
//
// K is a multiple of 8, weight rows are 16-byte aligned; N is any. Defines:
//   TOKENS   the most tokens, 1..16         ROWS    rows of a tile, 8 or 16
//   CHUNK    columns of a stage             STAGES  stages of the ring
//   OUT_F32  y is f32                       SPLIT   blocks that share K (1, 2, 4, 8; grid and cluster are multiples)
//   GATE     1 silu, 2 gelu, 3 gelu-tanh: rows come in blocks of 8 gate rows, then their 8 up rows (ROWS=16), and
//            y [M, N / 2] = act(gate) * up, both rounded to model_t first
#include "include/tma.cuh"
#include "include/activation.cuh"
#include "include/mma.cuh"

#ifndef ROWS
#define ROWS 8
#endif
#ifndef CHUNK
#define CHUNK 1024
#endif
#ifndef STAGES
#define STAGES 6
#endif
#ifndef SPLIT
#define SPLIT 1
#endif
#ifndef POLICY
#define POLICY L2_EVICT_FIRST
#endif
#ifndef PREFETCH
#define PREFETCH 1
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef GATE
#define GATE 0
#endif
#ifdef OUT_F32
typedef float out_t;
#else
typedef model_t out_t;
#endif

struct GemvParams {
  const model_t* weight;  // [n, k]
  const model_t* x;       // [tokens, k], rows `x_stride` apart
  const model_t* bias;    // [n] or null
  out_t* y;               // [tokens, n] (n / 2 with GATE), rows `y_stride` apart
  i64 x_stride, y_stride;
  int n, k, tokens;
  int ahead;              // bytes a block brings to L2 beyond its ring before it waits
  int lead;               // stages before its last at which a block lets the next kernel start
};

static constexpr int ROW_BYTES = CHUNK * 2 + 64;  // 64: rows g and g + 1 of a 16-byte read fall into different banks
static constexpr int STAGE_BYTES = ROWS * ROW_BYTES;
static constexpr int WARP_COLUMNS = CHUNK / WARPS;
static constexpr int GROUPS = ROWS / 8;
static constexpr int CONSUMERS = WARPS * 32;
static constexpr int TILE_SUMS = TOKENS * ROWS;
static_assert(WARP_COLUMNS % 32 == 0 && (ROWS == 8 || ROWS == 16) && TOKENS <= 16, "shape");
static_assert(!GATE || ROWS == 16, "a tile holds gate and up rows");

DEVICE uint4 shared_load(u32 address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}

// One warp's columns of a stage: 32 at a time, a lane holding 8 neighbours of row (or token) lane / 4. Which of the 16
// columns of a multiplication they are called is the same for both operands, so it does not matter.
template <bool WHOLE> DEVICE void stage_sums(float (&acc)[2][GROUPS][4], u32 weights, u32 x, u32 x_row, int columns) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int p = 0; p < WARP_COLUMNS / 32; p++) {
    const bool inside = WHOLE || p * 32 + t * 8 < columns;
    uint4 a = zero, b = zero;
    if (inside && (TOKENS >= 8 || g < TOKENS)) a = shared_load(x + g * x_row + (p * 32 + t * 8) * 2);
    if (TOKENS > 8 && inside && g + 8 < TOKENS) b = shared_load(x + (g + 8) * x_row + (p * 32 + t * 8) * 2);
#pragma unroll
    for (int r = 0; r < GROUPS; r++) {
      uint4 w = zero;
      if (inside) w = shared_load(weights + (r * 8 + g) * ROW_BYTES + (p * 32 + t * 8) * 2);
      mma<model_t>(acc[0][r], {a.x, b.x, a.y, b.y}, w.x, w.y);
      mma<model_t>(acc[1][r], {a.z, b.z, a.w, b.w}, w.z, w.w);
    }
  }
}

struct Work {
  int first, tiles;   // of this block
  int from, columns;  // of K
  int chunks;
};

DEVICE Work work_of(const GemvParams& p) {
  const int tiles = (p.n + ROWS - 1) / ROWS, groups = gridDim.x / SPLIT, group = blockIdx.x / SPLIT;
  Work w;
  w.first = (int)((i64)tiles * group / groups);
  w.tiles = (int)((i64)tiles * (group + 1) / groups) - w.first;
  const int part = SPLIT == 1 ? p.k : ((p.k + SPLIT - 1) / SPLIT + 31) / 32 * 32;
  w.from = (blockIdx.x % SPLIT) * part;
  w.columns = max(0, min(part, p.k - w.from));
  w.chunks = (w.columns + CHUNK - 1) / CHUNK;
  return w;
}

// Before sm_90 each warp copies what it will read itself: its columns of stage `i`, one group of copies a stage.
DEVICE void copy_stage(const GemvParams& p, const Work& work, u8* ring, int i) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (i < work.tiles * work.chunks) {
    const int tile = work.first + i / work.chunks, column = i % work.chunks * CHUNK + warp * WARP_COLUMNS;
    u8* to = ring + i % STAGES * STAGE_BYTES + warp * WARP_COLUMNS * 2;
    for (int at = lane; at < ROWS * WARP_COLUMNS / 8; at += 32) {
      const int row = at / (WARP_COLUMNS / 8), c = at % (WARP_COLUMNS / 8) * 8;
      if (column + c < work.columns)
        copy_async16(smem_address(to + row * ROW_BYTES + c * 2),
                     p.weight + (i64)min(tile * ROWS + row, p.n - 1) * p.k + work.from + column + c);
    }
  }
  copy_async_commit();
}

// Writes the sum of one output; `row` counts from the tile's first, and with GATE is that of the gate.
DEVICE void finish(const GemvParams& p, int tile, int row, int token, float sum, float up) {
  int n = tile * ROWS + row;
  if (n >= p.n || token >= p.tokens) return;
  if (GATE) {
    float gate = rounded<model_t>(p.bias ? sum + to_float(p.bias[n]) : sum);
    up = rounded<model_t>(p.bias ? up + to_float(p.bias[n + 8]) : up);
    p.y[token * p.y_stride + tile * 8 + row] = from_float<out_t>(gated<GATE>(gate, up));
  } else {
    if (p.bias) sum += to_float(p.bias[n]);
    p.y[token * p.y_stride + n] = from_float<out_t>(sum);
  }
}

// Dynamic shared memory: ring [STAGES][STAGE_BYTES], sums f32 [2][WARPS][TOKENS][ROWS], then x [TOKENS][columns * 2 + 64
// bytes] (columns rounded up to 64), then with SPLIT > 1 the tiles' sums f32 [tiles][TOKENS][ROWS].
extern "C" __global__ void __launch_bounds__(CONSUMERS + 32) gemv(const __grid_constant__ GemvParams p) {
  extern __shared__ __align__(128) u8 shared[];
  float* sums = (float*)(shared + STAGES * STAGE_BYTES);
  u8* x_shared = (u8*)(sums + 2 * WARPS * TILE_SUMS);
  const Work work = work_of(p);
  const u32 x_row = (u32)((work.columns + 63) / 64 * 64) * 2 + 64;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __shared__ u64 full[STAGES], empty[STAGES];
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      mbarrier_init(&full[s], 1);
      mbarrier_init(&empty[s], WARPS);
    }
    mbarrier_fence_init();
  }
  __syncthreads();

  if (warp == WARPS) {
    const u8* base = (const u8*)p.weight;
    const i64 pitch = (i64)p.k * 2;
    const int stages = work.tiles * work.chunks;
    if (stages <= p.lead) let_next_start();
    for (int i = 0, tile = work.first, chunk = 0; i < stages; i++) {
      const int s = i % STAGES;
      if (i == stages - p.lead) let_next_start();
      if (i >= STAGES) mbarrier_wait(&empty[s], (i / STAGES - 1) & 1);
      const int bytes = min(CHUNK, work.columns - chunk * CHUNK) * 2;
      if (lane == 0) mbarrier_arrive_expect(&full[s], bytes * ROWS);
      __syncwarp();
      if (lane < ROWS) {
        const int row = min(tile * ROWS + lane, p.n - 1);
        bulk_load(shared + s * STAGE_BYTES + lane * ROW_BYTES, base + row * pitch + (work.from + chunk * CHUNK) * 2, bytes,
                  &full[s], POLICY);
      }
      if (++chunk == work.chunks) {
        chunk = 0;
        tile++;
      }
      if (PREFETCH == 1 && i == STAGES - 1 && p.ahead && SPLIT == 1) {
        // The block's rows are one piece of memory.
        const i64 from = (i64)tile * ROWS * pitch;
        const i64 to = min(min(from + p.ahead, (i64)(work.first + work.tiles) * ROWS * pitch), p.n * pitch);
        for (i64 at = from + lane * 4096; at < to; at += 32 * 4096) bulk_prefetch(base + at, (u32)min((i64)4096, to - at));
      }
    }
    if (SPLIT == 1) return;
  }
#endif

  if (warp < WARPS) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    for (int i = 0; i < STAGES - 1; i++) copy_stage(p, work, shared, i);
#endif
#if PREFETCH == 2
    if (p.ahead) {
      const i64 pitch = (i64)p.k * 2, ring = (i64)STAGES * ROWS * CHUNK * 2, start = (i64)work.first * ROWS * pitch;
      const i64 from = start + ring, to = min(min(from + p.ahead, (i64)(work.first + work.tiles) * ROWS * pitch), p.n * pitch);
      for (i64 at = from + threadIdx.x * 128; at < to; at += CONSUMERS * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"((const u8*)p.weight + at) : "memory");
    }
#endif
    wait_for_previous();
    const bool aligned = (((u64)p.x | (u64)(p.x_stride * 2)) & 15) == 0;
    if (aligned) {
      for (int token = 0; token < p.tokens; token++)
        for (int at = threadIdx.x * 8; at < work.columns; at += CONSUMERS * 8)
          copy_async16(smem_address(x_shared + token * x_row + at * 2), p.x + token * p.x_stride + work.from + at);
    } else {
      for (int token = 0; token < p.tokens; token++)
        for (int at = threadIdx.x; at < work.columns; at += CONSUMERS)
          ((model_t*)(x_shared + token * x_row))[at] = p.x[token * p.x_stride + work.from + at];
    }
    for (int token = p.tokens; token < TOKENS; token++)
      for (int at = threadIdx.x * 8; at < work.columns; at += CONSUMERS * 8)
        *(uint4*)(x_shared + token * x_row + at * 2) = make_uint4(0, 0, 0, 0);
    copy_async_commit();
    copy_async_wait<0>();
    named_sync(1, CONSUMERS);

    float* kept = (float*)(x_shared + TOKENS * x_row);
    const u32 ring = smem_address(shared) + warp * WARP_COLUMNS * 2, x = smem_address(x_shared) + warp * WARP_COLUMNS * 2;
    for (int i = 0, tile = 0; tile < work.tiles; tile++) {
      float acc[2][GROUPS][4] = {};
      for (int chunk = 0; chunk < work.chunks; chunk++, i++) {
        const int s = i % STAGES, columns = work.columns - chunk * CHUNK - warp * WARP_COLUMNS;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        mbarrier_wait(&full[s], (i / STAGES) & 1);
#else
        copy_stage(p, work, shared, i + STAGES - 1);
        copy_async_wait<STAGES - 1>();
        __syncwarp();
#endif
        if (columns >= WARP_COLUMNS)
          stage_sums<true>(acc, ring + s * STAGE_BYTES, x + chunk * CHUNK * 2, x_row, columns);
        else if (columns > 0)
          stage_sums<false>(acc, ring + s * STAGE_BYTES, x + chunk * CHUNK * 2, x_row, columns);
        __syncwarp();
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
        if (lane == 0) mbarrier_arrive(&empty[s]);
#endif
      }
      // Sums alternate between two buffers, so that one barrier a tile is enough.
      float* of_warps = sums + (tile & 1) * WARPS * TILE_SUMS;
      float* mine = of_warps + warp * TILE_SUMS;
#pragma unroll
      for (int r = 0; r < GROUPS; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const int token = lane / 4 + (c / 2) * 8, row = r * 8 + lane % 4 * 2 + c % 2;
          if (token < TOKENS) mine[token * ROWS + row] = acc[0][r][c] + acc[1][r][c];
        }
      named_sync(1, CONSUMERS);
      for (int o = threadIdx.x; o < TILE_SUMS / (GATE && SPLIT == 1 ? 2 : 1); o += CONSUMERS) {
        const int token = GATE && SPLIT == 1 ? o / 8 : o / ROWS, row = GATE && SPLIT == 1 ? o % 8 : o % ROWS;
        float sum = 0.f, up = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += of_warps[w * TILE_SUMS + token * ROWS + row];
        if (GATE && SPLIT == 1) {
#pragma unroll
          for (int w = 0; w < WARPS; w++) up += of_warps[w * TILE_SUMS + token * ROWS + row + 8];
        }
        if (SPLIT > 1)
          kept[tile * TILE_SUMS + o] = sum;
        else
          finish(p, work.first + tile, row, token, sum, up);
      }
    }
  }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  if (SPLIT > 1) {
    // All blocks of the cluster have the same tiles; each finishes its share of the outputs, adding in the order of rank.
    const int rank = blockIdx.x % SPLIT;
    u32 parts[SPLIT];
#pragma unroll
    for (int r = 0; r < SPLIT; r++) {
      const int part = ((p.k + SPLIT - 1) / SPLIT + 31) / 32 * 32, columns = max(0, min(part, p.k - r * part));
      const u32 row = (u32)((columns + 63) / 64 * 64) * 2 + 64;
      parts[r] = cluster_address(x_shared + TOKENS * row, r);
    }
    cluster_sync();
    const int per_tile = TILE_SUMS / (GATE ? 2 : 1), outputs = work.tiles * per_tile;
    for (int o = rank * (CONSUMERS + 32) + threadIdx.x; o < outputs; o += SPLIT * (CONSUMERS + 32)) {
      const int tile = o / per_tile, token = o % per_tile / (GATE ? 8 : ROWS), row = o % (GATE ? 8 : ROWS);
      const u32 at = (tile * TILE_SUMS + token * ROWS + row) * 4;
      float sum = 0.f, up = 0.f;
#pragma unroll
      for (int r = 0; r < SPLIT; r++) {
        sum += cluster_load(parts[r] + at);
        if (GATE) up += cluster_load(parts[r] + at + 32);
      }
      finish(p, work.first + tile, row, token, sum, up);
    }
    cluster_arrive_relaxed();
    cluster_wait();
  }
#endif
}

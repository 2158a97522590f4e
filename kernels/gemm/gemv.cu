// arch: sm_80+
// variants: MODEL_BF16 TOKENS=1; MODEL_F16 TOKENS=8 OUT_F32; MODEL_BF16 TOKENS=16 GATE=1; MODEL_BF16 TOKENS=4 SPLIT=4
//
// y [M, N] = x [M, K] · weight [N, K]ᵀ (+ bias [N]) for a few tokens: bound by reading the weights once.
//
// A block takes whole tiles of 8 weight rows and streams them through a ring in shared memory.
// Its warps share out K; their sums meet in shared memory, in warp order. Weights are the n = 8 side of mma.m16n8k16,
// tokens the m side, so up to 8 tokens cost what one does. With SPLIT > 1 the blocks of a cluster (sm_90) share out K
// once more, so that each holds only its part of x. The order of every sum depends on K and the defines alone.
//
// The ring is filled before the wait for the previous kernel: what runs meanwhile (norms, attention) needs little
// bandwidth. Prefetching more of the block's rows to L2 was tried and made a chain of kernels slower.
//
// K is a multiple of 8, weight rows are 16-byte aligned; N is any. Defines:
//   TOKENS   the most tokens, 1..16         CHUNK   columns of a stage
//   STAGES   stages of the ring
//   OUT_F32  y is f32                       SPLIT   blocks that share K (1, 2, 4, 8; grid and cluster are multiples)
//   GATE     1 silu, 2 gelu, 3 gelu-tanh: rows come in blocks of 8 gate rows, then their 8 up rows (SPLIT=1), and
//            y [M, N / 2] = act(gate) * up, both rounded to model_t first
#include "include/tma.cuh"
#include "include/activation.cuh"
#include "include/mma.cuh"

#ifndef CHUNK
#define CHUNK 1024
#endif
#ifndef STAGES
#define STAGES 6
#endif
#ifndef SPLIT
#define SPLIT 1
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
};

static constexpr int ROWS = 8;  // of a tile
static constexpr int ROW_BYTES = CHUNK * 2 + 64;  // 64: rows g and g + 1 of a 16-byte read fall into different banks
static constexpr int STAGE_BYTES = ROWS * ROW_BYTES;
static constexpr int WARP_COLUMNS = CHUNK / WARPS;
static constexpr int CONSUMERS = WARPS * 32;
static constexpr int TILE_SUMS = TOKENS * ROWS;
static_assert(WARP_COLUMNS % 32 == 0 && TOKENS <= 16 && TILE_SUMS <= CONSUMERS, "shape");
static_assert(!GATE || SPLIT == 1, "gate and up are finished by one block");

DEVICE uint4 shared_load(u32 address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address));
  return v;
}

// One warp's columns of a stage: 32 at a time, a lane holding 8 neighbours of row (or token) lane / 4. Which of the 16
// columns of a multiplication they are called is the same for both operands, so it does not matter.
template <bool WHOLE> DEVICE void stage_sums(float (&acc)[2][4], u32 weights, u32 x, u32 x_row, int columns) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int p = 0; p < WARP_COLUMNS / 32; p++) {
    const bool inside = WHOLE || p * 32 + t * 8 < columns;
    uint4 a = zero, b = zero;
    if (inside && (TOKENS >= 8 || g < TOKENS)) a = shared_load(x + g * x_row + (p * 32 + t * 8) * 2);
    if (TOKENS > 8 && inside && g + 8 < TOKENS) b = shared_load(x + (g + 8) * x_row + (p * 32 + t * 8) * 2);
    uint4 w = zero;
    if (inside) w = shared_load(weights + g * ROW_BYTES + (p * 32 + t * 8) * 2);
    mma<model_t>(acc[0], {a.x, b.x, a.y, b.y}, w.x, w.y);
    mma<model_t>(acc[1], {a.z, b.z, a.w, b.w}, w.z, w.w);
  }
}

// What a block works on. Blocks take tiles in turn, so that all of them read from few pages of memory at a time; with GATE
// a gate tile and its up tile stay together.
struct Work {
  static constexpr int UNIT = GATE ? 2 : 1;
  int group, groups, tiles;  // this block's place among those that share out the tiles, and how many tiles it has
  int from, columns;         // of K
  int chunks;
  // The block's i-th tile.
  DEVICE int tile(int i) const { return (group + i / UNIT * groups) * UNIT + i % UNIT; }
};

DEVICE Work work_of(const GemvParams& p) {
  const int units = (p.n + ROWS - 1) / ROWS / Work::UNIT;
  Work w;
  w.group = blockIdx.x / SPLIT;
  w.groups = gridDim.x / SPLIT;
  w.tiles = (units - w.group + w.groups - 1) / w.groups * Work::UNIT;
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
    const int tile = work.tile(i / work.chunks), column = i % work.chunks * CHUNK + warp * WARP_COLUMNS;
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

// Writes the sum of one output; `row` counts from the tile's first. With GATE the tile is that of the up rows.
DEVICE void finish(const GemvParams& p, int tile, int row, int token, float gate, float sum) {
  const int n = tile * ROWS + row;
  if (n >= p.n || token >= p.tokens) return;
  if (p.bias) sum += to_float(p.bias[n]);
  if (GATE) {
    if (p.bias) gate += to_float(p.bias[n - ROWS]);
    p.y[token * p.y_stride + tile / 2 * ROWS + row] =
        from_float<out_t>(gated<GATE, model_t>(gate, sum));
  } else {
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
  let_next_start();

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
    if (lane == 0) {
      const i64 pitch = (i64)p.k * 2;
      const int stages = work.tiles * work.chunks;
      for (int i = 0, of_block = 0, chunk = 0; i < stages; i++) {
        const int s = i % STAGES, tile = work.tile(of_block);
        if (i >= STAGES) mbarrier_wait(&empty[s], (i / STAGES - 1) & 1);
        const u32 bytes = min(CHUNK, work.columns - chunk * CHUNK) * 2;
        mbarrier_arrive_expect(&full[s], bytes * ROWS);
        const u8* from = (const u8*)p.weight + tile * ROWS * pitch + (work.from + chunk * CHUNK) * 2;
        u8* to = shared + s * STAGE_BYTES;
        // Beyond the last row it is repeated.
        const int last = p.n - 1 - tile * ROWS;
#pragma unroll
        for (int r = 0; r < ROWS; r++) bulk_load(to + r * ROW_BYTES, from + min(r, last) * pitch, bytes, &full[s], L2_EVICT_FIRST);
        if (++chunk == work.chunks) {
          chunk = 0;
          of_block++;
        }
      }
    }
    __syncwarp();
    if (SPLIT == 1) return;
  }
#endif

  if (warp < WARPS) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    for (int i = 0; i < STAGES - 1; i++) copy_stage(p, work, shared, i);
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
    float gate = 0.f;
    for (int i = 0, tile = 0; tile < work.tiles; tile++) {
      float acc[2][4] = {};
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
      for (int c = 0; c < 4; c++) {
        const int token = lane / 4 + c / 2 * 8;
        if (token < TOKENS) mine[token * ROWS + lane % 4 * 2 + c % 2] = acc[0][c] + acc[1][c];
      }
      named_sync(1, CONSUMERS);
      if (threadIdx.x < TILE_SUMS) {
        float sum = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += of_warps[w * TILE_SUMS + threadIdx.x];
        if (SPLIT > 1)
          kept[tile * TILE_SUMS + threadIdx.x] = sum;
        else if (GATE && tile % 2 == 0)
          gate = sum;
        else
          finish(p, work.tile(tile), threadIdx.x % ROWS, threadIdx.x / ROWS, gate, sum);
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
    for (int o = rank * (CONSUMERS + 32) + threadIdx.x; o < work.tiles * TILE_SUMS; o += SPLIT * (CONSUMERS + 32)) {
      float sum = 0.f;
#pragma unroll
      for (int r = 0; r < SPLIT; r++) sum += cluster_load(parts[r] + o * 4);
      finish(p, work.tile(o / TILE_SUMS), o % ROWS, o % TILE_SUMS / ROWS, 0.f, sum);
    }
    cluster_arrive_relaxed();
    cluster_wait();
  }
#endif
}

// arch: sm_90a
// variants: MODEL_BF16 TILE_TOKENS=64 STREAM; MODEL_F16 TILE_TOKENS=16 GROUPS=1 BOXES=2; MODEL_BF16 TILE_TOKENS=256 GATE=1; MODEL_BF16 TILE_TOKENS=8 OUT_F32
//
// y [M, N] = x [M, K] · weight [N, K]ᵀ (+ bias [N]) with wgmma: weight rows are its 64-row side, tokens its other one, so
// that few tokens waste nothing. One warp brings tiles in with TMA, GROUPS warpgroups of 64 rows multiply.
//
// Weights of the first STAGES steps are asked for before the wait for the previous kernel.
//
// Without STREAM a block takes whole tiles, and the sum of an output runs over K in steps of 16, first to last, in one
// accumulator: it depends on neither M nor the tile shape, which is what batch-invariant mode uses. With STREAM the steps of
// all tiles, one tile after the other, are dealt out evenly, so that every multiprocessor has the same to do. A tile may
// then be shared by neighbouring blocks: the one that has its beginning adds the others' sums, in order, and finishes it.
// All blocks must be resident at once. The same sums from run to run.
//
// K is a multiple of 8; weight and x rows are 16-byte aligned; N and M are any. Defines:
//   TILE_TOKENS  tokens of a tile: 8, or a multiple of 16 up to 256     GROUPS  warpgroups, 64 weight rows each: 1, 2, 4
//   STAGES       steps in the ring                                      BOXES   64 columns each, of a step
//   STREAM       tiles are shared                                       OUT_F32 y is f32
//   GATE         1 silu, 2 gelu, 3 gelu-tanh: rows come in blocks of 8 gate rows, then their 8 up rows, and
//                y [M, N / 2] = act(gate) * up, both rounded to model_t first
#include "include/activation.cuh"
#include "include/tma.cuh"
#include "include/wgmma.cuh"

#ifndef GROUPS
#define GROUPS 2
#endif
#ifndef STAGES
#define STAGES 4
#endif
#ifndef BOXES
#define BOXES 1
#endif
#ifndef GATE
#define GATE 0
#endif
#ifdef OUT_F32
typedef float out_t;
#else
typedef model_t out_t;
#endif

struct SkinnyParams {
  TensorMap weight;     // [n, k], boxes of [64 * GROUPS, 64], 128-byte swizzle
  TensorMap x;          // [tokens, k], boxes of [TILE_TOKENS, 64], 128-byte swizzle
  const model_t* bias;  // [n] or null
  out_t* y;             // [tokens, n] (n / 2 with GATE), rows `y_stride` apart
  i64 y_stride;
  int n, k, tokens;
  int lead;             // steps before its last at which a block lets the next kernel start
  float4* sums;         // STREAM: [blocks, TILE_TOKENS / 8, 128 * GROUPS] of tiles that another block finishes
  u32* ready;           // STREAM: [blocks] whether they are there; 0 between launches
};

static constexpr int STEP = 64 * BOXES;  // columns; a line of the swizzle is 64
static constexpr int TILE_ROWS = 64 * GROUPS;
static constexpr int WEIGHT_BYTES = TILE_ROWS * STEP * 2, X_BYTES = TILE_TOKENS * STEP * 2;
static constexpr int STAGE_BYTES = WEIGHT_BYTES + X_BYTES;
static constexpr int CONSUMERS = GROUPS * 128;
static constexpr int BLOCKS = TILE_TOKENS / 8;     // of 8 tokens, four accumulators each
static constexpr int PAIRS = (BLOCKS + 1) / 2;     // what the epilogue handles at once
static constexpr int NEIGHBOURS = 8;               // token tiles that run side by side, so that weights stay in L2
static constexpr int STAGING = 16 * 48;            // bytes of a warp: 16 tokens of 16 rows, padded against bank conflicts
static_assert(TILE_TOKENS == 8 || TILE_TOKENS % 16 == 0, "tokens of a tile");

// What a block works on: steps `first` .. `end` of all, tile after tile, each of `per_tile` steps over K. Without STREAM
// they are those of whole tiles, every gridDim.x-th.
struct Work {
  int row_tiles, token_tiles, per_tile, first, end;
  DEVICE Work(const SkinnyParams& p) {
    row_tiles = (p.n + TILE_ROWS - 1) / TILE_ROWS;
    token_tiles = (p.tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    per_tile = (p.k + STEP - 1) / STEP;
#ifdef STREAM
    first = begin(blockIdx.x);
    end = begin(blockIdx.x + 1);
#else
    first = 0;
    end = (row_tiles * token_tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x * per_tile;
#endif
  }
  DEVICE int begin(int block) const { return (int)((i64)row_tiles * token_tiles * per_tile * block / gridDim.x); }
  // First weight row and first token of the tile of a step.
  DEVICE int2 place(int step) const {
#ifdef STREAM
    const int tile = step / per_tile;
#else
    const int tile = blockIdx.x + step / per_tile * gridDim.x;
#endif
    const int per_group = NEIGHBOURS * row_tiles, group = tile / per_group, left = tile - group * per_group;
    const int size = min(NEIGHBOURS, token_tiles - group * NEIGHBOURS);
    return make_int2(left / size * TILE_ROWS, (group * NEIGHBOURS + left % size) * TILE_TOKENS);
  }
};

DEVICE void store_transposed(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
DEVICE void store_transposed(u32 address, u32 a, u32 b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}
// Sixteen bytes of y, `n` elements of which exist.
DEVICE void store8(out_t* y, uint4 v, int n, bool aligned) {
  if (aligned && n >= 8) {
    *(uint4*)y = v;
  } else {
    const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (i < n) ((u16*)y)[i] = (u16)(words[i / 2] >> (i % 2 * 16));
  }
}

// Writes 16 tokens (8 where TILE_TOKENS is 8) of this warp's 16 weight rows. `d` holds two neighbouring blocks of the
// accumulators; `row` is the warp's first weight row.
struct Epilogue {
  const SkinnyParams& p;
  u32 staging;  // of this warp
  bool aligned;
  int row;
  float bias0, bias1;

  DEVICE Epilogue(const SkinnyParams& p, u32 staging) : p(p), staging(staging) {
    aligned = (((u64)p.y | (u64)(p.y_stride * sizeof(out_t))) & 15) == 0;
  }
  DEVICE void rows_from(int first) {
    row = first;
    const int g = threadIdx.x % 32 / 4;
    bias0 = p.bias && row + g < p.n ? to_float(p.bias[row + g]) : 0.f;
    bias1 = p.bias && row + g + 8 < p.n ? to_float(p.bias[row + g + 8]) : 0.f;
  }
  DEVICE void write(const float (&d)[8], int token, int last) const {
    const int lane = threadIdx.x % 32;
#ifdef OUT_F32
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int at = token + i / 4 * 8 + t * 2 + i % 2, n = row + g + i % 4 / 2 * 8;
      if (at < last && n < p.n) p.y[at * p.y_stride + n] = d[i] + (i % 4 / 2 ? bias1 : bias0);
    }
#else
    if (GATE) {
      float v[4];
#pragma unroll
      for (int i = 0; i < 4; i++)
        v[i] = gated<GATE, model_t>(d[i / 2 * 4 + i % 2] + bias0, d[i / 2 * 4 + i % 2 + 2] + bias1);
      store_transposed(staging + lane % 16 * 16, pack2<model_t>(v[0], v[1]), pack2<model_t>(v[2], v[3]));
      __syncwarp();
      const int at = token + lane, left = p.n / 2 - row / 2;
      if (lane < 16 && at < last && left > 0) {
        uint4 w;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w) : "r"(staging + lane * 16) : "memory");
        store8(p.y + at * p.y_stride + row / 2, w, left, aligned);
      }
    } else {
      u32 v[4];
#pragma unroll
      for (int i = 0; i < 4; i++) v[i] = pack2<model_t>(d[2 * i] + (i % 2 ? bias1 : bias0), d[2 * i + 1] + (i % 2 ? bias1 : bias0));
      store_transposed(staging + (lane / 16 * 8 + lane % 8) * 48 + lane / 8 % 2 * 16, v[0], v[1], v[2], v[3]);
      __syncwarp();
      const int at = token + lane / 2, n = row + lane % 2 * 8;
      if (at < last && n < p.n) {
        uint4 w;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                     : "r"(staging + lane / 2 * 48 + lane % 2 * 16)
                     : "memory");
        store8(p.y + at * p.y_stride + n, w, p.n - n, aligned);
      }
    }
    __syncwarp();
#endif
  }
};

// Dynamic shared memory, aligned to 1024: ring [STAGES] of weights [BOXES, TILE_ROWS, 64] and x [BOXES, TILE_TOKENS, 64];
// then STAGING bytes for each consumer warp, then two mbarriers for each stage.
extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, 1) skinny(const __grid_constant__ SkinnyParams p) {
  extern __shared__ __align__(1024) u8 shared[];
  u64* full = (u64*)(shared + STAGES * STAGE_BYTES + CONSUMERS / 32 * STAGING);
  u64* empty = full + STAGES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Work work(p);
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      mbarrier_init(&full[s], 1);
      mbarrier_init(&empty[s], GROUPS);
    }
    mbarrier_fence_init();
  }
  __syncthreads();

  if (warp == CONSUMERS / 32) {
    if (lane != 0) return;
    const int count = work.end - work.first;
    const u64 policy = work.token_tiles > 1 ? L2_EVICT_NORMAL : L2_EVICT_FIRST;
    auto load_weights = [&](int i) {
      const int s = i % STAGES, row = work.place(work.first + i).x, column = (work.first + i) % work.per_tile * STEP;
      mbarrier_arrive_expect(&full[s], STAGE_BYTES);
#pragma unroll
      for (int b = 0; b < BOXES; b++)
        tensor_load_2d(shared + s * STAGE_BYTES + b * (WEIGHT_BYTES / BOXES), &p.weight, &full[s], policy, column + b * 64, row);
    };
    auto load_x = [&](int i) {
      const int s = i % STAGES, token = work.place(work.first + i).y, column = (work.first + i) % work.per_tile * STEP;
#pragma unroll
      for (int b = 0; b < BOXES; b++)
        tensor_load_2d(shared + s * STAGE_BYTES + WEIGHT_BYTES + b * (X_BYTES / BOXES), &p.x, &full[s], L2_EVICT_LAST,
                       column + b * 64, token);
    };
    const int early = min(STAGES, count);
    for (int i = 0; i < early; i++) load_weights(i);
    if (count - p.lead <= early) let_next_start();
    wait_for_previous();
    for (int i = 0; i < early; i++) load_x(i);
    for (int i = early; i < count; i++) {
      if (i > early && i == count - p.lead) let_next_start();
      mbarrier_wait(&empty[i % STAGES], (i / STAGES - 1) & 1);
      load_weights(i);
      load_x(i);
    }
    return;
  }

  const int group = warp / 4;
  Epilogue epilogue(p, smem_address(shared + STAGES * STAGE_BYTES) + warp * STAGING);
  auto release = [&](int s) {
    if (threadIdx.x % 128 == 0) mbarrier_arrive(&empty[s]);
  };
  for (int at = work.first, i = 0; at < work.end;) {
    const int steps = min(work.per_tile - at % work.per_tile, work.end - at);
    float d[BLOCKS * 4];
    for (int step = 0; step < steps; step++, i++) {
      const int s = i % STAGES;
      mbarrier_wait(&full[s], (i / STAGES) & 1);
      const u32 from = smem_address(shared + s * STAGE_BYTES);
      const u64 a = matrix_desc<128>(from + group * 64 * 128, 1024), b = matrix_desc<128>(from + WEIGHT_BYTES, 1024);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4 * BOXES; k++)
        wgmma_ss<model_t, K_MAJOR>(d, advance(a, k / 4 * (WEIGHT_BYTES / BOXES) + k % 4 * 32),
                                   advance(b, k / 4 * (X_BYTES / BOXES) + k % 4 * 32), step + k > 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (step > 0) release((i - 1) % STAGES);
    }
    wgmma_wait<0>();
    hold(d);
    release((i - 1) % STAGES);
    const int2 place = work.place(at);
#ifdef STREAM
    const bool begins = at % work.per_tile == 0;
#endif
    at += steps;
#ifdef STREAM
    if (!begins) {
      float4* mine = p.sums + (i64)blockIdx.x * (BLOCKS * CONSUMERS) + threadIdx.x;
#pragma unroll
      for (int block = 0; block < BLOCKS; block++)
        mine[block * CONSUMERS] = make_float4(d[block * 4], d[block * 4 + 1], d[block * 4 + 2], d[block * 4 + 3]);
      __threadfence();
      named_sync(1, CONSUMERS);
      if (threadIdx.x == 0) asm volatile("st.release.gpu.u32 [%0], 1;" ::"l"(p.ready + blockIdx.x) : "memory");
      continue;
    }
    // The rest of the tile, if any, is with the blocks that follow.
    const int rest = (at + work.per_tile - 1) / work.per_tile * work.per_tile;
    for (int other = blockIdx.x + 1; at < rest && work.begin(other) < rest; other++) {
      if (threadIdx.x == 0) {
        u32 there;
        do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(there) : "l"(p.ready + other) : "memory");
        while (!there);
        p.ready[other] = 0;
      }
      named_sync(1, CONSUMERS);
      const float4* theirs = p.sums + (i64)other * (BLOCKS * CONSUMERS) + threadIdx.x;
#pragma unroll
      for (int block = 0; block < BLOCKS; block++) {
        const float4 v = __ldcg(theirs + block * CONSUMERS);
        d[block * 4] += v.x;
        d[block * 4 + 1] += v.y;
        d[block * 4 + 2] += v.z;
        d[block * 4 + 3] += v.w;
      }
    }
#endif
    epilogue.rows_from(place.x + warp * 16);
    const int last = min(place.y + TILE_TOKENS, p.tokens);
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
      float two[8];
#pragma unroll
      for (int c = 0; c < 8; c++) two[c] = pair * 8 + c < BLOCKS * 4 ? d[pair * 8 + c] : 0.f;
      if (place.y + pair * 16 < last) epilogue.write(two, place.y + pair * 16, last);
    }
  }
}

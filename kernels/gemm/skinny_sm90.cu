// arch: sm_90a
// variants: MODEL_BF16 TILE_TOKENS=64; MODEL_F16 TILE_TOKENS=16 GROUPS=1 SPLIT=2; MODEL_BF16 TILE_TOKENS=256 SHARE=2 GATE=1; MODEL_BF16 TILE_TOKENS=8 OUT_F32
//
// y [M, N] = x [M, K] · weight [N, K]ᵀ (+ bias [N]) with wgmma: weight rows are its 64-row side, tokens its other one, so
// that few tokens waste nothing. One warp brings tiles in with TMA, GROUPS warpgroups of 64 rows multiply.
//
// Weights of the first STAGES steps (and, to L2, of `ahead` more) are asked for before the wait for the previous kernel.
//
// With SPLIT = 1 the sum of an output runs over K in steps of 16, first to last, in one accumulator: it depends on neither
// M nor the tile shape, which is what batch-invariant mode uses. With SPLIT > 1 the blocks of a cluster share out K and
// add their sums in the order of rank: the same from run to run.
//
// K is a multiple of 8; weight and x rows are 16-byte aligned; N and M are any. Defines:
//   TILE_TOKENS  tokens of a tile: 8, or a multiple of 16 up to 256     GROUPS  warpgroups, 64 weight rows each: 1, 2, 4
//   STAGES       steps of 64 columns in the ring                        SPLIT   blocks that share K: 1, 2, 4, 8 (cluster)
//   SHARE        2: two blocks (cluster) with neighbouring weight rows  OUT_F32 y is f32
//                each load half of the tokens for both
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
#ifndef SPLIT
#define SPLIT 1
#endif
#ifndef MEET
#define MEET 0
#endif
#ifndef BOXES
#define BOXES 1
#endif
#ifndef SHARE
#define SHARE 1
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
  TensorMap weight;     // [n, k] boxes of [64 * GROUPS, 64], 128-byte swizzle
  TensorMap x;          // [tokens, k], boxes of [TILE_TOKENS / SHARE, 64], 128-byte swizzle
  const model_t* bias;  // [n] or null
  out_t* y;             // [tokens, n] (n / 2 with GATE), rows `y_stride` apart
  i64 y_stride;
  int n, k, tokens;
  int ahead;            // steps beyond the ring that are brought to L2 before the wait
  int lead;             // steps before its last at which a block lets the next kernel start
  float* scratch;       // [units, SPLIT, TILE_TOKENS * TILE_ROWS]
  u32* counters;        // [units]
};

static constexpr int STEP = 64 * BOXES;  // columns; a line of the swizzle is 64
static constexpr int TILE_ROWS = 64 * GROUPS;
static constexpr int WEIGHT_BYTES = TILE_ROWS * STEP * 2, X_BYTES = TILE_TOKENS * STEP * 2;
static constexpr int STAGE_BYTES = WEIGHT_BYTES + X_BYTES;
static constexpr int CONSUMERS = GROUPS * 128;
static constexpr int CLUSTER = (MEET ? 1 : SPLIT) * SHARE;
static constexpr int BLOCKS = TILE_TOKENS / 8;     // of 8 tokens, four accumulators each
static constexpr int PAIRS = (BLOCKS + 1) / 2;     // what the epilogue handles at once
static constexpr int NEIGHBOURS = 8;               // token tiles that run side by side, so that weights stay in L2
static constexpr int STAGING = 16 * 48;            // bytes of a warp: 16 tokens of 16 rows, padded against bank conflicts
static_assert(SPLIT == 1 || SHARE == 1, "a cluster shares either K or the tokens");
static_assert(TILE_TOKENS == 8 || TILE_TOKENS % 16 == 0, "tokens of a tile");

// What a block works on: unit u is a tile of weight rows and one of tokens.
struct Work {
  int row_tiles, token_tiles, units, from, steps;
  DEVICE Work(const SkinnyParams& p) {
    row_tiles = ((p.n + TILE_ROWS - 1) / TILE_ROWS + SHARE - 1) / SHARE;
    token_tiles = (p.tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    const int all = (p.k + STEP - 1) / STEP, part = SPLIT > 1 ? blockIdx.x % SPLIT : 0;
    from = all * part / SPLIT;
    steps = all * (part + 1) / SPLIT - from;
    const int first = blockIdx.x / (SPLIT * SHARE), stride = gridDim.x / (SPLIT * SHARE);
    units = (row_tiles * token_tiles - first + stride - 1) / stride;
  }
  // First weight row and first token of this block's i-th unit.
  DEVICE int2 place(int i) const {
    const int unit = blockIdx.x / (SPLIT * SHARE) + i * (gridDim.x / (SPLIT * SHARE));
    const int per_group = NEIGHBOURS * row_tiles, group = unit / per_group, left = unit - group * per_group;
    const int size = min(NEIGHBOURS, token_tiles - group * NEIGHBOURS);
    int row = left / size;
    if (SHARE > 1) row = row * SHARE + blockIdx.x % SHARE;
    return make_int2(row * TILE_ROWS, (group * NEIGHBOURS + left % size) * TILE_TOKENS);
  }
};

DEVICE void tensor_prefetch_2d(const TensorMap* map, int c0, int c1) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map), "r"(c0), "r"(c1) : "memory");
}
DEVICE void store_transposed(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
DEVICE void store_transposed(u32 address, u32 a, u32 b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}
DEVICE float4 cluster_load4(u32 address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
  return v;
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
        v[i] = gated<GATE>(rounded<model_t>(d[i / 2 * 4 + i % 2] + bias0), rounded<model_t>(d[i / 2 * 4 + i % 2 + 2] + bias1));
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

// Dynamic shared memory, aligned to 1024: ring [STAGES] of weights [TILE_ROWS, 64] and x [TILE_TOKENS, 64], which the sums
// of a split take over; then STAGING bytes for each consumer warp, then two mbarriers for each stage.
extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, 1) skinny(const __grid_constant__ SkinnyParams p) {
  extern __shared__ __align__(1024) u8 shared[];
  u64* full = (u64*)(shared + STAGES * STAGE_BYTES + CONSUMERS / 32 * STAGING);
  u64* empty = full + STAGES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Work work(p);
  const int count = work.units * work.steps;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      mbarrier_init(&full[s], 1);
      mbarrier_init(&empty[s], GROUPS * SHARE);
    }
    mbarrier_fence_init();
  }
  if (SHARE > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  } else {
    __syncthreads();
  }

  if (warp == CONSUMERS / 32) {
    if (lane == 0) {
      const u64 policy = work.token_tiles > 1 ? L2_EVICT_NORMAL : L2_EVICT_FIRST;
      auto load_weights = [&](int i) {
        const int s = i % STAGES;
        mbarrier_arrive_expect(&full[s], STAGE_BYTES);
#pragma unroll
        for (int b = 0; b < BOXES; b++)
          tensor_load_2d(shared + s * STAGE_BYTES + b * (WEIGHT_BYTES / BOXES), &p.weight, &full[s], policy,
                         (work.from + i % work.steps) * STEP + b * 64, work.place(i / work.steps).x);
      };
      auto load_x = [&](int i) {
        const int s = i % STAGES, token = work.place(i / work.steps).y, column = (work.from + i % work.steps) * STEP;
        u8* to = shared + s * STAGE_BYTES + WEIGHT_BYTES;
        if (SHARE > 1) {
          const int rank = blockIdx.x % SHARE;
          tensor_load_2d_multicast(to + rank * (X_BYTES / SHARE), &p.x, &full[s], (1 << SHARE) - 1, column,
                                   token + rank * (TILE_TOKENS / SHARE));
        } else {
#pragma unroll
          for (int b = 0; b < BOXES; b++)
            tensor_load_2d(to + b * (X_BYTES / BOXES), &p.x, &full[s], L2_EVICT_LAST, column + b * 64, token);
        }
      };
      const int early = min(STAGES, count);
      for (int i = 0; i < early; i++) load_weights(i);
      for (int i = early; i < min(early + p.ahead, count); i++)
        tensor_prefetch_2d(&p.weight, (work.from + i % work.steps) * STEP, work.place(i / work.steps).x);
      if (count - p.lead <= early) let_next_start();
      wait_for_previous();
      for (int i = 0; i < early; i++) load_x(i);
      for (int i = early; i < count; i++) {
        if (i > early && i == count - p.lead) let_next_start();
        mbarrier_wait(&empty[i % STAGES], (i / STAGES - 1) & 1);
        load_weights(i);
        load_x(i);
      }
    }
    __syncwarp();
  } else {
    const int group = warp / 4;
    Epilogue epilogue(p, smem_address(shared + STAGES * STAGE_BYTES) + warp * STAGING);
    auto release = [&](int s) {
      if (threadIdx.x % 128 == 0) {
        if (SHARE > 1) {
#pragma unroll
          for (int r = 0; r < SHARE; r++) mbarrier_arrive_cluster(&empty[s], r);
        } else {
          mbarrier_arrive(&empty[s]);
        }
      }
    };
    for (int unit = 0, i = 0; unit < work.units; unit++) {
      float d[BLOCKS * 4];
      for (int step = 0; step < work.steps; step++, i++) {
        const int s = i % STAGES;
        mbarrier_wait(&full[s], (i / STAGES) & 1);
        const u32 at = smem_address(shared + s * STAGE_BYTES);
        const u64 a = matrix_desc<128>(at + group * 64 * 128, 1024), b = matrix_desc<128>(at + WEIGHT_BYTES, 1024);
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
      if (work.steps > 0) release((i - 1) % STAGES);
      const int2 place = work.place(unit);
      epilogue.rows_from(place.x + warp * 16);
      const int last = min(place.y + TILE_TOKENS, p.tokens);
      if (SPLIT == 1) {
#pragma unroll
        for (int pair = 0; pair < PAIRS; pair++) {
          float two[8];
#pragma unroll
          for (int c = 0; c < 8; c++) two[c] = pair * 8 + c < BLOCKS * 4 ? d[pair * 8 + c] : 0.f;
          if (place.y + pair * 16 < last) epilogue.write(two, place.y + pair * 16, last);
        }
      } else {
        float4* sums = (float4*)shared;
        if (MEET) sums = (float4*)(p.scratch + (i64)blockIdx.x * (TILE_TOKENS * TILE_ROWS));
        else named_sync(1, CONSUMERS);
#pragma unroll
        for (int block = 0; block < BLOCKS; block++)
          sums[block * CONSUMERS + threadIdx.x] =
              work.steps > 0 ? make_float4(d[block * 4], d[block * 4 + 1], d[block * 4 + 2], d[block * 4 + 3]) : make_float4(0, 0, 0, 0);
      }
    }
  }

  if (SPLIT > 1) {
    if (MEET) {
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) {
        u32* counter = p.counters + blockIdx.x / SPLIT;
        u32 old, now;
        asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(counter) : "memory");
        const u32 until = (old / SPLIT + 1) * SPLIT;
        do {
          asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
        } while ((int)(now - until) < 0);
      }
      __syncthreads();
    } else {
      cluster_sync();
    }
    if (warp < CONSUMERS / 32) {
      const int2 place = work.place(0);
      const int last = min(place.y + TILE_TOKENS, p.tokens);
      Epilogue epilogue(p, smem_address(shared + STAGES * STAGE_BYTES) + warp * STAGING);
      epilogue.rows_from(place.x + warp * 16);
      u32 parts[SPLIT];
#pragma unroll
      for (int r = 0; r < (MEET ? 0 : SPLIT); r++) parts[r] = cluster_address(shared, r) + threadIdx.x * 16;
      for (int pair = blockIdx.x % SPLIT; pair < PAIRS && place.y + pair * 16 < last; pair += SPLIT) {
        float two[8] = {};
#pragma unroll
        for (int r = 0; r < SPLIT; r++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            if (pair * 2 + half >= BLOCKS) continue;
            float4 v;
            if (MEET) {
              const float4* at = (const float4*)(p.scratch + (i64)(blockIdx.x / SPLIT * SPLIT + r) * (TILE_TOKENS * TILE_ROWS)) +
                                 (pair * 2 + half) * CONSUMERS + threadIdx.x;
              asm volatile("ld.relaxed.gpu.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(at) : "memory");
            } else {
              v = cluster_load4(parts[r] + (pair * 2 + half) * (CONSUMERS * 16));
            }
            two[half * 4] += v.x;
            two[half * 4 + 1] += v.y;
            two[half * 4 + 2] += v.z;
            two[half * 4 + 3] += v.w;
          }
        epilogue.write(two, place.y + pair * 16, last);
      }
    }
  }
  // No block leaves while another may still read its shared memory or arrive at its barriers.
  if (CLUSTER > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  }
}

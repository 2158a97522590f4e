// arch: sm_80+
// variants: MODEL_BF16 QUANT_TYPES=0x3ff TOKEN_TILES=1 PANELS=1 WARPS=8 DEPTH=2 MIN_BLOCKS=3; MODEL_BF16 QUANT_TYPES=0x280 TOKEN_TILES=8 PANELS=2 WARPS=8 DEPTH=2; MODEL_F16 QUANT_TYPES=0x10 TOKEN_TILES=2 PANELS=2 WARPS=8 DEPTH=2; MODEL_F32 QUANT_TYPES=0x3 TOKEN_TILES=1 PANELS=1 WARPS=8 DEPTH=2 X_SCALAR
//
// y = x W^T + bias for few tokens and quantized W, in one pass over the packed weights (blocks.cuh).
//
// An element of W is a q + b with a small integer q, so within a sub-block the sum over columns is a (sum of x q) + b (sum of
// x). Integers are exact in model_t and the sums come from the tensor cores in f32; W itself is never rounded. An f32 x goes
// in as three bf16 numbers whose sum it is, so that it loses nothing either. What differs from dequantizing first is the
// order in which f32 sums are rounded.
//
// A block makes PANELS panels of 16 rows of one segment for 8 TOKEN_TILES tokens; its WARPS share out the columns, each with
// DEPTH stages on their way. The sums of a token do not depend on the other tokens, nor on TOKEN_TILES and PANELS.
// Dynamic shared memory: WARPS DEPTH PANELS times the bytes of a stage, of the type at hand that has most.
// Floor: the packed bytes of W once. With -DX_SCALAR x needs no alignment; otherwise its rows are 16-byte aligned.
#include "include/mma.cuh"
#include "include/tma.cuh"
#include "quant/blocks.cuh"

#define SEGMENTS 8

struct QuantLinearSegment {
  const u8* panels;   // [rows, k]
  const float* bias;  // [rows] or null
  u32 type;
  int rows;
  int column;       // of y where its rows go
  int first_block;  // blocks of the segments ahead of it
};
struct QuantLinearParams {
  const model_t* x;  // [tokens, k]
  model_t* y;        // [tokens, at least all columns]
  i64 x_stride;
  i64 y_stride;
  int tokens;
  int k;
  int segment_count;
  QuantLinearSegment segments[SEGMENTS];
};

#if defined(MODEL_F16)
typedef f16 term_t;
#else
typedef bf16 term_t;
#endif
// Numbers of term_t that make an element of x.
static constexpr int TERMS = sizeof(model_t) == 4 ? 3 : 1;
// Groups of 32 columns whose x is fetched together.
static constexpr int AHEAD = TOKEN_TILES * TERMS >= 3 ? 1 : TOKEN_TILES == 2 ? 2 : 4;
static constexpr int TILE = 8 * TOKEN_TILES;

// Blocks that shall fit on a multiprocessor.
#if !defined(MIN_BLOCKS)
#define MIN_BLOCKS 1
#endif

// 16 or 8 bytes of x, or zero. They stay behind `wait_for_previous`.
DEVICE uint4 fetch16(const void* p, bool there) {
  uint4 v;
  asm volatile(
      "{.reg .pred q; setp.ne.u32 q, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; @q ld.global.v4.u32 {%0, "
      "%1, %2, %3}, [%4];}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(p), "r"((u32)there));
  return v;
}
DEVICE uint2 fetch8(const void* p, bool there) {
  uint2 v;
  asm volatile("{.reg .pred q; setp.ne.u32 q, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0; @q ld.global.v2.u32 {%0, %1}, [%2];}"
               : "=&r"(v.x), "=&r"(v.y)
               : "l"(p), "r"((u32)there));
  return v;
}

// Four elements at x as B registers: [term][2].
DEVICE void split4(u32 (&b)[TERMS][2], float4 x) {
  float v[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < TERMS; i++) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
      b[i][j] = pack2<term_t>(v[2 * j], v[2 * j + 1]);
      float2 taken = unpack2<term_t>(b[i][j]);
      v[2 * j] -= taken.x, v[2 * j + 1] -= taken.y;
    }
  }
}

// What a lane feeds to the two products of a group: columns as blocks.cuh orders them. Zero for tokens that are not there.
template <int SUB> struct Terms {
  u32 b[2][TERMS][2];

  // `x` points to the lane's first column in the group.
  DEVICE void load(const model_t* x, bool there) {
    constexpr int NEXT = SUB == 16 ? 16 : 4;  // columns to the second product's
#if defined(X_SCALAR)
#pragma unroll
    for (int s = 0; s < 2; s++) {
      const model_t* at = x + s * NEXT;
      if constexpr (sizeof(model_t) == 4) {
        float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
        if (there) v = make_float4(to_float(at[0]), to_float(at[1]), to_float(at[2]), to_float(at[3]));
        split4(b[s], v);
      } else {
#pragma unroll
        for (int i = 0; i < 2; i++)
          b[s][0][i] = there ? pack2<term_t>(to_float(at[2 * i]), to_float(at[2 * i + 1])) : 0;
      }
    }
#else
    if constexpr (sizeof(model_t) == 4) {
#pragma unroll
      for (int s = 0; s < 2; s++) {
        uint4 v = fetch16(x + s * NEXT, there);
        split4(b[s], make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)));
      }
    } else if constexpr (SUB == 16) {
#pragma unroll
      for (int s = 0; s < 2; s++) {
        uint2 v = fetch8(x + s * NEXT, there);
        b[s][0][0] = v.x, b[s][0][1] = v.y;
      }
    } else {
      uint4 v = fetch16(x, there);
      b[0][0][0] = v.x, b[0][0][1] = v.y, b[1][0][0] = v.z, b[1][0][1] = v.w;
    }
#endif
  }
};

// c += a times the terms, smallest first.
DEVICE void product(float (&c)[4], const u32 (&a)[4], const u32 (&b)[TERMS][2]) {
#pragma unroll
  for (int i = TERMS - 1; i >= 0; i--) mma<term_t>(c, a, b[i][0], b[i][1]);
}

// A warp's stages on their way through its part of shared memory: DEPTH slots, one after the other. What a lane reads of a
// slot it reads between `await` and the next `issue` into it.
template <int TYPE> struct Pipeline {
  static constexpr int BYTES = Format<TYPE>::STAGE_BYTES, SLOT = PANELS * BYTES, RING = DEPTH * SLOT;
  const u8* from[PANELS];  // the panels
  int k, end;              // the first stage that is not this warp's
  u8* slots;
  u64* full;  // [DEPTH], sm_90+

  // Stage `stage` to `slot`; nothing past the end.
  DEVICE void issue(int slot, int stage) {
    __syncwarp();
    int lane = threadIdx.x % 32, chunks = stage_chunks<TYPE>(k, stage);
    u32 bytes = (chunks < Format<TYPE>::CHUNKS ? chunks : Format<TYPE>::CHUNKS) * Format<TYPE>::CHUNK_BYTES;
#if __CUDA_ARCH__ >= 900
    if (lane == 0 && stage < end) {
      mbarrier_arrive_expect(full + slot, PANELS * bytes);
#pragma unroll
      for (int i = 0; i < PANELS; i++)
        bulk_load(slots + slot * SLOT + i * BYTES, from[i] + (i64)stage * BYTES, bytes, full + slot, L2_EVICT_FIRST);
    }
#else
    if (stage < end) {
#pragma unroll
      for (int i = 0; i < PANELS; i++)
#pragma unroll
        for (int at = 0; at < BYTES; at += 512) {
          u32 here = at + lane * 16;
          if (here < bytes) copy_async16(smem_address(slots + slot * SLOT + i * BYTES + here), from[i] + (i64)stage * BYTES + here);
        }
    }
    copy_async_commit();
#endif
  }

  DEVICE void open(int first) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int i = 0; i < DEPTH; i++) mbarrier_init(full + i, 1);
      mbarrier_fence_init();
    }
#endif
#pragma unroll
    for (int i = 0; i < DEPTH; i++) issue(i, first + i);
  }

  DEVICE const u8* await(int slot, u32 parity) {
#if __CUDA_ARCH__ >= 900
    mbarrier_wait(full + slot, parity);
#else
    copy_async_wait<DEPTH - 1>();
    __syncwarp();
#endif
    return slots + slot * SLOT;
  }
};

struct Linear {
  const QuantLinearParams& p;
  const QuantLinearSegment& segment;
  int first_panel;
  u8* shared;  // [WARPS][RING]; at last [WARPS] of [PANELS][8][20] f32, each where the warp's ring was
  u64* full;   // [WARPS][DEPTH]

  template <int TYPE> DEVICE void run() const {
    typedef Pipeline<TYPE> P;
    int warp = threadIdx.x / 32, stages = (p.k + STAGE - 1) / STAGE;
    int first = stages * warp / WARPS, end = stages * (warp + 1) / WARPS;
    P pipeline{{}, p.k, end, shared + warp * P::RING, full + warp * DEPTH};
    int last = (segment.rows + PANEL - 1) / PANEL - 1;
#pragma unroll
    for (int i = 0; i < PANELS; i++)
      pipeline.from[i] = segment.panels + (first_panel + i < last ? first_panel + i : last) * Format<TYPE>::panel_bytes(p.k);
    pipeline.open(first);
    wait_for_previous();
    Registers in = registers<term_t>(p.k);
    const model_t* x = p.x + (blockIdx.y * TILE + threadIdx.x % 32 / 4) * p.x_stride + threadIdx.x % 4 * (Format<TYPE>::SUB / 4);
    asm volatile("" : "+l"(x));  // once, not at each use
    float sums[PANELS][TOKEN_TILES][4] = {};
    int slot = 0;
    u32 parity = 0;
#pragma unroll 1
    for (int stage = first; stage < end; stage++) {
      consume<TYPE>(sums, pipeline.await(slot, parity), x + stage * STAGE, stage, in);
      pipeline.issue(slot, stage + DEPTH);
      if (++slot == DEPTH) slot = 0, parity ^= 1;
    }
    finish(sums, P::RING);
  }

  template <int TYPE> DEVICE void consume(float (&sums)[PANELS][TOKEN_TILES][4], const u8* slot, const model_t* x, int stage,
                                           const Registers& in) const {
    typedef Format<TYPE> F;
    int lane = threadIdx.x % 32, token = blockIdx.y * TILE + lane / 4;
    Stage<TYPE> bits[PANELS];
#pragma unroll
    for (int i = 0; i < PANELS; i++) {
      bits[i].template load<FromShared>(slot + i * F::STAGE_BYTES, F::CHUNKS, lane);
      bits[i].prepare();
    }
#pragma unroll
    for (int j0 = 0; j0 < STAGE / 32; j0 += AHEAD) {
      int k = stage * STAGE + 32 * j0;
      if (!F::SUPER && k >= p.k) break;
      // Otherwise the compiler fetches more of x than there are registers for.
      if (TOKEN_TILES >= 4) asm volatile("" ::: "memory");
      Terms<F::SUB> terms[AHEAD][TOKEN_TILES];
#pragma unroll
      for (int j = 0; j < AHEAD; j++)
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; n++) {
          bool there = token + 8 * n < p.tokens && (F::SUPER || k + 32 * j < p.k);
          terms[j][n].load(x + n * (8 * p.x_stride) + 32 * (j0 + j), there);
        }
#pragma unroll
      for (int j = 0; j < AHEAD; j++)
        if (F::SUPER || k + 32 * j < p.k) group<TYPE>(sums, bits, terms[j], j0 + j, in);
    }
  }

  template <int TYPE>
  DEVICE void group(float (&sums)[PANELS][TOKEN_TILES][4], const Stage<TYPE> (&bits)[PANELS], const Terms<Format<TYPE>::SUB> (&x)[TOKEN_TILES],
                    int j, const Registers& in) const {
    typedef Format<TYPE> F;
    constexpr int SUBS = 32 / F::SUB;
    // Sums of x over the sub-blocks: every row of a product with ones.
    float total[F::MIN ? TOKEN_TILES : 1][SUBS][4] = {};
    if constexpr (F::MIN) {
#pragma unroll
      for (int n = 0; n < TOKEN_TILES; n++)
#pragma unroll
        for (int s = 0; s < 2; s++) product(total[n][s % SUBS], in.ones, x[n].b[s]);
    }
#pragma unroll
    for (int i = 0; i < PANELS; i++) {
      u32 a[2][4];
#pragma unroll
      for (int q = 0; q < 8; q++) a[q / 4][q % 4] = bits[i].template pair<term_t>(j, q, in);
#pragma unroll
      for (int sub = 0; sub < SUBS; sub++) {
        float2 upper = bits[i].affine(j * SUBS + sub, 0, in), lower = bits[i].affine(j * SUBS + sub, 1, in);
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; n++) {
          float c[4] = {};
          product(c, a[sub], x[n].b[sub]);
          if constexpr (SUBS == 1) product(c, a[1], x[n].b[1]);
          float(&to)[4] = sums[i][n];
          if constexpr (F::MIN) {
            to[0] = fmaf(upper.y, total[n][sub][0], to[0]), to[1] = fmaf(upper.y, total[n][sub][1], to[1]);
            to[2] = fmaf(lower.y, total[n][sub][0], to[2]), to[3] = fmaf(lower.y, total[n][sub][1], to[3]);
          }
          to[0] = fmaf(upper.x, c[0], to[0]), to[1] = fmaf(upper.x, c[1], to[1]);
          to[2] = fmaf(lower.x, c[2], to[2]), to[3] = fmaf(lower.x, c[3], to[3]);
        }
      }
    }
  }

  // Adds up what the warps have, in their order, and stores it.
  DEVICE void finish(const float (&sums)[PANELS][TOKEN_TILES][4], int ring) const {
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < TOKEN_TILES; n++) {
      if (blockIdx.y * TILE + 8 * n >= p.tokens) break;
      if (n > 0) __syncthreads();
#pragma unroll
      for (int i = 0; i < PANELS; i++) {
        float* to = reinterpret_cast<float*>(shared + warp * ring) + i * 160 + 40 * t + g;
        to[0] = sums[i][n][0], to[20] = sums[i][n][1], to[8] = sums[i][n][2], to[28] = sums[i][n][3];
      }
      __syncthreads();
      for (int at = threadIdx.x; at < PANELS * 128; at += WARPS * 32) {
        int row = at % (PANELS * PANEL), token = at / (PANELS * PANEL), i = row / PANEL;
        float y = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) y += reinterpret_cast<const float*>(shared + w * ring)[i * 160 + token * 20 + row % PANEL];
        row += first_panel * PANEL;
        token += blockIdx.y * TILE + 8 * n;
        if (row >= segment.rows || token >= p.tokens) continue;
        if (segment.bias != nullptr) y += segment.bias[row];
        p.y[token * p.y_stride + segment.column + row] = from_float<model_t>(y);
      }
    }
  }
};

extern "C" __global__ void __launch_bounds__(WARPS * 32, MIN_BLOCKS) quant_linear(const __grid_constant__ QuantLinearParams p) {
  extern __shared__ __align__(128) u8 shared[];
  __shared__ u64 full[WARPS * DEPTH];
  let_next_start();
  int s = 0;
  while (s + 1 < p.segment_count && (int)blockIdx.x >= p.segments[s + 1].first_block) s++;
  const QuantLinearSegment& segment = p.segments[s];
  with_type(segment.type, Linear{p, segment, ((int)blockIdx.x - segment.first_block) * PANELS, shared, full});
}

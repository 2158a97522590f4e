// arch: sm_80+
// variants: MODEL_BF16 QUANT_TYPES=0x3ff TOKENS=1 TOKEN_TILES=1 PANELS=1 WARPS=8 DEPTH=2 MIN_BLOCKS=3; MODEL_BF16 QUANT_TYPES=0x280 TOKENS=8 TOKEN_TILES=4 PANELS=2 WARPS=8 DEPTH=2; MODEL_F16 QUANT_TYPES=0x10 TOKENS=2 TOKEN_TILES=1 PANELS=2 WARPS=8 DEPTH=2 OUT_F32; MODEL_F32 QUANT_TYPES=0x3 TOKENS=8 TOKEN_TILES=1 PANELS=1 WARPS=8 DEPTH=2 X_SCALAR
//
// y = x W^T + bias for few tokens and quantized W, in one pass over the packed weights (blocks.cuh).
//
// An element of W is a q + b with a small integer q, so within a sub-block the sum over columns is a (sum of x q) + b (sum of
// x). Integers are exact in model_t and the sums come from the tensor cores in f32; W itself is never rounded. An f32 x goes
// in as three bf16 numbers whose sum it is, so that it loses nothing either. What differs from dequantizing first is the
// order in which f32 sums are rounded, and where model_t has 16 bits that 128 or 64 times the sum of x is in the tensor
// cores' sum too and taken off again, which saves an instruction a pair and costs about four of the f32 sum's bits.
//
// A product of m16n8k16 has eight columns: TOKENS tokens (1, 2, 4 or 8) of 8 / TOKENS sub-blocks each. A column meets the
// weights of every sub-block, and is of use with those of its own.
//
// A block makes PANELS panels of 16 rows of one segment for TOKENS or, where TOKEN_TILES > 1, 8 TOKEN_TILES tokens; its WARPS
// share out the columns of W, each with DEPTH stages on their way. The sums of a token do not depend on the other tokens.
// Dynamic shared memory: WARPS DEPTH PANELS times the bytes of a stage, of the type at hand that has most.
// Floor: the packed bytes of W once. With -DX_SCALAR x needs no alignment; otherwise its rows are 16-byte aligned. With
// -DOUT_F32 y is f32 whatever model_t is.
#include "include/mma.cuh"
#include "include/tma.cuh"
#include "quant/blocks.cuh"

#define SEGMENTS 8

#if defined(OUT_F32)
typedef float out_t;
#else
typedef model_t out_t;
#endif

struct QuantLinearSegment {
  const u8* panels;     // [rows, k]
  const model_t* bias;  // [rows] or null
  u32 type;
  int rows;
  int column;       // of y where its rows go
  int first_block;  // blocks of the segments ahead of it
};
struct QuantLinearParams {
  const model_t* x;  // [tokens, k]
  out_t* y;          // [tokens, at least all columns]
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
static constexpr int TILE = TOKENS * TOKEN_TILES;
// Sub-blocks that share the columns of a product.
static constexpr int SPREAD = 8 / TOKENS;
static_assert(TOKENS == 8 || TOKEN_TILES == 1, "several tiles are of eight tokens each");

// How a type's integers come, and how sub-blocks are gone through: a round takes SPREAD of them.
template <int TYPE> struct Plan {
  static constexpr int SUB = Format<TYPE>::SUB;
  static constexpr bool EXACT = sizeof(model_t) == 4 || Format<TYPE>::LOW == 8;
  static constexpr bool OFFSET = Format<TYPE>::MIN || !EXACT;
  static constexpr int ROUNDS = STAGE / SUB / SPREAD;
  // Products of 16 columns in a sub-block, and registers of x for one.
  static constexpr int PRODUCTS = SUB / 16;
  // Rounds whose x is fetched together.
  static constexpr int FIT = 16 / (PRODUCTS * 2 * TERMS * TOKEN_TILES);
  static constexpr int AHEAD = FIT < 1 ? 1 : FIT < ROUNDS ? FIT : ROUNDS;
  // Whether x is fetched before the weights that it meets are there; with many tokens that takes too many registers.
  static constexpr bool EARLY = TOKEN_TILES <= 2;
};

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

// What a lane feeds to the products of a sub-block: columns as blocks.cuh orders them. Zero for tokens that are not there.
template <int PRODUCTS> struct Terms {
  u32 b[PRODUCTS][TERMS][2];

  // `x` points to the lane's first column in the sub-block.
  DEVICE void load(const model_t* x, bool there) {
#if defined(X_SCALAR)
#pragma unroll
    for (int s = 0; s < PRODUCTS; s++) {
      const model_t* at = x + 4 * s;
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
      for (int s = 0; s < PRODUCTS; s++) {
        uint4 v = fetch16(x + 4 * s, there);
        split4(b[s], make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)));
      }
    } else if constexpr (PRODUCTS == 1) {
      uint2 v = fetch8(x, there);
      b[0][0][0] = v.x, b[0][0][1] = v.y;
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
    Registers in = registers<term_t, Plan<TYPE>::EXACT>(p.k);
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const model_t* x = p.x + (blockIdx.y * TILE + g % TOKENS) * p.x_stride + g / TOKENS * Format<TYPE>::SUB + t * (Format<TYPE>::SUB / 4);
    asm volatile("" : "+l"(x));  // once, not at each use
    float sums[PANELS][TOKEN_TILES][4] = {};
    int slot = 0;
    u32 parity = 0;
    Batch<TYPE> batch;
    if (Plan<TYPE>::EARLY && first < end) fetch<TYPE>(batch, x, first, 0);
#pragma unroll 1
    for (int stage = first; stage < end; stage++) {
      consume<TYPE>(sums, pipeline.await(slot, parity), x, stage, end, batch, in);
      pipeline.issue(slot, stage + DEPTH);
      if (++slot == DEPTH) slot = 0, parity ^= 1;
    }
    finish(sums, P::RING);
  }

  // x for the rounds that are fetched together.
  template <int TYPE> struct Batch {
    Terms<Plan<TYPE>::PRODUCTS> terms[Plan<TYPE>::AHEAD][TOKEN_TILES];
  };

  // `x` points to the lane's first column of the matrix.
  template <int TYPE> DEVICE void fetch(Batch<TYPE>& batch, const model_t* x, int stage, int first_round) const {
    typedef Plan<TYPE> P;
    constexpr int COLUMNS = SPREAD * P::SUB;  // of a round
    int g = threadIdx.x % 32 / 4, token = blockIdx.y * TILE + g % TOKENS, k = stage * STAGE + first_round * COLUMNS;
#pragma unroll
    for (int r = 0; r < P::AHEAD; r++) {
      bool inside = Format<TYPE>::SUPER || k + r * COLUMNS + g / TOKENS * P::SUB < p.k;
#pragma unroll
      for (int n = 0; n < TOKEN_TILES; n++) batch.terms[r][n].load(x + n * (8 * p.x_stride) + (k + r * COLUMNS), inside && token + 8 * n < p.tokens);
    }
  }

  // `batch` holds x for the stage's first rounds, and afterwards for the next stage's, where x is fetched early.
  template <int TYPE> DEVICE void consume(float (&sums)[PANELS][TOKEN_TILES][4], const u8* slot, const model_t* x, int stage, int end,
                                           Batch<TYPE>& batch, const Registers& in) const {
    typedef Format<TYPE> F;
    typedef Plan<TYPE> P;
    int lane = threadIdx.x % 32;
    Stage<TYPE> bits[PANELS];
#pragma unroll
    for (int i = 0; i < PANELS; i++) {
      const u8* chunk = slot + i * F::STAGE_BYTES;
      if constexpr (SPREAD == 1) {
        bits[i].template load<FromShared>(chunk, F::CHUNKS, lane);
        bits[i].prepare();
      } else {
        bits[i].template load_bits<FromShared>(chunk, F::CHUNKS, lane);
      }
    }
#pragma unroll
    for (int r0 = 0; r0 < P::ROUNDS; r0 += P::AHEAD) {
      if (!P::EARLY) {
        if (!F::SUPER && stage * STAGE + r0 * (SPREAD * F::SUB) >= p.k) break;
        fetch<TYPE>(batch, x, stage, r0);
      }
      Batch<TYPE> now = batch;
      if (P::EARLY) {
        if (r0 + P::AHEAD < P::ROUNDS) fetch<TYPE>(batch, x, stage, r0 + P::AHEAD);
        else if (stage + 1 < end) fetch<TYPE>(batch, x, stage + 1, 0);
      }
#pragma unroll
      for (int r = 0; r < P::AHEAD; r++) {
        int left = F::SUPER ? STAGE : p.k - stage * STAGE - (r0 + r) * (SPREAD * F::SUB);  // columns from this round on
        if (left > 0) round<TYPE>(sums, bits, slot, now.terms[r], r0 + r, left, in);
      }
    }
  }

  // Scales, offsets with the quick way's part in them: of columns 2t and 2t + 1 of a product, rows g and g + 8.
  struct Affine {
    float a[2][2], b[2][2];
    template <int TYPE> DEVICE void set(int column, int h, float2 ab) {
      a[column][h] = ab.x;
      b[column][h] = Plan<TYPE>::EXACT ? ab.y : fmaf(-(Lift<term_t>::QUICK + Format<TYPE>::CENTRE), ab.x, ab.y);
    }
  };

  template <int TYPE>
  DEVICE void round(float (&sums)[PANELS][TOKEN_TILES][4], const Stage<TYPE> (&bits)[PANELS], const u8* slot,
                    const Terms<Plan<TYPE>::PRODUCTS> (&x)[TOKEN_TILES], int round, int left, const Registers& in) const {
    typedef Format<TYPE> F;
    typedef Plan<TYPE> P;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    // Sums of x over the sub-blocks: every row of a product with ones.
    float total[TOKEN_TILES][4] = {};
    if constexpr (P::OFFSET) {
#pragma unroll
      for (int n = 0; n < TOKEN_TILES; n++)
#pragma unroll
        for (int s = 0; s < P::PRODUCTS; s++) product(total[n], in.ones, x[n].b[s]);
    }
#pragma unroll
    for (int i = 0; i < PANELS; i++) {
      Affine affine;
      if constexpr (SPREAD == 1) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float2 ab = bits[i].affine(round, h, in);
          affine.template set<TYPE>(0, h, ab);
          affine.template set<TYPE>(1, h, ab);
        }
      } else {
#pragma unroll
        for (int column = 0; column < 2; column++) {
          int sub = (2 * t + column) / TOKENS;
          bool inside = F::SUPER || sub * F::SUB < left;
#pragma unroll
          for (int h = 0; h < 2; h++)
            affine.template set<TYPE>(column, h, inside ? affine_at<TYPE>(slot + i * F::STAGE_BYTES, g + 8 * h, round * SPREAD + sub) : make_float2(0.f, 0.f));
        }
      }
      float kept[TOKEN_TILES][4];
#pragma unroll
      for (int s = 0; s < SPREAD; s++) {
        int sub = round * SPREAD + s, j = sub * F::SUB / 32, first = F::SUB == 16 ? sub % 2 * 4 : 0;
        u32 a[P::PRODUCTS][4];
#pragma unroll
        for (int q = 0; q < P::PRODUCTS * 4; q++) a[q / 4][q % 4] = bits[i].template pair<term_t, P::EXACT>(j, first + q, in);
#pragma unroll
        for (int n = 0; n < TOKEN_TILES; n++) {
          float c[4] = {};
#pragma unroll
          for (int q = 0; q < P::PRODUCTS; q++) product(c, a[q], x[n].b[q]);
#pragma unroll
          for (int column = 0; column < 2; column++)
            if (s == 0 || s == (2 * t + column) / TOKENS) kept[n][column] = c[column], kept[n][2 + column] = c[2 + column];
        }
      }
#pragma unroll
      for (int n = 0; n < TOKEN_TILES; n++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
          float& to = sums[i][n][q];
          if constexpr (P::OFFSET) to = fmaf(affine.b[q % 2][q / 2], total[n][q % 2], to);
          to = fmaf(affine.a[q % 2][q / 2], kept[n][q], to);
        }
    }
  }

  // Adds up the columns of a token and what the warps have, always in the same order, and stores it.
  DEVICE void finish(const float (&sums)[PANELS][TOKEN_TILES][4], int ring) const {
    int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < TOKEN_TILES; n++) {
      if (blockIdx.y * TILE + 8 * n >= p.tokens) break;
      if (n > 0) __syncthreads();
#pragma unroll
      for (int i = 0; i < PANELS; i++) {
        float c[4];
#pragma unroll
        for (int q = 0; q < 4; q++) {
          c[q] = sums[i][n][q];
          if constexpr (TOKENS == 1) c[q] += sums[i][n][q ^ 1];
          if constexpr (TOKENS <= 4) c[q] += __shfl_xor_sync(0xffffffffu, c[q], 2);
          if constexpr (TOKENS <= 2) c[q] += __shfl_xor_sync(0xffffffffu, c[q], 1);
        }
        float* to = reinterpret_cast<float*>(shared + warp * ring) + i * 160 + 40 * t + g;
        if (2 * t < TOKENS) to[0] = c[0], to[20] = c[1], to[8] = c[2], to[28] = c[3];
      }
      __syncthreads();
      for (int at = threadIdx.x; at < PANELS * PANEL * TOKENS; at += WARPS * 32) {
        int row = at % (PANELS * PANEL), token = at / (PANELS * PANEL), i = row / PANEL;
        float y = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) y += reinterpret_cast<const float*>(shared + w * ring)[i * 160 + token * 20 + row % PANEL];
        row += first_panel * PANEL;
        token += blockIdx.y * TILE + 8 * n;
        if (row >= segment.rows || token >= p.tokens) continue;
        if (segment.bias != nullptr) y += to_float(segment.bias[row]);
        p.y[token * p.y_stride + segment.column + row] = from_float<out_t>(y);
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

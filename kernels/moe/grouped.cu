// arch: sm_80+
// variants: MODEL_BF16 SLOTS=16 ROWS=64 GATED FUNCTION=SILU GATHER TOP_K=8; MODEL_F16 SLOTS=64 ROWS=128 TOP_K=8; MODEL_BF16 SLOTS=64 ROWS=128 GATED FUNCTION=SILU GATHER TOP_K=8; MODEL_BF16 MXFP4 SLOTS=16 ROWS=64 GATED CLAMPED FUNCTION=SILU GATHER TOP_K=4; MODEL_F16 MXFP4 SLOTS=64 ROWS=128 TOP_K=4; MODEL_F16 MXFP4 SLOTS=16 ROWS=64 TOP_K=4
//
// Products of experts with mma m16n8k16. A block has ROWS packed rows for the SLOTS slots of a tile; x and W come through a
// ring of STAGES stages of 64 columns. Sums run over k in order whatever the tile, so a slot's result does not depend on
// what else is in the batch.
// Floor: with few slots a tile every chosen expert's weights once; with many the products.
//
// Defines: SLOTS 16 or 64; ROWS 64 or 128; GATHER, TOP_K; GATED with FUNCTION or CLAMPED; MXFP4. k is a multiple of 8, rows of
// x begin at multiples of 16 bytes.
#include "include/mma.cuh"
#include "moe/product.cuh"

constexpr int THREADS = 128, STEP = 64;
constexpr int STAGES = SLOTS == 16 ? 6 : 3;
// Warps along slots and along rows; what each has.
constexpr int WARPS_M = SLOTS == 16 ? 1 : 2, WARPS_N = 4 / WARPS_M;
constexpr int M_TILES = SLOTS / WARPS_M / 16, N_TILES = ROWS / WARPS_N / 8;
static_assert(N_TILES % 2 == 0, "gate and up of a column belong to one warp");
constexpr int X_BYTES = SLOTS * STEP * 2;
#if defined(MXFP4)
constexpr int W_BYTES = ROWS / 8 * MXFP4_BYTES;
#else
constexpr int W_BYTES = ROWS * STEP * 2;
#endif
// Rows of a stage are 128 bytes that lie swizzled.
constexpr int STAGE_BYTES = (X_BYTES + W_BYTES + 127) / 128 * 128;

// Where 16-byte piece `piece` of row `row` of a stage's x or W lies.
DEVICE int swizzled(int row, int piece) { return row * 128 + ((piece ^ (row & 7)) * 16); }

#if defined(MXFP4)
// Moves bits left by `by`, or right.
template <int BY> DEVICE u32 moved(u32 x) { return BY >= 0 ? x << (BY & 31) : x >> (-BY & 31); }

// Pair PAIR of a word of codes as numbers of model_t. As the low bits of exponent and the high bit of mantissa they are too
// small by a power of two, which `scale` has besides the block's own.
template <int PAIR> DEVICE u32 scaled(u32 word, u32 scale) {
  constexpr int AT = 4 * PAIR;
  u32 y;
#if defined(MODEL_BF16)
  const u32 bits = (moved<12 - AT>(word) & 0x80008000u) | (moved<6 - AT>(word) & 0x01c001c0u);
  asm("{.reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 %0, %1, %2, z;}" : "=r"(y) : "r"(bits), "r"(scale));
#else
  const u32 bits = (moved<12 - AT>(word) & 0x80008000u) | (moved<9 - AT>(word) & 0x0e000e00u);
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(bits), "r"(scale));
#endif
  return y;
}

// 2^(e - 127) times 2^126 for bf16 and 2^14 for f16, twice. The host sends no e above 128.
DEVICE u32 scale_of(u32 e) {
#if defined(MODEL_BF16)
  return (e + 126) * 0x00800080u;
#else
  return from_float<f16>(__uint_as_float((e + 14) << 23)).bits * 0x00010001u;
#endif
}
#endif

// Grid: rows / ROWS, tiles. Shared memory: STAGES * STAGE_BYTES.
extern "C" __global__ void __launch_bounds__(THREADS) product(const __grid_constant__ ProductParams p) {
  extern __shared__ __align__(128) u8 ring[];
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int warp_m = warp / WARPS_N, warp_n = warp % WARPS_N;
  let_next_start();
  wait_for_previous();
  if (blockIdx.y >= *p.order.count) return;
  const int4 tile = p.order.tiles[blockIdx.y];
  const int first = blockIdx.x * ROWS, steps = (p.k + STEP - 1) / STEP;

  // This thread's rows of x: tid / 8, + 16, …
  const model_t* from[SLOTS / 16];
#pragma unroll
  for (int i = 0; i < SLOTS / 16; i++) {
    const int slot = tid / 8 + 16 * i;
    from[i] = nullptr;
    if (slot < tile.z) {
#if defined(GATHER)
      from[i] = p.x.row(p.order.pair_of[tile.y + slot] / TOP_K);
#else
      from[i] = p.x.row(tile.y + slot);
#endif
    }
  }

  auto fetch = [&](int step) {
    const u32 stage = shared_address(ring) + step % STAGES * STAGE_BYTES;
    const int piece = tid % 8, column = step * STEP + piece * 8;
#pragma unroll
    for (int i = 0; i < SLOTS / 16; i++) {
      const bool there = from[i] != nullptr && column < p.k;
      const void* source = there ? (const void*)(from[i] + column) : (const void*)p.weights;
      copy_async16(stage + swizzled(tid / 8 + 16 * i, piece), source, there ? 16 : 0);
    }
#if defined(MXFP4)
    constexpr int PIECES = ROWS / 8 * (MXFP4_BYTES / 16);
#pragma unroll
    for (int i = 0; i < (PIECES + THREADS - 1) / THREADS; i++) {
      const int q = tid + i * THREADS, group = q / (MXFP4_BYTES / 16), part = q % (MXFP4_BYTES / 16);
      if (q >= PIECES) continue;
      const bool there = first + 8 * group < p.rows;
      const i64 line = there ? ((i64)tile.x * p.rows + first) / 8 + group : 0;
      copy_async16(stage + X_BYTES + group * MXFP4_BYTES + part * 16, p.weights + (line * steps + step) * MXFP4_BYTES + part * 16,
                   there ? 16 : 0);
    }
#else
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++) {
      const int r = tid / 8 + 16 * i;
      const bool there = first + r < p.rows && column < p.k;
      const i64 at = there ? ((i64)tile.x * p.rows + first + r) * p.k + column : 0;
      copy_async16(stage + X_BYTES + swizzled(r, piece), reinterpret_cast<const model_t*>(p.weights) + at, there ? 16 : 0);
    }
#endif
  };

  float sums[M_TILES][N_TILES][4] = {};
#pragma unroll
  for (int step = 0; step < STAGES - 1; step++) {
    if (step < steps) fetch(step);
    copy_async_commit();
  }
  for (int step = 0; step < steps; step++) {
    copy_async_wait<STAGES - 2>();
    __syncthreads();
    // The stage that the last step read is free.
    if (step + STAGES - 1 < steps) fetch(step + STAGES - 1);
    copy_async_commit();
    const u8* stage = ring + step % STAGES * STAGE_BYTES;
    const u32 x = shared_address(stage);
#if defined(MXFP4)
    uint2 codes[N_TILES], scales[N_TILES];
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
      const u8* group = stage + X_BYTES + (warp_n * N_TILES + n) * MXFP4_BYTES;
      codes[n] = *reinterpret_cast<const uint2*>(group + lane / 4 * 32 + lane % 4 * 8);
      const u32 two = *reinterpret_cast<const u16*>(group + MXFP4_SCALES + lane / 4 * 2);
      scales[n] = make_uint2(scale_of(two & 255), scale_of(two >> 8));
    }
#endif
#pragma unroll
    for (int s = 0; s < STEP / 16; s++) {
      u32 a[M_TILES][4], b[N_TILES][2];
#pragma unroll
      for (int m = 0; m < M_TILES; m++) {
        ldmatrix(a[m], x + swizzled(warp_m * M_TILES * 16 + m * 16 + lane % 16, 2 * s + lane / 16));
      }
#if defined(MXFP4)
#pragma unroll
      for (int n = 0; n < N_TILES; n++) {
        const u32 word = s < 2 ? codes[n].x : codes[n].y, scale = s < 2 ? scales[n].x : scales[n].y;
        b[n][0] = s % 2 == 0 ? scaled<0>(word, scale) : scaled<2>(word, scale);
        b[n][1] = s % 2 == 0 ? scaled<1>(word, scale) : scaled<3>(word, scale);
      }
#else
#pragma unroll
      for (int n = 0; n < N_TILES; n += 2) {
        u32 two[4];
        ldmatrix(two, x + X_BYTES + swizzled((warp_n * N_TILES + n) * 8 + lane % 8 + lane / 16 * 8, 2 * s + lane / 8 % 2));
        b[n][0] = two[0], b[n][1] = two[1], b[n + 1][0] = two[2], b[n + 1][1] = two[3];
      }
#endif
#pragma unroll
      for (int m = 0; m < M_TILES; m++) {
#pragma unroll
        for (int n = 0; n < N_TILES; n++) mma<model_t>(sums[m][n], a[m], b[n][0], b[n][1]);
      }
    }
  }

  auto biased = [&](float (&sum)[4], int row) {
    if (p.bias == nullptr || row >= p.rows) return;
    const float* bias = p.bias + (i64)tile.x * p.rows + row;
    const float lo = bias[0], hi = bias[1];
    sum[0] += lo, sum[1] += hi, sum[2] += lo, sum[3] += hi;
  };
#pragma unroll
  for (int m = 0; m < M_TILES; m++) {
    const int slot = (warp_m * M_TILES + m) * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < N_TILES; n++) {
      const int row = first + (warp_n * N_TILES + n) * 8 + lane % 4 * 2;
      biased(sums[m][n], row);
#if defined(GATED)
      if (n % 2 == 0) continue;
      const int column = (row - 8) / 16 * 8 + lane % 4 * 2;
      float y[4];
#pragma unroll
      for (int i = 0; i < 4; i++) y[i] = gate(sums[m][n - 1][i], sums[m][n][i], p.alpha, p.limit);
#else
      const int column = row;
      const float(&y)[4] = sums[m][n];
#endif
      if (row >= p.rows) continue;
      if (slot < tile.z) *reinterpret_cast<u32*>(p.y.row(tile.y + slot) + column) = pack2<model_t>(y[0], y[1]);
      if (slot + 8 < tile.z) *reinterpret_cast<u32*>(p.y.row(tile.y + slot + 8) + column) = pack2<model_t>(y[2], y[3]);
    }
  }
}

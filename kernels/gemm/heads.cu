// arch: sm_80+
// variants: MODEL_BF16 IN=128 OUT=512 REST=64 TOKENS=64; MODEL_F16 IN=512 OUT=128 REST=0 TOKENS=16; MODEL_BF16 IN=24 OUT=40 REST=8 TOKENS=16; MODEL_F32 IN=10 OUT=7 REST=3; MODEL_BF16 IN=10 OUT=7 REST=3
//
// Of each head the first IN elements times a matrix of its own, y = x W^T, and REST elements behind them as they are.
// Floor: the matrices, read once; 128 heads of 128 x 512 in bf16 are 16.8 MB.
//
// With TOKENS (16 or 64) a block has so many tokens, one head and 64 columns, and IN, OUT and REST are multiples of 8; model_t has
// 16 bits. Without it a warp has one element, of any type and shape. The order of a sum depends on IN alone.
//
// Grid: (columns, heads, tokens).
#include "include/mma.cuh"

struct HeadLinearParams {
  Rows<const model_t> x;    // [tokens, heads, IN + REST]
  Rows<model_t> y;          // [tokens, heads, OUT + REST]
  const model_t* weight;    // [heads, OUT, IN]
  int tokens;
};

#if defined(TOKENS)

constexpr int COLUMNS = 64, DEPTH = 64, THREADS = 128, STAGES = 3;
constexpr int REST_CHUNKS = REST > 0 ? REST / 8 : 1;
constexpr int STEPS = (IN + DEPTH - 1) / DEPTH;
// Of a warp: 16-token and 8-column tiles, and how the warps lie.
constexpr int M_TILES = TOKENS == 64 ? 2 : 1, N_TILES = TOKENS == 64 ? 4 : 2;
constexpr int WARPS_M = TOKENS / 16 / M_TILES;
constexpr int ROW_BYTES = DEPTH * 2, STAGE_BYTES = (TOKENS + COLUMNS) * ROW_BYTES;

DEVICE u32 swizzled(int row, int chunk) { return row * ROW_BYTES + ((chunk ^ (row & 7)) << 4); }

// DEPTH elements of COUNT rows, of which `rows` exist; what does not exist becomes zero.
template <int COUNT> DEVICE void load_rows(u32 to, const model_t* from, i64 stride, int rows, int depth) {
#pragma unroll
  for (int at = threadIdx.x; at < COUNT * 8; at += THREADS) {
    int row = at / 8, chunk = at % 8;
    bool there = row < rows && depth + chunk * 8 < IN;
    copy_async16(to + swizzled(row, chunk), from + (there ? row * stride + depth + chunk * 8 : 0), there ? 16 : 0);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) head_linear(const __grid_constant__ HeadLinearParams p) {
  __shared__ __align__(128) u8 shared[STAGES * STAGE_BYTES];
  const u32 ring = shared_address(shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t4 = lane % 4;
  const int column = blockIdx.x * COLUMNS, head = blockIdx.y, token = blockIdx.z * TOKENS;
  const int columns = min(COLUMNS, OUT - column), tokens = min(TOKENS, p.tokens - token);
  const model_t* weight = p.weight + ((i64)head * OUT + column) * IN;

  // Nothing writes weights: they are read ahead of the kernels that come before.
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++)
    if (s < STEPS) load_rows<COLUMNS>(ring + s * STAGE_BYTES + TOKENS * ROW_BYTES, weight, IN, columns, s * DEPTH);
  wait_for_previous();
  let_next_start();
  const model_t* x = p.x.row(token) + head * (IN + REST);
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < STEPS) load_rows<TOKENS>(ring + s * STAGE_BYTES, x, p.x.stride, tokens, s * DEPTH);
    copy_async_commit();
  }
  if (REST > 0 && blockIdx.x == 0) {
    for (int at = threadIdx.x; at < tokens * REST_CHUNKS; at += THREADS) {
      int row = at / REST_CHUNKS, chunk = at % REST_CHUNKS;
      uint4 rest = *(const uint4*)(x + row * p.x.stride + IN + chunk * 8);
      *(uint4*)(p.y.row(token + row) + head * (OUT + REST) + OUT + chunk * 8) = rest;
    }
  }

  const int m_first = warp % WARPS_M * (M_TILES * 16), n_first = warp / WARPS_M * (N_TILES * 8);
  float sums[M_TILES][N_TILES][4] = {};
#pragma unroll 1
  for (int step = 0; step < STEPS; step++) {
    copy_async_wait<STAGES - 2>();
    __syncthreads();
    if (int next = step + STAGES - 1; next < STEPS) {
      u32 stage = ring + next % STAGES * STAGE_BYTES;
      load_rows<TOKENS>(stage, x, p.x.stride, tokens, next * DEPTH);
      load_rows<COLUMNS>(stage + TOKENS * ROW_BYTES, weight, IN, columns, next * DEPTH);
    }
    copy_async_commit();
    const u32 rows = ring + step % STAGES * STAGE_BYTES, matrix = rows + TOKENS * ROW_BYTES;
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
      u32 a[M_TILES][4];
#pragma unroll
      for (int m = 0; m < M_TILES; m++) ldmatrix(a[m], rows + swizzled(m_first + m * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
      for (int n = 0; n < N_TILES; n += 2) {
        u32 b[4];
        ldmatrix(b, matrix + swizzled(n_first + n * 8 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < M_TILES; m++) {
          mma<model_t>(sums[m][n], a[m], b[0], b[1]);
          mma<model_t>(sums[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M_TILES; m++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = m_first + m * 16 + g + half * 8;
      if (row >= tokens) continue;
      model_t* y = p.y.row(token + row) + head * (OUT + REST) + column;
#pragma unroll
      for (int n = 0; n < N_TILES; n++) {
        const int at = n_first + n * 8 + 2 * t4;
        if (at < columns) *(u32*)(y + at) = pack2<model_t>(sums[m][n][2 * half], sums[m][n][2 * half + 1]);
      }
    }
}

#else

extern "C" __global__ void __launch_bounds__(128) head_linear(const __grid_constant__ HeadLinearParams p) {
  const int lane = threadIdx.x % 32, column = blockIdx.x * 4 + threadIdx.x / 32;
  const int head = blockIdx.y;
  wait_for_previous();
  let_next_start();
  if (column >= OUT + REST) return;
  for (int token = blockIdx.z; token < p.tokens; token += gridDim.z) {
    const model_t* x = p.x.row(token) + head * (IN + REST);
    model_t* y = p.y.row(token) + head * (OUT + REST) + column;
    if (column >= OUT) {
      if (lane == 0) *y = x[IN + column - OUT];
      continue;
    }
    const model_t* weight = p.weight + ((i64)head * OUT + column) * IN;
    float sum = 0.f;
    for (int k = lane; k < IN; k += 32) sum = fmaf(to_float(x[k]), to_float(weight[k]), sum);
    sum = warp_sum(sum);
    if (lane == 0) *y = from_float<model_t>(sum);
  }
}

#endif

// arch: sm_80+
// variants: MODEL_F32 GATED FUNCTION=SILU GATHER TOP_K=2; MODEL_F32 TOP_K=2; MODEL_BF16 MXFP4 GATED CLAMPED FUNCTION=SILU GATHER TOP_K=4; MODEL_F32 MXFP4 TOP_K=4
//
// Products of experts without tensor cores: any width, any alignment, f32. A block has the results of 64 packed rows for
// the 16 slots of a tile; sums run over k in order, whatever the tile.
//
// Defines: GATHER, TOP_K; GATED with FUNCTION or CLAMPED; MXFP4.
#include "moe/product.cuh"

constexpr int SLOTS = 16, ROWS = 64, STEP = 32, THREADS = 256;

// Grid: rows / 64, tiles.
extern "C" __global__ void __launch_bounds__(THREADS) product(const __grid_constant__ ProductParams p) {
  __shared__ float x[SLOTS][STEP], w[ROWS][STEP + 1], sums[SLOTS][ROWS];
  __shared__ const model_t* from[SLOTS];
  let_next_start();
  wait_for_previous();
  for (int index = blockIdx.y; index < *p.order.count; index += gridDim.y) {
    const int4 tile = p.order.tiles[index];
    const int first = blockIdx.x * ROWS, tid = threadIdx.x;
    __syncthreads();
    if (tid < SLOTS && tid < tile.z) {
#if defined(GATHER)
      from[tid] = p.x.row(p.order.pair_of[tile.y + tid] / TOP_K);
#else
      from[tid] = p.x.row(tile.y + tid);
#endif
    }
    const int r = tid % ROWS, s = tid / ROWS * 4;
    float sum[4] = {};
    for (int at = 0; at < p.k; at += STEP) {
      __syncthreads();
      for (int i = tid; i < SLOTS * STEP; i += THREADS) {
        const int slot = i / STEP, c = at + i % STEP;
        x[slot][i % STEP] = slot < tile.z && c < p.k ? to_float(from[slot][c]) : 0.f;
      }
      for (int i = tid; i < ROWS * STEP; i += THREADS) {
        const int row = first + i / STEP, c = at + i % STEP;
        const i64 line = (i64)tile.x * p.rows + row;
        float value = 0.f;
        if (row < p.rows && c < p.k) {
#if defined(MXFP4)
          value = mxfp4_element(p.weights, line, c, (p.k + MXFP4_CHUNK - 1) / MXFP4_CHUNK);
#else
          value = to_float(reinterpret_cast<const model_t*>(p.weights)[line * p.k + c]);
#endif
        }
        w[i / STEP][i % STEP] = value;
      }
      __syncthreads();
#pragma unroll
      for (int c = 0; c < STEP; c++) {
#pragma unroll
        for (int j = 0; j < 4; j++) sum[j] = fmaf(w[r][c], x[s + j][c], sum[j]);
      }
    }
    const float bias = p.bias != nullptr && first + r < p.rows ? p.bias[(i64)tile.x * p.rows + first + r] : 0.f;
#pragma unroll
    for (int j = 0; j < 4; j++) sums[s + j][r] = sum[j] + bias;
    __syncthreads();
#if defined(GATED)
    for (int i = tid; i < SLOTS * ROWS / 2; i += THREADS) {
      const int slot = i / (ROWS / 2), c = i % (ROWS / 2), row = c / 8 * 16 + c % 8;
      if (slot < tile.z && first + row + 8 < p.rows) {
        const float y = gate(sums[slot][row], sums[slot][row + 8], p.alpha, p.limit);
        p.y.row(tile.y + slot)[first / 2 + c] = from_float<model_t>(y);
      }
    }
#else
    for (int i = tid; i < SLOTS * ROWS; i += THREADS) {
      const int slot = i / ROWS, row = i % ROWS;
      if (slot < tile.z && first + row < p.rows) p.y.row(tile.y + slot)[first + row] = from_float<model_t>(sums[slot][row]);
    }
#endif
  }
}

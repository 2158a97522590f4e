// Normalisation of vectors, a group of threads each. A vector stays in registers between its one read and its one write.
//
// Defines: ROW_WIDTH elements of a vector; GROUP_THREADS threads that share one (a power of two up to 32, or the whole block, a multiple of
// 32); BLOCK_THREADS; VEC elements of an access; ADD where a residual is added first; WEIGHT_F32 where weights are f32
// rather than of the model's type. Sums depend on ROW_WIDTH, GROUP_THREADS and VEC alone, never on the number of rows.
#pragma once
#include "include/vector.cuh"

#if defined(WEIGHT_F32)
typedef float weight_t;
#else
typedef model_t weight_t;
#endif

struct NormParams {
  Rows<value_t> x;         // [rows, vectors, ROW_WIDTH]
  Rows<value_t> residual;  // likewise, with ADD
  Rows<value_t> sum;       // x + residual, with ADD
  Rows<value_t> y;
  const weight_t* weight;  // [ROW_WIDTH] or [vectors, ROW_WIDTH]; null is ones
  const weight_t* bias;    // likewise; null is zeros
  float eps;
  float offset;            // added to the weight
  int rows;
  int vectors;             // of a row
  int weight_step;         // elements from the weights of one vector to those of the next; 0 when all share them
  int round_first;         // 1: the normalised value is rounded before it is multiplied by the weight
};

enum NormKind { RMS, LAYER, L2 };

constexpr int GROUPS = BLOCK_THREADS / GROUP_THREADS;
constexpr int STEP = GROUP_THREADS * VEC;
constexpr int PER = (ROW_WIDTH + STEP - 1) / STEP;
static_assert(GROUP_THREADS <= 32 || GROUP_THREADS == BLOCK_THREADS, "a group is part of a warp or the block");

// Sums over the group, the same in all its threads. `turn` alternates between two buffers, so that one barrier is enough.
template <int THREADS> DEVICE float group_sum(float x, int& turn) {
  if constexpr (THREADS <= 32) {
    return warp_sum<THREADS>(x);
  } else {
    constexpr int WARPS = THREADS / 32;
    __shared__ float partial[2][WARPS];
    const int lane = threadIdx.x % 32;
    x = warp_sum(x);
    if (lane == 0) partial[turn][threadIdx.x / 32] = x;
    __syncthreads();
    constexpr bool WHOLE = (WARPS & (WARPS - 1)) == 0;
    float y = WHOLE ? partial[turn][lane % WARPS] : lane < WARPS ? partial[turn][lane] : 0.f;
    turn ^= 1;
    return warp_sum<WHOLE ? WARPS : 32>(y);
  }
}

template <NormKind KIND> DEVICE void norm(const NormParams& p) {
  let_next_start();
  const int lane = threadIdx.x % GROUP_THREADS;
  const int total = p.rows * p.vectors;
  int turn = 0;
  int unit = blockIdx.x * GROUPS + threadIdx.x / GROUP_THREADS;
  float w[PER][VEC], b[PER][VEC];
  auto load_weights = [&](int vector) {
#pragma unroll
    for (int i = 0; i < PER; i++) {
      int at = i * STEP + lane * VEC;
#pragma unroll
      for (int j = 0; j < VEC; j++) w[i][j] = 1.f, b[i][j] = 0.f;
      if (at < ROW_WIDTH) {
        if (KIND != L2 && p.weight) {
          load<VEC>(w[i], p.weight + (i64)vector * p.weight_step + at);
#pragma unroll
          for (int j = 0; j < VEC; j++) w[i][j] += p.offset;
        }
        if (KIND == LAYER && p.bias) load<VEC>(b[i], p.bias + (i64)vector * p.weight_step + at);
      }
    }
  };
  // Before the wait: nothing writes weights.
  load_weights(unit % p.vectors);
  wait_for_previous();
  // All threads of a block make the same number of turns, since sums have barriers.
  for (int base = blockIdx.x * GROUPS; base < total; base += gridDim.x * GROUPS) {
    unit = base + threadIdx.x / GROUP_THREADS;
    const bool mine = unit < total;
    const int row = mine ? unit / p.vectors : 0, vector = mine ? unit % p.vectors : 0;
    const i64 from = (i64)vector * ROW_WIDTH;
    if (base != blockIdx.x * GROUPS && p.weight_step != 0) load_weights(vector);
    float v[PER][VEC];
#pragma unroll
    for (int i = 0; i < PER; i++) {
      int at = i * STEP + lane * VEC;
#pragma unroll
      for (int j = 0; j < VEC; j++) v[i][j] = 0.f;
      if (mine && at < ROW_WIDTH) load<VEC>(v[i], p.x.row(row) + from + at);
    }
#if defined(ADD)
    float r[PER][VEC];
#pragma unroll
    for (int i = 0; i < PER; i++) {
      int at = i * STEP + lane * VEC;
#pragma unroll
      for (int j = 0; j < VEC; j++) r[i][j] = 0.f;
      if (mine && at < ROW_WIDTH) load<VEC>(r[i], p.residual.row(row) + from + at);
    }
#pragma unroll
    for (int i = 0; i < PER; i++) {
      int at = i * STEP + lane * VEC;
#pragma unroll
      for (int j = 0; j < VEC; j++) v[i][j] = rounded<value_t>(v[i][j] + r[i][j]);
      if (mine && at < ROW_WIDTH) store<VEC>(p.sum.row(row) + from + at, v[i]);
    }
#endif
    float mean = 0.f;
    if (KIND == LAYER) {
      float s = 0.f;
#pragma unroll
      for (int i = 0; i < PER; i++)
#pragma unroll
        for (int j = 0; j < VEC; j++) s += v[i][j];
      mean = group_sum<GROUP_THREADS>(s, turn) * (1.f / ROW_WIDTH);
    }
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < PER; i++) {
      bool inside = ROW_WIDTH % STEP == 0 || i * STEP + lane * VEC < ROW_WIDTH;
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        if (KIND == LAYER) v[i][j] = inside ? v[i][j] - mean : 0.f;
        squares = fmaf(v[i][j], v[i][j], squares);
      }
    }
    squares = group_sum<GROUP_THREADS>(squares, turn);
    const float factor = rsqrtf((KIND == L2 ? squares : squares * (1.f / ROW_WIDTH)) + p.eps);
#pragma unroll
    for (int i = 0; i < PER; i++) {
      int at = i * STEP + lane * VEC;
      float y[VEC];
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        float x = v[i][j] * factor;
        if (KIND == RMS && p.round_first) x = rounded<value_t>(x);
        y[j] = KIND == LAYER ? fmaf(x, w[i][j], b[i][j]) : x * w[i][j];
      }
      if (mine && at < ROW_WIDTH) store<VEC>(p.y.row(row) + from + at, y);
    }
  }
}

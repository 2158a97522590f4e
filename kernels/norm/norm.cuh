// Normalisation of vectors, a group of threads each. A vector stays in registers between its one read and its one write.
//
// Defines: ROW_WIDTH elements of a vector, VECTORS of a row; GROUP_THREADS threads that share one (a power of two up to
// 32, or the whole block, a multiple of 32); BLOCK_THREADS; VEC elements of an access; ADD where a residual is added
// first; ROUND_FIRST where the normalised value is rounded before it is multiplied by the weight; WEIGHT_F32 where
// weights are f32 rather than of the model's type. Sums depend on ROW_WIDTH, GROUP_THREADS and VEC alone, never on the number of rows.
#pragma once
#include "include/vector.cuh"

#if defined(WEIGHT_F32)
typedef float weight_t;
#else
typedef model_t weight_t;
#endif

struct NormParams {
  Rows<value_t> x;         // [rows, VECTORS, ROW_WIDTH]
  Rows<value_t> residual;  // likewise, with ADD
  Rows<value_t> sum;       // x + residual, with ADD
  Rows<value_t> y;
  const weight_t* weight;  // [ROW_WIDTH] or [VECTORS, ROW_WIDTH]; null is ones
  const weight_t* bias;    // likewise; null is zeros
  float eps;
  float offset;            // added to the weight
  int rows;
  int weight_step;         // elements from the weights of one vector to those of the next; 0 when all share them
};

enum NormKind { RMS, LAYER, L2 };

constexpr int GROUPS = BLOCK_THREADS / GROUP_THREADS;
constexpr int STEP = GROUP_THREADS * VEC;
constexpr int PER = (ROW_WIDTH + STEP - 1) / STEP;
constexpr bool WHOLE = ROW_WIDTH % STEP == 0;
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
    constexpr bool EVEN = (WARPS & (WARPS - 1)) == 0;
    float y = EVEN ? partial[turn][lane % WARPS] : lane < WARPS ? partial[turn][lane] : 0.f;
    turn ^= 1;
    return warp_sum<EVEN ? WARPS : 32>(y);
  }
}

template <NormKind KIND> DEVICE void norm(const NormParams& p) {
  let_next_start();
  const int lane = threadIdx.x % GROUP_THREADS;
  const int total = p.rows * VECTORS;
  int turn = 0;
  int unit = blockIdx.x * GROUPS + threadIdx.x / GROUP_THREADS;
  float w[PER][VEC], b[PER][VEC];
  auto load_weights = [&](int vector) {
#pragma unroll
    for (int i = 0; i < PER; i++) {
      const int at = i * STEP + lane * VEC;
#pragma unroll
      for (int j = 0; j < VEC; j++) w[i][j] = 1.f, b[i][j] = 0.f;
      if (WHOLE || at < ROW_WIDTH) {
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
  load_weights(unit % VECTORS);
  wait_for_previous();
  // All threads of a block make the same number of turns, since sums have barriers.
  for (int base = blockIdx.x * GROUPS; base < total; base += gridDim.x * GROUPS) {
    unit = base + threadIdx.x / GROUP_THREADS;
    // A group that is the block has work in each turn.
    const bool mine = GROUPS == 1 || unit < total;
    const int row = mine ? unit / VECTORS : 0, vector = mine ? unit % VECTORS : 0;
    const i64 from = (i64)vector * ROW_WIDTH + lane * VEC;
    auto inside = [&](int i) { return mine && (WHOLE || i * STEP + lane * VEC < ROW_WIDTH); };
    if (VECTORS > 1 && base != blockIdx.x * GROUPS && p.weight_step != 0) load_weights(vector);
    raw_t<value_t, VEC> raw[PER] = {};
#pragma unroll
    for (int i = 0; i < PER; i++)
      if (inside(i)) raw[i] = load_raw<value_t, VEC>(p.x.row(row) + from + i * STEP);
    float v[PER][VEC];
#if defined(ADD)
    raw_t<value_t, VEC> residual[PER] = {};
#pragma unroll
    for (int i = 0; i < PER; i++)
      if (inside(i)) residual[i] = load_raw<value_t, VEC>(p.residual.row(row) + from + i * STEP);
#pragma unroll
    for (int i = 0; i < PER; i++) {
      float r[VEC];
      unpack<value_t, VEC>(v[i], raw[i]);
      unpack<value_t, VEC>(r, residual[i]);
#pragma unroll
      for (int j = 0; j < VEC; j++) v[i][j] += r[j];
      raw[i] = pack<value_t, VEC>(v[i]);
      if (inside(i)) store_raw<value_t, VEC>(p.sum.row(row) + from + i * STEP, raw[i]);
    }
#endif
#pragma unroll
    for (int i = 0; i < PER; i++) unpack<value_t, VEC>(v[i], raw[i]);
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
#pragma unroll
      for (int j = 0; j < VEC; j++) {
        if (KIND == LAYER) v[i][j] = inside(i) ? v[i][j] - mean : 0.f;
        squares = fmaf(v[i][j], v[i][j], squares);
      }
    }
    squares = group_sum<GROUP_THREADS>(squares, turn);
    const float factor = rsqrtf((KIND == L2 ? squares : squares * (1.f / ROW_WIDTH)) + p.eps);
#pragma unroll
    for (int i = 0; i < PER; i++) {
#pragma unroll
      for (int j = 0; j < VEC; j++) v[i][j] *= factor;
#if defined(ROUND_FIRST)
      round_to<value_t, VEC>(v[i]);
#endif
#pragma unroll
      for (int j = 0; j < VEC; j++) v[i][j] = KIND == LAYER ? fmaf(v[i][j], w[i][j], b[i][j]) : v[i][j] * w[i][j];
      if (inside(i)) store<VEC>(p.y.row(row) + from + i * STEP, v[i]);
    }
  }
}

// arch: sm_80+
// variants: MODEL_BF16 VEC=8; MODEL_F32 VEC=1
//
// Qwen 1's factor on queries beyond the length of training: y = x * max(1, ln(position + 1) / ln(train_len)).
// Floor: a read and a write of every element.
#include "include/vector.cuh"

struct LogNParams {
  Rows<const value_t> x;
  Rows<value_t> y;
  Rows<const int> positions;
  int width;
  float log_train;  // ln(train_len)
};

// Grid: rows.
extern "C" __global__ void __launch_bounds__(256) logn_scale(const __grid_constant__ LogNParams p) {
  let_next_start();
  const int row = blockIdx.x;
  wait_for_previous();
  const float by = fmaxf(1.f, logf((float)p.positions.row(row)[0] + 1.f) / p.log_train);
  for (int at = threadIdx.x * VEC; at < p.width; at += 256 * VEC) {
    float v[VEC];
    load<VEC>(v, p.x.row(row) + at);
#pragma unroll
    for (int j = 0; j < VEC; j++) v[j] *= by;
    store<VEC>(p.y.row(row) + at, v);
  }
}

// arch: sm_80+
// variants: MODEL_BF16 TOP_K=8 VEC=8; MODEL_F32 TOP_K=5 VEC=1; MODEL_F16 TOP_K=2 VEC=4
//
// y = the experts' results times the row's weights, summed in the order of the row's list.
//
// Defines: TOP_K, VEC elements of an access.
#include "include/vector.cuh"
#include "moe/order.cuh"

struct CombineParams {
  Rows<const model_t> results;  // by slot
  Rows<const float> weights;
  Rows<model_t> y;
  const int* slot_of;
  i64 width;
  int rows;
};

// Grid: width / (256 * VEC), rows (see grid_row).
extern "C" __global__ void __launch_bounds__(256) combine(const __grid_constant__ CombineParams p) {
  const int row = grid_row();
  const i64 at = ((i64)blockIdx.x * 256 + threadIdx.x) * VEC;
  let_next_start();
  wait_for_previous();
  if (row >= p.rows || at >= p.width) return;
  float sum[VEC] = {};
#pragma unroll
  for (int k = 0; k < TOP_K; k++) {
    const int slot = p.slot_of[(i64)row * TOP_K + k];
    if (slot < 0) continue;
    const float weight = p.weights.row(row)[k];
    float x[VEC];
    load<VEC>(x, p.results.row(slot) + at);
#pragma unroll
    for (int j = 0; j < VEC; j++) sum[j] = fmaf(weight, x[j], sum[j]);
  }
  store<VEC>(p.y.row(row) + at, sum);
}

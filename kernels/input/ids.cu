// arch: sm_80+
// variants: MODEL_BF16
//
// Token ids and positions as values: y = x + offset.
// Floor: launch.
#include "include/base.cuh"

struct IdsParams {
  const int* x;  // [tokens]
  Rows<int> y;
  int offset;
  int tokens;
};

// Grid: tokens / 128.
extern "C" __global__ void __launch_bounds__(128) copy_ids(const __grid_constant__ IdsParams p) {
  let_next_start();
  wait_for_previous();
  const int t = blockIdx.x * 128 + threadIdx.x;
  if (t < p.tokens) p.y.row(t)[0] = p.x[t] + p.offset;
}

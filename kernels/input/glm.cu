// arch: sm_80+
// variants: MODEL_BF16
//
// GLM's two-dimensional positions: (p, 0) before a row's block begins, (place of the mask, 1, 2, ...) from there on.
// Floor: launch.
#include "include/base.cuh"

struct GlmPositionsParams {
  Batch batch;
  Rows<int> y;  // two columns
};

// Grid: tokens / 128.
extern "C" __global__ void __launch_bounds__(128) glm_positions(const __grid_constant__ GlmPositionsParams p) {
  let_next_start();
  wait_for_previous();
  const int t = blockIdx.x * 128 + threadIdx.x;
  if (t >= p.batch.token_count) return;
  const int row = p.batch.row_of[t], position = p.batch.positions[t];
  const int beyond = row < 0 ? -1 : position - p.batch.block_start[row];
  p.y.row(t)[0] = beyond < 0 ? position : p.batch.mask_at[row];
  p.y.row(t)[1] = max(beyond + 1, 0);
}

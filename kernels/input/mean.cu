// arch: sm_80+
// variants: MODEL_BF16; MODEL_F32; MODEL_F16 VALUE_F32
//
// Means over the sequences whose output is wanted; each has all of its tokens in the step.
// Floor: a read of every element.
#include "include/vector.cuh"

struct MeanParams {
  Rows<const value_t> x;  // [tokens, width]
  Rows<value_t> y;        // [outputs, width]
  Batch batch;
  int width;
};

// Grid: outputs, width / 128. Tokens are summed in their order, so that a result does not depend on the batch.
extern "C" __global__ void __launch_bounds__(128) mean_outputs(const __grid_constant__ MeanParams p) {
  let_next_start();
  const int at = blockIdx.y * 128 + threadIdx.x;
  wait_for_previous();
  const int token = p.batch.outputs[blockIdx.x];
  if (at >= p.width || token < 0 || token >= p.batch.token_count) return;
  const int row = p.batch.row_of[token];
  if (row < 0) return;
  const int first = p.batch.first[row], end = p.batch.first[row + 1];
  float sum = 0.f;
  for (int t = first; t < end; t++) sum += to_float(p.x.row(t)[at]);
  p.y.row(blockIdx.x)[at] = from_float<value_t>(sum / (float)(end - first));
}

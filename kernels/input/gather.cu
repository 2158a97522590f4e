// arch: sm_80+
// variants: MODEL_BF16 BYTES=16; MODEL_F16 BYTES=2; MODEL_F32 BYTES=4
//
// Rows of the tokens whose output is wanted. Widths and strides are in units of BYTES.
// Floor: a read and a write per element.
#include "include/vector.cuh"

typedef Raw<BYTES>::type unit_t;

struct GatherParams {
  Rows<const unit_t> x;  // [tokens, width]
  Rows<unit_t> y;        // [outputs, width]
  const int* outputs;    // [outputs] token of each; anything for padding
  int tokens;
  int width;
};

// Grid: outputs, width / 256.
extern "C" __global__ void __launch_bounds__(256) gather_outputs(const __grid_constant__ GatherParams p) {
  let_next_start();
  const int row = blockIdx.x, at = blockIdx.y * 256 + threadIdx.x;
  wait_for_previous();
  if (at >= p.width) return;
  const int token = min(max(p.outputs[row], 0), p.tokens - 1);
  p.y.row(row)[at] = p.x.row(token)[at];
}

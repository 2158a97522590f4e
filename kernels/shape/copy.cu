// arch: sm_80+
// variants: MODEL_BF16 BYTES=16; MODEL_F32 BYTES=4; MODEL_F16 BYTES=2
//
// Regular copies within rows: splits, slices, concatenations, repeated heads. All lengths are in units of BYTES.
// Floor: a read and a write of every element that moves.
#include "include/vector.cuh"

typedef Raw<BYTES>::type unit_t;
constexpr int MAX_PARTS = 8;

// `outer` runs of `len` units.
struct CopyPart {
  const unit_t* x;
  unit_t* y;
  i64 x_stride, y_stride;  // units from row to row
  int outer, len;
  int x_first, x_step;     // first unit and distance of runs in x
  int y_first, y_step;     // likewise in y
};

struct CopyParams {
  CopyPart parts[MAX_PARTS];
  int rows;
  int count;   // of parts
};

// Grid: units of the largest part / 256, rows (see grid_row). A block does its share of every part.
extern "C" __global__ void __launch_bounds__(256) copy_parts(const __grid_constant__ CopyParams p) {
  let_next_start();
  const i64 row = grid_row();
  const int item = blockIdx.x * 256 + threadIdx.x;
  wait_for_previous();
  if (row >= p.rows) return;
#pragma unroll
  for (int i = 0; i < MAX_PARTS; i++) {
    const CopyPart& part = p.parts[i];
    if (i >= p.count || item >= part.outer * part.len) continue;
    const int run = item / part.len, at = item % part.len;
    const unit_t x = part.x[row * part.x_stride + part.x_first + (i64)run * part.x_step + at];
    part.y[row * part.y_stride + part.y_first + (i64)run * part.y_step + at] = x;
  }
}

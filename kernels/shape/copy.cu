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
  int chunks;  // blocks of a row: the largest part / 256, rounded up
};

// Grid: rows * chunks, parts.
extern "C" __global__ void __launch_bounds__(256) copy_parts(const __grid_constant__ CopyParams p) {
  let_next_start();
  const CopyPart& part = p.parts[blockIdx.y];
  const i64 row = early(blockIdx.x / p.chunks);
  const int item = blockIdx.x % p.chunks * 256 + threadIdx.x;
  wait_for_previous();
  if (item >= part.outer * part.len) return;
  const int run = item / part.len, at = item % part.len;
  const unit_t x = part.x[row * part.x_stride + part.x_first + (i64)run * part.x_step + at];
  part.y[row * part.y_stride + part.y_first + (i64)run * part.y_step + at] = x;
}

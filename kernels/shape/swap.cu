// arch: sm_80+
// variants: MODEL_BF16 BYTES=2; MODEL_F32 BYTES=4
//
// [rows, b, a] from [rows, a, b].
// Floor: a read and a write of every element.
#include "include/vector.cuh"

typedef Raw<BYTES>::type unit_t;

struct SwapParams {
  Rows<const unit_t> x;
  Rows<unit_t> y;
  int a, b;
  int rows;
};

// Grid: a * b / 256, rows (see grid_row).
extern "C" __global__ void __launch_bounds__(256) swap_axes(const __grid_constant__ SwapParams p) {
  let_next_start();
  const i64 row = grid_row();
  const int at = blockIdx.x * 256 + threadIdx.x;
  wait_for_previous();
  if (row < p.rows && at < p.a * p.b) p.y.row(row)[at] = p.x.row(row)[(i64)(at % p.a) * p.b + at / p.a];
}

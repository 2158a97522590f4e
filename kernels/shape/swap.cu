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
  int chunks;  // blocks of a row: a * b / 256, rounded up
};

// Grid: rows * chunks.
extern "C" __global__ void __launch_bounds__(256) swap_axes(const __grid_constant__ SwapParams p) {
  let_next_start();
  const i64 row = early(blockIdx.x / p.chunks);
  const int at = blockIdx.x % p.chunks * 256 + threadIdx.x;
  wait_for_previous();
  if (at < p.a * p.b) p.y.row(row)[at] = p.x.row(row)[(i64)(at % p.a) * p.b + at / p.a];
}

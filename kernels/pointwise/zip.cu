// arch: sm_80+
// variants: MODEL_BF16 MULTIPLY=0 SPREAD=SAME VEC=8 ITEMS=2; MODEL_F16 MULTIPLY=1 SPREAD=ONE VEC=8 ITEMS=1; MODEL_F32 MULTIPLY=1 SPREAD=INNER VEC=1 ITEMS=1; MODEL_BF16 MULTIPLY=1 SPREAD=OUTER VEC=8 ITEMS=1
//
// y = a + b or a * b; b may lack dimensions, have some of 1, or be one row for all.
// Floor: a read of a and b and a write of y.
//
// Defines: MULTIPLY; SPREAD; VEC elements of an access, which divides the last dimension; ITEMS accesses of a thread.
#include "include/vector.cuh"

// How b's elements meet a's: equal widths; one number of b; or by dimensions, the last of which both have (INNER) or b
// repeats (OUTER).
enum Spread { SAME, ONE, INNER, OUTER };
constexpr int MAX_RANK = 6;

struct ZipParams {
  Rows<const value_t> a, b;  // b.stride 0: one row for all
  Rows<value_t> y;
  i64 width;            // of a and y
  int rows;
  int rank;             // of `sizes`
  int sizes[MAX_RANK];  // of a, the last dimension first
  int steps[MAX_RANK];  // elements from one index to the next in b; 0 where b repeats
};

DEVICE i64 in_b(const ZipParams& p, i64 at) {
  if (SPREAD == ONE) return 0;
  if (SPREAD == SAME) return at;
  i64 from = 0;
  u32 rest = (u32)at;
  for (int i = 0; i < p.rank; i++) {
    from += (i64)(rest % p.sizes[i]) * p.steps[i];
    rest /= p.sizes[i];
  }
  return from;
}

// Grid: width / (256 * ITEMS * VEC), rows (see grid_row).
extern "C" __global__ void __launch_bounds__(256) zip(const __grid_constant__ ZipParams p) {
  let_next_start();
  const int row = grid_row();
  const i64 first = ((i64)blockIdx.x * ITEMS * 256 + threadIdx.x) * VEC;
  wait_for_previous();
  if (row >= p.rows) return;
  float a[ITEMS][VEC], b[ITEMS][VEC];
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    i64 at = first + i * 256 * VEC;
    if (at >= p.width) continue;
    load<VEC>(a[i], p.a.row(row) + at);
    const value_t* from = p.b.row(row) + in_b(p, at);
    if constexpr (SPREAD == SAME || SPREAD == INNER) {
      load<VEC>(b[i], from);
    } else {
      float one = to_float(*from);
#pragma unroll
      for (int j = 0; j < VEC; j++) b[i][j] = one;
    }
  }
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    i64 at = first + i * 256 * VEC;
    if (at >= p.width) continue;
#pragma unroll
    for (int j = 0; j < VEC; j++) a[i][j] = MULTIPLY ? a[i][j] * b[i][j] : a[i][j] + b[i][j];
    store<VEC>(p.y.row(row) + at, a[i]);
  }
}

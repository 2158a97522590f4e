// arch: sm_80+
// variants: MODEL_BF16 FUNCTION=SCALE X_TYPE=model_t Y_TYPE=model_t VEC=8 ITEMS=2; MODEL_F16 FUNCTION=COPY X_TYPE=model_t Y_TYPE=float VEC=8 ITEMS=1; MODEL_F32 FUNCTION=SOFTPLUS X_TYPE=float Y_TYPE=float VEC=1 ITEMS=1; MODEL_BF16 FUNCTION=COPY X_TYPE=int Y_TYPE=float VEC=1 ITEMS=1
//
// y = f(x), element by element; casts are the function COPY between two types.
// Floor: a read and a write of every element.
//
// Defines: FUNCTION; X_TYPE, Y_TYPE; VEC elements of an access; ITEMS accesses of a thread.
#include "include/vector.cuh"
#include "pointwise/functions.cuh"

struct MapParams {
  Rows<const X_TYPE> x;
  Rows<Y_TYPE> y;
  i64 width;
  int rows;
  float a, b;
};

template <class T> DEVICE void fetch(float (&v)[VEC], const T* p) { load<VEC>(v, p); }
DEVICE void fetch(float (&v)[VEC], const int* p) {
#pragma unroll
  for (int i = 0; i < VEC; i++) v[i] = (float)p[i];
}

// Grid: width / (256 * ITEMS * VEC), rows (see grid_row).
extern "C" __global__ void __launch_bounds__(256) map(const __grid_constant__ MapParams p) {
  let_next_start();
  const int row = grid_row();
  const i64 first = ((i64)blockIdx.x * ITEMS * 256 + threadIdx.x) * VEC;
  wait_for_previous();
  if (row >= p.rows) return;
  float v[ITEMS][VEC];
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    i64 at = first + i * 256 * VEC;
    if (at < p.width) fetch(v[i], p.x.row(row) + at);
  }
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    i64 at = first + i * 256 * VEC;
#pragma unroll
    for (int j = 0; j < VEC; j++) v[i][j] = apply<FUNCTION, sizeof(Y_TYPE) == 4>(v[i][j], p.a, p.b);
    if (at < p.width) store<VEC>(p.y.row(row) + at, v[i]);
  }
}

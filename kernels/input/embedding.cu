// arch: sm_80+
// variants: MODEL_BF16 TABLE_TYPE=model_t VEC=8; MODEL_F16 TABLE_TYPE=float VEC=8; MODEL_F32 TABLE_TYPE=bf16 VEC=1
//
// A row of a table per id. Ids outside the table give the nearest row: token ids were checked, positions were checked
// against the model's length, and padding may hold anything.
// Floor: a read and a write per element.
#include "include/vector.cuh"

struct EmbeddingParams {
  const TABLE_TYPE* table;  // [n, width]
  Rows<const int> ids;
  Rows<model_t> y;
  int n;
  int width;
};

// Grid: rows, width / (256 * VEC).
extern "C" __global__ void __launch_bounds__(256) embedding(const __grid_constant__ EmbeddingParams p) {
  let_next_start();
  const int row = blockIdx.x, at = (blockIdx.y * 256 + threadIdx.x) * VEC;
  wait_for_previous();
  if (at >= p.width) return;
  const i64 id = min(max(p.ids.row(row)[0], 0), p.n - 1);
  float v[VEC];
  load<VEC>(v, p.table + id * p.width + at);
  store<VEC>(p.y.row(row) + at, v);
}

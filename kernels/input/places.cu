// arch: sm_80+
// variants: MODEL_BF16
//
// Where each token's keys and values go, once per step and cache group, so that the layers need one load to know.
// Floor: launch.
#include "include/base.cuh"

constexpr int MAX_GROUPS = 8;

struct PlacesParams {
  const int* tables[MAX_GROUPS];  // of each group, [slots, table_stride]
  int* places[MAX_GROUPS];        // of each group, [tokens]: block * block_size + position in it; -1 for padding
  const int* positions;           // [tokens]
  const int* row_of;              // [tokens], -1 for padding
  const int* slot;                // [rows]
  int table_stride;
  int block_size;
  int tokens;
};

// Grid: tokens / 128, groups.
extern "C" __global__ void __launch_bounds__(128) kv_places(const __grid_constant__ PlacesParams p) {
  let_next_start();
  wait_for_previous();
  const int t = blockIdx.x * 128 + threadIdx.x;
  if (t >= p.tokens) return;
  const int row = p.row_of[t];
  int place = -1;
  if (row >= 0) {
    const int position = p.positions[t];
    const int block = p.tables[blockIdx.y][(i64)p.slot[row] * p.table_stride + position / p.block_size];
    place = block * p.block_size + position % p.block_size;
  }
  p.places[blockIdx.y][t] = place;
}

// arch: sm_80+
// variants: MODEL_BF16
//
// Writes what changed into the block tables.
// Floor: launch.
#include "include/base.cuh"

struct TableUpdate {
  int group;  // -1: padding
  int slot;
  int index;
  int block;
};

struct TablesParams {
  int* tables;       // [groups, slots, table_stride]
  const TableUpdate* updates;
  i64 group_stride;  // entries from one group's tables to the next one's
  int table_stride;
  int count;
};

// Grid: count / 128.
extern "C" __global__ void __launch_bounds__(128) update_tables(const __grid_constant__ TablesParams p) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= p.count) return;
  const TableUpdate u = p.updates[i];
  if (u.group >= 0) p.tables[u.group * p.group_stride + (i64)u.slot * p.table_stride + u.index] = u.block;
}

// arch: sm_80+
// variants: MODEL_BF16
//
// Copies KV blocks in all layers of a group. No block is both written and touched by another copy of the list.
// Floor: a read and a write of every byte.
#include "include/base.cuh"

// Keys or values of one layer.
struct BlockBuffer {
  uint4* data;
  i64 block;  // 16-byte units of a block
};

constexpr int MAX_COPIES = 64;

struct KvCopyParams {
  const BlockBuffer* buffers;  // of each layer, keys and values
  int2 copies[MAX_COPIES];     // (from, to)
};

// Grid: 16-byte units of the largest block / 1024 rounded up, buffers, copies.
extern "C" __global__ void __launch_bounds__(256) copy_blocks(const __grid_constant__ KvCopyParams p) {
  let_next_start();
  wait_for_previous();
  const BlockBuffer buffer = p.buffers[blockIdx.y];
  const int2 copy = p.copies[blockIdx.z];
  const uint4* from = buffer.data + copy.x * buffer.block;
  uint4* to = buffer.data + copy.y * buffer.block;
  uint4 x[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    i64 at = (i64)blockIdx.x * 1024 + i * 256 + threadIdx.x;
    if (at < buffer.block) x[i] = from[at];
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    i64 at = (i64)blockIdx.x * 1024 + i * 256 + threadIdx.x;
    if (at < buffer.block) to[at] = x[i];
  }
}

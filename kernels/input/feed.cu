// arch: sm_80+
// variants: MODEL_BF16
//
// Tokens of this step that an earlier step sampled: they never leave the device.
// Floor: launch.
#include "include/base.cuh"

struct FeedParams {
  int* tokens;         // [tokens]
  const int* sampled;  // ids chosen by earlier steps
  const int2* list;    // [count] (index into tokens, index into sampled); index -1 is padding
  int count;
};

// Grid: count / 128.
extern "C" __global__ void __launch_bounds__(128) feed_tokens(const __grid_constant__ FeedParams p) {
  let_next_start();
  wait_for_previous();
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= p.count) return;
  const int2 pair = p.list[i];
  if (pair.x >= 0) p.tokens[pair.x] = p.sampled[pair.y];
}

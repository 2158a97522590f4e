// arch: sm_80+
// variants: MODEL_BF16; MODEL_F16; MODEL_F32
// Made-up weights: the values that guesthouse_weights::DummyFill describes, so that a model can be timed without its
// checkpoint. Floor: the bytes written.
#include "include/base.cuh"

struct FillParams {
  model_t* data;
  // Element `start + i` of the tensor goes to data[i].
  u64 start;
  u64 count;
  u32 seed;
  float offset;
  float scale;
  u32 padding;
};

DEVICE float made_up(u64 index, u32 seed, float offset, float scale) {
  u32 x = (u32)index * 0x9E3779B9u + seed + (u32)(index >> 32) * 0x85EBCA6Bu;
  x ^= x >> 16;
  x *= 0x7FEB352Du;
  x ^= x >> 15;
  x *= 0x846CA68Bu;
  x ^= x >> 16;
  // Not contracted, as on the host.
  return __fadd_rn(offset, __fmul_rn(scale, (float)(int)x * 4.656612873077393e-10f));
}

extern "C" __global__ void __launch_bounds__(256) fill(const __grid_constant__ FillParams p) {
  wait_for_previous();
  let_next_start();
  u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += step)
    p.data[i] = from_float<model_t>(made_up(p.start + i, p.seed, p.offset, p.scale));
}

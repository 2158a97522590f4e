// arch: sm_80+
// variants: MODEL_BF16 ROW_WIDTH=4096 VECTORS=1 GROUP_THREADS=512 BLOCK_THREADS=512 VEC=8 ADD ROUND_FIRST; MODEL_F16 ROW_WIDTH=128 VECTORS=8 GROUP_THREADS=16 BLOCK_THREADS=128 VEC=8; MODEL_F32 ROW_WIDTH=65 VECTORS=3 GROUP_THREADS=32 BLOCK_THREADS=128 VEC=1 VALUE_F32 WEIGHT_F32
//
// Root-mean-square normalisation over the last dimension.
// Floor: a read and a write of every element; with ADD two reads and two writes. 16384 rows of 4096 in bf16 take 268 MB,
// with ADD 537 MB.
#include "norm/norm.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) norm_rms(const __grid_constant__ NormParams p) { norm<RMS>(p); }

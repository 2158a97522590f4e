// Types, conversions, reductions and launch ordering that every kernel shares. No CUDA header is needed.
//
// One of MODEL_BF16, MODEL_F16 and MODEL_F32 says what `model_t`, the type of activations, is.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEVICE __device__ __forceinline__
#define INFINITY_F __int_as_float(0x7f800000)

// Storage of the two 16-bit types. Arithmetic is in f32.
struct bf16 { u16 bits; };
struct f16 { u16 bits; };

#if defined(MODEL_BF16)
typedef bf16 model_t;
#elif defined(MODEL_F16)
typedef f16 model_t;
#elif defined(MODEL_F32)
typedef float model_t;
#endif

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
DEVICE float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

// Rounds to nearest, ties to even.
template <class T> DEVICE T from_float(float x);
template <> DEVICE float from_float<float>(float x) { return x; }
template <> DEVICE bf16 from_float<bf16>(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
template <> DEVICE f16 from_float<f16>(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

// Two floats as one register of T; `lo` in the lower half.
template <class T> DEVICE u32 pack2(float lo, float hi);
template <> DEVICE u32 pack2<bf16>(float lo, float hi) {
  u32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
  return y;
}
template <> DEVICE u32 pack2<f16>(float lo, float hi) {
  u32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
  return y;
}
template <class T> DEVICE float2 unpack2(u32 x);
template <> DEVICE float2 unpack2<bf16>(u32 x) {
  return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}
template <> DEVICE float2 unpack2<f16>(u32 x) {
  float2 y;
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}" : "=f"(y.x), "=f"(y.y) : "r"(x));
  return y;
}

// 16-byte vectors of T: VEC elements.
template <class T> struct vec16 {
  static constexpr int N = 16 / sizeof(T);
};

// What another rounding to T makes of an f32 value; the rounding points of the graph are kept with it.
template <class T> DEVICE float rounded(float x) { return to_float(from_float<T>(x)); }

// Launch ordering. A kernel may be started before the one ahead of it has ended. It must call `wait_for_previous`
// before it reads or writes anything in global memory but weights; after that all earlier kernels are complete.
// `let_next_start` says that the next one's blocks may take free multiprocessors.
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

template <int WIDTH = 32> DEVICE float warp_sum(float x) {
#pragma unroll
  for (int by = WIDTH / 2; by > 0; by /= 2) x += __shfl_xor_sync(0xffffffffu, x, by);
  return x;
}
template <int WIDTH = 32> DEVICE float warp_max(float x) {
#pragma unroll
  for (int by = WIDTH / 2; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, by));
  return x;
}

// Sum over the block, the same in every thread. `shared` holds 33 floats; may be called again after a __syncthreads().
DEVICE float block_sum(float x, float* shared) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  x = warp_sum(x);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  if (warp == 0) {
    float y = warp_sum(lane < warps ? shared[lane] : 0.f);
    if (lane == 0) shared[32] = y;
  }
  __syncthreads();
  return shared[32];
}

// Rows of activations: row r begins at data + r * stride elements.
template <class T> struct Rows {
  T* data;
  i64 stride;
  DEVICE T* row(i64 r) const { return data + r * stride; }
};

// What a step is about, in device memory. The arrays stay at their addresses, so that captured graphs can be replayed; a
// graph's counts are those of its bucket, and what is more than the step has is padding.
struct Batch {
  const int* tokens;      // [T] ids
  const int* positions;   // [T] of each token in its sequence
  const int* row_of;      // [T] row that a token belongs to, -1 for padding
  const int* first;       // [R + 1] first token of each row; a row's tokens are first[r] .. first[r + 1]
  const int* kv_len;      // [R] positions in the cache once this step has been written; 0 for padding
  const int* slot;        // [R] the row's line in the block tables
  const int* prompt_len;  // [R] length of the original prompt
  const int* outputs;     // [O] index of the token that each output row is made from
  int token_count, row_count, output_count;
  const int* admitted_len;  // [R] tokens known when the sequence was admitted: the prompt, or more after a preemption
  const int* prefix_len;    // [R] positions below it see each other; 0 where attention is causal
  const int* mask_at;       // [R] GLM's first position of tokens from block_start on
  const int* block_start;   // [R] where GLM's block positions begin
};

// Keys and values of one layer: keys [blocks, heads, block_size, k_dim], values [blocks, heads, block_size, v_dim], both
// of model_t. Block tables are [slots, table_stride].
struct Cache {
  model_t* keys;
  model_t* values;
  const int* tables;
  int table_stride;
  int heads;
  int k_dim;
  int v_dim;
  int block_size;
};

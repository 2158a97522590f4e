// arch: sm_80+
// variants: MODEL_BF16 K_DIM=128 V_DIM=128 ROTARY=128 ROPE_START=0 BLOCK_SIZE=16 VEC=8; MODEL_F16 K_DIM=96 V_DIM=64 ROTARY=32 ROPE_START=8 BLOCK_SIZE=32 VEC=8 INTERLEAVED; MODEL_F32 K_DIM=10 V_DIM=6 ROTARY=6 ROPE_START=2 BLOCK_SIZE=16 VEC=1; MODEL_BF16 K_DIM=10 V_DIM=6 ROTARY=6 ROPE_START=2 BLOCK_SIZE=16 VEC=1 INTERLEAVED; MODEL_BF16 K_DIM=128 V_DIM=128 ROTARY=128 ROPE_START=0 BLOCK_SIZE=16 VEC=8 HEAD_NORM ROUND_FIRST; MODEL_F32 K_DIM=64 V_DIM=64 ROTARY=64 ROPE_START=0 BLOCK_SIZE=16 VEC=4 HEAD_NORM INTERLEAVED; MODEL_BF16 K_DIM=64 V_DIM=64 ROTARY=0 ROPE_START=0 BLOCK_SIZE=16 VEC=8; MODEL_BF16 K_DIM=64 V_DIM=512 ROTARY=0 ROPE_START=0 BLOCK_SIZE=16 VEC=8 PREFIX
//
// Rotary embedding of queries, and of keys on their way into the cache together with the values. With kv_heads = 0 it
// only rotates a value, with heads = 0 it only writes the cache, with ROTARY = 0 keys are written as they are.
// Floor: a read and a write of q, k and v; 16384 tokens of 32 + 8 + 8 heads of 128 in bf16 take 403 MB (and 8 MB of
// table).
//
// With HEAD_NORM each head of q and k is first normalised (root mean square, one weight for all heads), and rounded as the
// norm's result would be; then ROTARY is K_DIM and a head's work items, a power of two up to 32, are neighbours in a warp.
// ROUND_FIRST rounds before the weight too; WEIGHT_F32 says that the weights are f32.
//
// Defines: K_DIM, V_DIM elements of a head; ROTARY of them rotate, from ROPE_START on; INTERLEAVED pairs; BLOCK_SIZE
// positions of a cache block; VEC elements of an access, which divides the widths, ROPE_START and ROTARY / 2 (ROTARY when
// interleaved). PREFIX: a cached key is the value and, behind it, k; `values` is `keys` then.
#include "include/vector.cuh"

#if defined(WEIGHT_F32)
typedef float weight_t;
#else
typedef model_t weight_t;
#endif

struct RopeParams {
  Rows<value_t> q;          // [tokens, heads, K_DIM]
  Rows<value_t> q_out;      // likewise, rotated
  Rows<model_t> k;          // [tokens, kv_heads, K_DIM]
  Rows<model_t> v;          // [tokens, kv_heads, V_DIM]
  const float* table;       // [tokens, 2, ROTARY / 2]: cosines, then sines
  const int* places;        // [tokens] block * BLOCK_SIZE + position in it; -1 for padding, which writes no cache
  model_t* keys;            // [blocks, kv_heads, BLOCK_SIZE, KEY]
  model_t* values;          // [blocks, kv_heads, BLOCK_SIZE, VALUE]
  int tokens;
  int heads;
  int kv_heads;
  float eps;                // HEAD_NORM: added to the mean square
  const weight_t* q_weight; // HEAD_NORM: [K_DIM]
  const weight_t* k_weight; // likewise
  float offset;             // HEAD_NORM: added to the weights
};

// Elements of a cached key and value, and where k begins in a key.
#if defined(PREFIX)
constexpr int KEY = V_DIM + K_DIM, VALUE = KEY, KEY_START = V_DIM;
#else
constexpr int KEY = K_DIM, VALUE = V_DIM, KEY_START = 0;
#endif

constexpr int HALF = ROTARY / 2;
// Work items of a head: a rotation covers two accesses (a pair of vectors, or one vector of pairs), the rest is copied.
#if defined(INTERLEAVED)
constexpr int PAIRS = VEC > 1 ? VEC / 2 : 1;
constexpr int TURNS = HALF / PAIRS;
#else
constexpr int TURNS = HALF / VEC;
#endif
constexpr int HEAD_ITEMS = TURNS + (K_DIM - ROTARY) / VEC;
constexpr int VALUE_ITEMS = V_DIM / VEC;

#if defined(HEAD_NORM)
static_assert(ROTARY == K_DIM && HEAD_ITEMS <= 32 && (HEAD_ITEMS & (HEAD_ITEMS - 1)) == 0, "heads fit warps");
#endif

// What normalises the heads of q, or of k.
struct HeadNorm {
  const weight_t* weight;
  float eps, offset;
};

// 1 / sqrt(mean square) of a head, of which this thread has some squares.
DEVICE float head_factor(float squares, const HeadNorm& norm) {
  // The lanes of a head, all of which are here.
  const u32 first = threadIdx.x % 32 / HEAD_ITEMS * HEAD_ITEMS;
  const u32 lanes = (HEAD_ITEMS == 32 ? 0xffffffffu : (1u << HEAD_ITEMS % 32) - 1) << first;
#pragma unroll
  for (int by = HEAD_ITEMS / 2; by > 0; by /= 2) squares += __shfl_xor_sync(lanes, squares, by);
  return rsqrtf(squares * (1.f / K_DIM) + norm.eps);
}

template <int N> DEVICE float sum_of_squares(const float (&x)[N]) {
  float sum = 0.f;
#pragma unroll
  for (int j = 0; j < N; j++) sum = fmaf(x[j], x[j], sum);
  return sum;
}

template <class T, int N> DEVICE void normalise(float (&x)[N], float factor, const float (&weight)[N], float offset) {
#pragma unroll
  for (int j = 0; j < N; j++) x[j] *= factor;
#if defined(ROUND_FIRST)
  round_to<T, N>(x);
#endif
#pragma unroll
  for (int j = 0; j < N; j++) x[j] *= weight[j] + offset;
  round_to<T, N>(x);
}

// Item `i` of a head, from x to y.
template <class T> DEVICE void rotate(const T* x, T* y, const float* cosines, int i, const HeadNorm& norm) {
  if (ROTARY == 0 || i >= TURNS) {
    int at = (i - TURNS) * VEC;
    if (at >= ROPE_START) at += ROTARY;
    store_raw<T, VEC>(y + at, load_raw<T, VEC>(x + at));
    return;
  }
#if defined(INTERLEAVED)
  constexpr int N = 2 * PAIRS;
  const int at = ROPE_START + i * N;
  float a[N], c[PAIRS], s[PAIRS];
  if constexpr (VEC > 1) {
    load<VEC>(a, x + at);
  } else {
    a[0] = to_float(x[at]), a[1] = to_float(x[at + 1]);
  }
  load<PAIRS>(c, cosines + i * PAIRS);
  load<PAIRS>(s, cosines + HALF + i * PAIRS);
#if defined(HEAD_NORM)
  float w[N];
#pragma unroll
  for (int j = 0; j < N; j++) w[j] = to_float(norm.weight[at + j]);
  normalise<T, N>(a, head_factor(sum_of_squares(a), norm), w, norm.offset);
#endif
#pragma unroll
  for (int j = 0; j < PAIRS; j++) {
    float first = a[2 * j], second = a[2 * j + 1];
    a[2 * j] = first * c[j] - second * s[j];
    a[2 * j + 1] = second * c[j] + first * s[j];
  }
  if constexpr (VEC > 1) {
    store<VEC>(y + at, a);
  } else {
    y[at] = from_float<T>(a[0]), y[at + 1] = from_float<T>(a[1]);
  }
#else
  const int at = ROPE_START + i * VEC;
  float a[VEC], b[VEC], c[VEC], s[VEC];
  load<VEC>(a, x + at);
  load<VEC>(b, x + at + HALF);
  load<VEC>(c, cosines + i * VEC);
  load<VEC>(s, cosines + HALF + i * VEC);
#if defined(HEAD_NORM)
  float w[VEC], u[VEC];
  load<VEC>(w, norm.weight + at);
  load<VEC>(u, norm.weight + at + HALF);
  const float factor = head_factor(sum_of_squares(a) + sum_of_squares(b), norm);
  normalise<T, VEC>(a, factor, w, norm.offset);
  normalise<T, VEC>(b, factor, u, norm.offset);
#endif
#pragma unroll
  for (int j = 0; j < VEC; j++) {
    float first = a[j], second = b[j];
    a[j] = first * c[j] - second * s[j];
    b[j] = second * c[j] + first * s[j];
  }
  store<VEC>(y + at, a);
  store<VEC>(y + at + HALF, b);
#endif
}

extern "C" __global__ void __launch_bounds__(1024) rope(const __grid_constant__ RopeParams p) {
  let_next_start();
  const int queries = p.heads * HEAD_ITEMS, keys = queries + p.kv_heads * HEAD_ITEMS;
  const int items = keys + p.kv_heads * VALUE_ITEMS;
  const int t = blockIdx.x;
  const float* cosines = p.table + (i64)t * ROTARY;
  wait_for_previous();
  for (int item = blockIdx.y * blockDim.x + threadIdx.x; item < items; item += gridDim.y * blockDim.x) {
    if (item < queries) {
      const int at = item / HEAD_ITEMS * K_DIM;
      rotate(p.q.row(t) + at, p.q_out.row(t) + at, cosines, item % HEAD_ITEMS,
             HeadNorm{p.q_weight, p.eps, p.offset});
      continue;
    }
    const int place = p.places[t];
    if (place < 0) continue;
    const i64 block = place / BLOCK_SIZE, inside = place % BLOCK_SIZE;
    if (item < keys) {
      const int head = (item - queries) / HEAD_ITEMS;
      model_t* to = p.keys + ((block * p.kv_heads + head) * BLOCK_SIZE + inside) * KEY + KEY_START;
      rotate(p.k.row(t) + head * K_DIM, to, cosines, (item - queries) % HEAD_ITEMS, HeadNorm{p.k_weight, p.eps, p.offset});
    } else {
      const int head = (item - keys) / VALUE_ITEMS, at = (item - keys) % VALUE_ITEMS * VEC;
      model_t* to = p.values + ((block * p.kv_heads + head) * BLOCK_SIZE + inside) * VALUE;
      store_raw<model_t, VEC>(to + at, load_raw<model_t, VEC>(p.v.row(t) + head * V_DIM + at));
    }
  }
}

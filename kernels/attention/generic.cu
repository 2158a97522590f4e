// arch: sm_80+
// variants: MODEL_F32 K_DIM=16 V_DIM=16 GROUP=2; MODEL_BF16 K_DIM=192 V_DIM=128 GROUP=1 WINDOW SOFTCAP; MODEL_F16 K_DIM=512 V_DIM=512 GROUP=16 ALIBI SINKS; MODEL_F32 K_DIM=10 V_DIM=7 GROUP=3 PREFIX; MODEL_F32 K_DIM=576 V_DIM=512 V_PITCH=576 GROUP=128
//
// Attention over the paged cache without matrix instructions: any element type, any head sizes (values up to 512), any group, chunks
// of prompts and single tokens alike, arithmetic in f32 throughout.
//
// A block has one token and up to HEADS query heads of one KV head. Warp w has the 16-position tiles whose number leaves the
// rest w, and an online softmax of its own; the warps meet at the end. Which tile belongs to whom depends on absolute
// positions alone, so a token's result is the same whatever the batch and the chunk.
//
// K_DIM, V_DIM: elements of a key and of a value; V_PITCH: from value to value, K_DIM where values are the prefix of keys. GROUP: query heads per KV head. WINDOW, SOFTCAP, ALIBI, SINKS, PREFIX (the
// tokens of a prefix see all of it): present or not. Grid: (tokens, KV heads * ceil(GROUP / HEADS)).
#include "attention/scores.cuh"

#ifndef V_PITCH
#define V_PITCH V_DIM
#endif
#ifndef HEADS
#define HEADS (GROUP < 4 ? GROUP : 4)
#endif

constexpr int TILE = 16;
constexpr int WARPS = 8;
constexpr int CHUNKS = (GROUP + HEADS - 1) / HEADS;
// Lanes that share a key, and elements that one of them takes at a time.
constexpr int LANES = 8;
constexpr int K_VEC = K_DIM * sizeof(model_t) % 16 == 0 ? 16 / sizeof(model_t) : 1;
constexpr int K_STEPS = (K_DIM + LANES * K_VEC - 1) / (LANES * K_VEC);
// Elements of a value that a lane takes at a time.
constexpr int V_VEC = V_DIM % 128 == 0 && V_PITCH % 4 == 0 ? 4 : V_DIM % 64 == 0 && V_PITCH % 2 == 0 ? 2 : 1;
constexpr int V_STEPS = (V_DIM + 32 * V_VEC - 1) / (32 * V_VEC);

struct AttentionGenericParams {
  Rows<const model_t> q;  // [tokens, KV heads * GROUP * K_DIM]
  Rows<model_t> out;      // [tokens, KV heads * GROUP * V_DIM]
  Cache cache;
  Batch batch;
  const float* slopes;    // [heads], ALIBI
  const float* sinks;     // [heads], SINKS
  float scale;
  float softcap;
  int window;
  int which;              // rows that are computed: 0 all, 1 those of one token, 2 the longer ones
};

// N elements as floats; the address is a multiple of their size.
template <int N> struct Vector { float x[N]; };
template <int N, class T> DEVICE Vector<N> load_vector(const T* from) {
  Vector<N> y;
  if constexpr (N * sizeof(T) == 16) {
    uint4 raw = *(const uint4*)from;
    if constexpr (sizeof(T) == 4) {
      y.x[0] = __uint_as_float(raw.x), y.x[1] = __uint_as_float(raw.y), y.x[2] = __uint_as_float(raw.z), y.x[3] = __uint_as_float(raw.w);
    } else {
      u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float2 two = unpack2<T>(words[i]);
        y.x[2 * i] = two.x, y.x[2 * i + 1] = two.y;
      }
    }
  } else if constexpr (N * sizeof(T) == 8) {
    uint2 raw = *(const uint2*)from;
    if constexpr (sizeof(T) == 4) {
      y.x[0] = __uint_as_float(raw.x), y.x[1] = __uint_as_float(raw.y);
    } else {
      float2 a = unpack2<T>(raw.x), b = unpack2<T>(raw.y);
      y.x[0] = a.x, y.x[1] = a.y, y.x[2] = b.x, y.x[3] = b.y;
    }
  } else if constexpr (N == 2) {
    float2 two = unpack2<T>(*(const u32*)from);
    y.x[0] = two.x, y.x[1] = two.y;
  } else {
    static_assert(N == 1, "no such vector");
    y.x[0] = to_float(*from);
  }
  return y;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) attention_generic(const __grid_constant__ AttentionGenericParams p) {
  __shared__ __align__(16) float q[HEADS][LANES * K_VEC * K_STEPS];
  __shared__ float weights[WARPS][HEADS][TILE];
  __shared__ float sums[WARPS][V_DIM];
  __shared__ float2 totals[WARPS];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int token = blockIdx.x, kv_head = blockIdx.y / CHUNKS;
  int first_head = kv_head * GROUP + blockIdx.y % CHUNKS * HEADS;
  int heads = min(HEADS, (kv_head + 1) * GROUP - first_head);

  wait_for_previous();
  let_next_start();
  int row = p.batch.row_of[token];
  if (row < 0) return;
  if (p.which != 0 && (p.batch.first[row + 1] - p.batch.first[row] == 1) != (p.which == 1)) return;
  int position = p.batch.positions[token];
  int begin = 0, end = position + 1;
#ifdef WINDOW
  begin = max(end - p.window, 0);
#endif
#ifdef PREFIX
  end = max(end, min(p.batch.prefix_len[row], p.batch.kv_len[row]));
#endif
  const int* table = p.cache.tables + (i64)p.batch.slot[row] * p.cache.table_stride;

  // Elements past K_DIM are zero here and never read from the cache.
  for (int i = threadIdx.x; i < HEADS * LANES * K_VEC * K_STEPS; i += WARPS * 32) {
    int head = i / (LANES * K_VEC * K_STEPS), d = i % (LANES * K_VEC * K_STEPS);
    q[head][d] = d < K_DIM && head < heads ? to_float(p.q.row(token)[(i64)(first_head + head) * K_DIM + d]) : 0.f;
  }
  __syncthreads();

  float most[HEADS], total[HEADS];
  Vector<V_VEC> o[HEADS][V_STEPS];
#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    most[h] = -INFINITY_F, total[h] = 0.f;
#pragma unroll
    for (int v = 0; v < V_STEPS; v++)
#pragma unroll
      for (int e = 0; e < V_VEC; e++) o[h][v].x[e] = 0.f;
  }

  int from = begin / TILE;
  for (int tile = from + (warp - from % WARPS + WARPS) % WARPS; tile * TILE < end; tile += WARPS) {
    int line = tile * TILE / p.cache.block_size;
    i64 at = ((i64)table[line] * p.cache.heads + kv_head) * p.cache.block_size + (tile * TILE - line * p.cache.block_size);
    const model_t* keys = p.cache.keys + at * K_DIM;
    const model_t* values = p.cache.values + at * V_PITCH;
    int low = max(begin - tile * TILE, 0), high = min(end - tile * TILE, TILE);

#pragma unroll
    for (int pass = 0; pass < TILE / (32 / LANES); pass++) {
      int key = pass * (32 / LANES) + lane / LANES;
      float s[HEADS];
#pragma unroll
      for (int h = 0; h < HEADS; h++) s[h] = 0.f;
      if (key >= low && key < high) {
#pragma unroll
        for (int k = 0; k < K_STEPS; k++) {
          int d = (k * LANES + lane % LANES) * K_VEC;
          if (K_DIM % (LANES * K_VEC) == 0 || d < K_DIM) {
            Vector<K_VEC> x = load_vector<K_VEC>(keys + key * K_DIM + d);
#pragma unroll
            for (int h = 0; h < HEADS; h++)
#pragma unroll
              for (int e = 0; e < K_VEC; e++) s[h] = fmaf(x.x[e], q[h][d + e], s[h]);
          }
        }
      }
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
        s[h] = warp_sum<LANES>(s[h]);
        if (lane % LANES == 0) weights[warp][h][key] = s[h];
      }
    }
    __syncwarp();

    int mine = lane % TILE;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
      float x = weights[warp][h][mine] * p.scale;
#ifdef SOFTCAP
      x = soft_capped(x, p.softcap);
#endif
#ifdef ALIBI
      x += p.slopes[first_head + min(h, heads - 1)] * (float)(tile * TILE + mine - position);
#endif
      x = mine >= low && mine < high ? x * LOG2E : -INFINITY_F;
      float new_most = fmaxf(most[h], warp_max<TILE>(x));
      float base = finite_base(new_most);
      float shrink = exp2_fast(most[h] - base);
      most[h] = new_most;
      x = exp2_fast(x - base);
      total[h] = total[h] * shrink + warp_sum<TILE>(x);
      __syncwarp();
      if (lane < TILE) weights[warp][h][lane] = x;
#pragma unroll
      for (int v = 0; v < V_STEPS; v++)
#pragma unroll
        for (int e = 0; e < V_VEC; e++) o[h][v].x[e] *= shrink;
    }
    __syncwarp();

#pragma unroll 4
    for (int key = low; key < high; key++) {
      Vector<V_VEC> x[V_STEPS];
#pragma unroll
      for (int v = 0; v < V_STEPS; v++) {
        int d = (v * 32 + lane) * V_VEC;
        if (V_DIM % (32 * V_VEC) == 0 || d < V_DIM) {
          x[v] = load_vector<V_VEC>(values + key * V_PITCH + d);
        } else {
#pragma unroll
          for (int e = 0; e < V_VEC; e++) x[v].x[e] = 0.f;
        }
      }
#pragma unroll
      for (int h = 0; h < HEADS; h++) {
        float w = weights[warp][h][key];
#pragma unroll
        for (int v = 0; v < V_STEPS; v++)
#pragma unroll
          for (int e = 0; e < V_VEC; e++) o[h][v].x[e] = fmaf(w, x[v].x[e], o[h][v].x[e]);
      }
    }
    __syncwarp();
  }

#pragma unroll
  for (int h = 0; h < HEADS; h++) {
    if (h >= heads) break;
#pragma unroll
    for (int v = 0; v < V_STEPS; v++)
#pragma unroll
      for (int e = 0; e < V_VEC; e++) {
        int d = (v * 32 + lane) * V_VEC + e;
        if (d < V_DIM) sums[warp][d] = o[h][v].x[e];
      }
    if (lane == 0) totals[warp] = make_float2(most[h], total[h]);
    __syncthreads();
    // In the order of the tiles' remainders, not of where this token's visible positions begin.
    float high = -INFINITY_F, all = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) high = fmaxf(high, totals[w].x);
#ifdef SINKS
    float sink = p.sinks[first_head + h] * LOG2E;
    high = fmaxf(high, sink);
    all = exp2_fast(sink - finite_base(high));
#endif
    float base = finite_base(high);
#pragma unroll
    for (int w = 0; w < WARPS; w++) all = fmaf(exp2_fast(totals[w].x - base), totals[w].y, all);
    float by = all > 0.f ? 1.f / all : 0.f;
    for (int d = threadIdx.x; d < V_DIM; d += WARPS * 32) {
      float y = 0.f;
#pragma unroll
      for (int w = 0; w < WARPS; w++) y = fmaf(exp2_fast(totals[w].x - base), sums[w][d], y);
      p.out.row(token)[(i64)(first_head + h) * V_DIM + d] = from_float<model_t>(y * by);
    }
    __syncthreads();
  }
}

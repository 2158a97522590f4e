// arch: sm_80+
// variants: MODEL_BF16 VALUE_F32 K_DIM=128 V_DIM=128; MODEL_BF16 K_DIM=128 V_DIM=64; MODEL_F32 K_DIM=9 V_DIM=13; MODEL_F16 VALUE_F32 K_DIM=256 V_DIM=256
//
// Gated delta rule (Yang et al. 2024), token by token: S = e^g S; S = S + k (beta (v - S^T k))^T; y = scale S^T q, with the
// state S [K_DIM, V_DIM] of each head in f32.
//
// Columns of S never meet. A warp has 8 of them for all tokens of a row, 4 lanes to a column: lane l has column l % 8 and,
// of each 16 of its elements, the 4 from 4 (l / 8) on, in registers. So a row's result never depends on the batch, nor on
// where a prompt is cut. What tokens bring comes to shared memory AHEAD tokens at a time, while those before are computed.
//
// Floor: decode reads and writes every state once; a prompt's tokens follow each other.
#include "include/vector.cuh"
#include "recurrent/state.cuh"

constexpr int COLUMNS = 8;
constexpr int LANES = 32 / COLUMNS;
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * 32;
constexpr int WIDE = WARPS * COLUMNS;
constexpr int CHUNKS = (V_DIM + WIDE - 1) / WIDE;
// Elements that lanes take at a time, and how often.
constexpr int VECTOR = 4;
constexpr int STEPS = (K_DIM + LANES * VECTOR - 1) / (LANES * VECTOR);
constexpr int PADDED = STEPS * LANES * VECTOR;
constexpr int AHEAD = K_DIM <= 128 ? 8 : K_DIM <= 256 ? 4 : 2;
// Elements of queries, and of values, that a thread brings.
constexpr int EACH = (AHEAD * PADDED + THREADS - 1) / THREADS;
constexpr int EACH_V = (AHEAD * WIDE + THREADS - 1) / THREADS;

struct DeltaParams {
  Rows<const value_t> q;   // [tokens, heads * K_DIM]
  Rows<const value_t> k;   // likewise
  Rows<const value_t> v;   // [tokens, heads * V_DIM]
  Rows<const float> g;     // [tokens, heads]
  Rows<const float> beta;  // likewise
  Rows<value_t> y;         // [tokens, heads * V_DIM]
  States states;           // [heads, K_DIM, V_DIM]
  Batch batch;
  float scale;
  int padding;
};

// Some tokens' parts, in shared memory; zeros beyond the ends of keys and values.
struct Tokens {
  float4 q[AHEAD][PADDED / VECTOR], k[AHEAD][PADDED / VECTOR];
  float v[AHEAD][WIDE];
  float g[AHEAD], beta[AHEAD];
};

// A thread's share of them on its way there.
struct Share {
  float q[EACH], k[EACH], v[EACH_V], gate;
};

// Of tokens t .. end, at most AHEAD of them.
DEVICE Share bring(const DeltaParams& p, int t, int end, int head, int first_column) {
  Share x;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int at = i * THREADS + threadIdx.x, token = t + at / PADDED, d = at % PADDED;
    const bool is = at < AHEAD * PADDED && token < end && d < K_DIM;
    x.q[i] = is ? to_float(p.q.row(token)[(i64)head * K_DIM + d]) : 0.f;
    x.k[i] = is ? to_float(p.k.row(token)[(i64)head * K_DIM + d]) : 0.f;
  }
#pragma unroll
  for (int i = 0; i < EACH_V; i++) {
    const int at = i * THREADS + threadIdx.x, token = t + at / WIDE, d = first_column + at % WIDE;
    const bool is = at < AHEAD * WIDE && token < end && d < V_DIM;
    x.v[i] = is ? to_float(p.v.row(token)[(i64)head * V_DIM + d]) : 0.f;
  }
  // The first AHEAD threads have decays, the next step sizes.
  const int at = threadIdx.x % AHEAD, kind = threadIdx.x / AHEAD;
  x.gate = kind > 1 || t + at >= end ? 0.f : kind == 0 ? p.g.row(t + at)[head] : p.beta.row(t + at)[head];
  return x;
}

DEVICE void put(Tokens& to, const Share& x) {
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int at = i * THREADS + threadIdx.x;
    if (at < AHEAD * PADDED) ((float*)to.q)[at] = x.q[i], ((float*)to.k)[at] = x.k[i];
  }
#pragma unroll
  for (int i = 0; i < EACH_V; i++) {
    const int at = i * THREADS + threadIdx.x;
    if (at < AHEAD * WIDE) ((float*)to.v)[at] = x.v[i];
  }
  const int at = threadIdx.x % AHEAD, kind = threadIdx.x / AHEAD;
  if (kind == 0) to.g[at] = x.gate;
  if (kind == 1) to.beta[at] = x.gate;
}

// Sum over the lanes of a column.
DEVICE float column_sum(float4 x) {
  float y = (x.x + x.y) + (x.z + x.w);
#pragma unroll
  for (int by = COLUMNS; by < 32; by *= 2) y += __shfl_xor_sync(0xffffffffu, y, by);
  return y;
}

// Grid: heads * CHUNKS, rows.
extern "C" __global__ void __launch_bounds__(THREADS) delta_rule(const __grid_constant__ DeltaParams p) {
  __shared__ Tokens stages[2];
  let_next_start();
  const int row = blockIdx.y, head = blockIdx.x / CHUNKS;
  const int lane = threadIdx.x % 32, part = lane / COLUMNS;
  const int first_column = blockIdx.x % CHUNKS * WIDE;
  const int own = threadIdx.x / 32 * COLUMNS + lane % COLUMNS, column = first_column + own;
  wait_for_previous();
  if (p.batch.kv_len[row] == 0) return;
  const int first = p.batch.first[row], end = p.batch.first[row + 1];
  float* state = p.states.of(p.batch, row) + (i64)head * K_DIM * V_DIM + column;
  const bool begins = p.batch.positions[first] == 0;

  float4 s[STEPS];
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    float x[VECTOR];
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
      const int at = (i * LANES + part) * VECTOR + j;
      x[j] = begins || at >= K_DIM || column >= V_DIM ? 0.f : state[(i64)at * V_DIM];
    }
    s[i] = make_float4(x[0], x[1], x[2], x[3]);
  }
  Share next = bring(p, first, end, head, first_column);
  int stage = 0;
  for (int t = first; t < end; t += AHEAD, stage ^= 1) {
    // Whoever is two stages ahead would overwrite what others still read; the barrier keeps all within one.
    Tokens& here = stages[stage];
    put(here, next);
    __syncthreads();
    if (t + AHEAD < end) next = bring(p, t + AHEAD, end, head, first_column);
    const int count = min(AHEAD, end - t);
    for (int i = 0; i < count; i++) {
      const float decay = expf(here.g[i]);
      float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int j = 0; j < STEPS; j++) {
        const float4 k = here.k[i][j * LANES + part];
        s[j].x *= decay, s[j].y *= decay, s[j].z *= decay, s[j].w *= decay;
        sum.x = fmaf(s[j].x, k.x, sum.x), sum.y = fmaf(s[j].y, k.y, sum.y);
        sum.z = fmaf(s[j].z, k.z, sum.z), sum.w = fmaf(s[j].w, k.w, sum.w);
      }
      const float add = here.beta[i] * (here.v[i][own] - column_sum(sum));
      sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
      for (int j = 0; j < STEPS; j++) {
        const float4 k = here.k[i][j * LANES + part], q = here.q[i][j * LANES + part];
        s[j].x = fmaf(k.x, add, s[j].x), s[j].y = fmaf(k.y, add, s[j].y);
        s[j].z = fmaf(k.z, add, s[j].z), s[j].w = fmaf(k.w, add, s[j].w);
        sum.x = fmaf(s[j].x, q.x, sum.x), sum.y = fmaf(s[j].y, q.y, sum.y);
        sum.z = fmaf(s[j].z, q.z, sum.z), sum.w = fmaf(s[j].w, q.w, sum.w);
      }
      const float y = column_sum(sum) * p.scale;
      if (part == 0 && column < V_DIM) p.y.row(t + i)[(i64)head * V_DIM + column] = from_float<value_t>(y);
    }
  }
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    const float x[VECTOR] = {s[i].x, s[i].y, s[i].z, s[i].w};
#pragma unroll
    for (int j = 0; j < VECTOR; j++) {
      const int at = (i * LANES + part) * VECTOR + j;
      if (at < K_DIM && column < V_DIM) state[(i64)at * V_DIM] = x[j];
    }
  }
}

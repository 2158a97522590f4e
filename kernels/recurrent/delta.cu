// arch: sm_80+
// variants: MODEL_BF16 VALUE_F32 K_DIM=128 V_DIM=128; MODEL_BF16 K_DIM=128 V_DIM=64; MODEL_F32 K_DIM=9 V_DIM=13; MODEL_F16 VALUE_F32 K_DIM=256 V_DIM=256
//
// Gated delta rule (Yang et al. 2024), token by token: S = e^g S; S = S + k (beta (v - S^T k))^T; y = scale S^T q, with the
// state S [K_DIM, V_DIM] of each head in f32.
//
// Columns of S never meet. A warp has 8 of them for all tokens of a row, 4 lanes to a column: lane l has column l % 8 and
// the elements of it whose number leaves the rest l / 8, in registers. So a row's result never depends on the batch, nor
// on where a prompt is cut.
//
// Floor: decode reads and writes every state once; a prompt takes some 0.15 us a token, whatever runs beside it.
#include "include/vector.cuh"
#include "recurrent/state.cuh"

constexpr int COLUMNS = 8;
constexpr int LANES = 32 / COLUMNS;
constexpr int WARPS = 4;
constexpr int THREADS = WARPS * 32;
constexpr int STEPS = (K_DIM + LANES - 1) / LANES;
constexpr int PADDED = STEPS * LANES;
// Elements of a key that a thread brings.
constexpr int EACH = (PADDED + THREADS - 1) / THREADS;
constexpr int CHUNKS = (V_DIM + WARPS * COLUMNS - 1) / (WARPS * COLUMNS);

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

// What one token brings, on its way to where it is used.
struct Token {
  float q[EACH], k[EACH];
  float v, g, beta;
};

DEVICE Token bring(const DeltaParams& p, int t, int head, int column) {
  Token x;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int at = i * THREADS + threadIdx.x;
    x.q[i] = at < K_DIM ? to_float(p.q.row(t)[(i64)head * K_DIM + at]) : 0.f;
    x.k[i] = at < K_DIM ? to_float(p.k.row(t)[(i64)head * K_DIM + at]) : 0.f;
  }
  x.v = column < V_DIM ? to_float(p.v.row(t)[(i64)head * V_DIM + column]) : 0.f;
  x.g = p.g.row(t)[head];
  x.beta = p.beta.row(t)[head];
  return x;
}

// Sum over the lanes of a column.
DEVICE float column_sum(float x) {
#pragma unroll
  for (int by = COLUMNS; by < 32; by *= 2) x += __shfl_xor_sync(0xffffffffu, x, by);
  return x;
}

// Grid: heads * CHUNKS, rows.
extern "C" __global__ void __launch_bounds__(THREADS) delta_rule(const __grid_constant__ DeltaParams p) {
  __shared__ float qs[2][PADDED], ks[2][PADDED];
  let_next_start();
  const int row = blockIdx.y, head = blockIdx.x / CHUNKS;
  const int lane = threadIdx.x % 32, part = lane / COLUMNS;
  const int column = (blockIdx.x % CHUNKS * WARPS + threadIdx.x / 32) * COLUMNS + lane % COLUMNS;
  wait_for_previous();
  if (p.batch.kv_len[row] == 0) return;
  const int first = p.batch.first[row], end = p.batch.first[row + 1];
  float* state = p.states.of(p.batch, row) + (i64)head * K_DIM * V_DIM + column;
  const bool begins = p.batch.positions[first] == 0;

  float s[STEPS];
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    const int at = i * LANES + part;
    s[i] = begins || at >= K_DIM || column >= V_DIM ? 0.f : state[(i64)at * V_DIM];
  }
  Token next = bring(p, first, head, column);
  for (int t = first; t < end; t++) {
    const Token x = next;
    // Whoever is two tokens ahead would overwrite what others still read; the barrier keeps all within one.
    float *q = qs[t % 2], *k = ks[t % 2];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int at = i * THREADS + threadIdx.x;
      if (at < PADDED) q[at] = x.q[i], k[at] = x.k[i];
    }
    __syncthreads();
    if (t + 1 < end) next = bring(p, t + 1, head, column);

    const float decay = expf(x.g);
    float along = 0.f;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      s[i] *= decay;
      along = fmaf(s[i], k[i * LANES + part], along);
    }
    const float add = x.beta * (x.v - column_sum(along));
    float y = 0.f;
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
      s[i] = fmaf(k[i * LANES + part], add, s[i]);
      y = fmaf(s[i], q[i * LANES + part], y);
    }
    y = column_sum(y) * p.scale;
    if (part == 0 && column < V_DIM) p.y.row(t)[(i64)head * V_DIM + column] = from_float<value_t>(y);
  }
#pragma unroll
  for (int i = 0; i < STEPS; i++) {
    const int at = i * LANES + part;
    if (at < K_DIM && column < V_DIM) state[(i64)at * V_DIM] = s[i];
  }
}

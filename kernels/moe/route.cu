// arch: sm_80+
// variants: MODEL_BF16 EXPERTS=128 TOP_K=8 SCORES=0 RENORMALIZE; MODEL_F32 EXPERTS=5 TOP_K=5 SCORES=1; MODEL_F16 VALUE_F32 EXPERTS=256 TOP_K=8 SCORES=2 CORRECTION RENORMALIZE GROUPS=8 GROUP_TOP=4 SUM_OF=2
//
// Experts of each row: scores from logits, the best TOP_K of them (the best first, of equal ones the lower id), and their
// weights. A warp a row; nothing depends on the other rows.
//
// Defines: EXPERTS up to 1024, TOP_K, SCORES (0 softmax, 1 softmax of the chosen, 2 logistic), CORRECTION, RENORMALIZE;
// GROUPS of equal size, of which the GROUP_TOP are considered whose SUM_OF best sum to most.
#include "include/vector.cuh"

struct RouteParams {
  Rows<const value_t> logits;
  Rows<float> weights;
  Rows<int> ids;
  const float* correction;  // [EXPERTS], added for choosing only
  int rows;
  float scale;
};

constexpr int WARPS = 4;
constexpr int PER = (EXPERTS + 31) / 32;
constexpr int NONE = 0x7fffffff;
static_assert(PER <= 32, "a bit for each expert of a lane");

// Whether (v, i) is better than (w, j).
DEVICE bool better(float v, int i, float w, int j) { return v > w || (v == w && i < j); }
DEVICE float comparable(float x) { return x != x ? -INFINITY_F : x; }

// Grid: rows / 4.
extern "C" __global__ void __launch_bounds__(32 * WARPS) route(const __grid_constant__ RouteParams p) {
  __shared__ float scores[WARPS][EXPERTS];
  __shared__ float picked[WARPS][TOP_K];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * WARPS + warp;
  let_next_start();
  wait_for_previous();
  if (row >= p.rows) return;
  float s[PER], merit[PER];
#pragma unroll
  for (int j = 0; j < PER; j++) {
    const int e = lane + 32 * j;
    s[j] = e < EXPERTS ? to_float(p.logits.row(row)[e]) : -INFINITY_F;
  }
#if SCORES == 0
  float top = -INFINITY_F, sum = 0.f;
#pragma unroll
  for (int j = 0; j < PER; j++) top = fmaxf(top, s[j]);
  top = warp_max(top);
#pragma unroll
  for (int j = 0; j < PER; j++) s[j] = lane + 32 * j < EXPERTS ? expf(s[j] - top) : 0.f, sum += s[j];
  sum = warp_sum(sum);
#pragma unroll
  for (int j = 0; j < PER; j++) s[j] /= sum;
#elif SCORES == 2
#pragma unroll
  for (int j = 0; j < PER; j++) s[j] = 1.f / (1.f + expf(-s[j]));
#endif
  u32 open = 0;
#pragma unroll
  for (int j = 0; j < PER; j++) {
    const int e = lane + 32 * j;
    merit[j] = -INFINITY_F;
    if (e < EXPERTS) {
      scores[warp][e] = s[j];
      open |= 1u << j;
#if defined(CORRECTION)
      merit[j] = comparable(s[j] + p.correction[e]);
#else
      merit[j] = comparable(s[j]);
#endif
    }
  }
#if defined(GROUPS)
  __shared__ float merits[WARPS][EXPERTS], totals[WARPS][GROUPS];
  constexpr int SIZE = EXPERTS / GROUPS;
#pragma unroll
  for (int j = 0; j < PER; j++) {
    if (lane + 32 * j < EXPERTS) merits[warp][lane + 32 * j] = merit[j];
  }
  __syncwarp();
  for (int g = lane; g < GROUPS; g += 32) {
    float total = 0.f, last = INFINITY_F;
    int at = -1;
    for (int n = 0; n < SUM_OF; n++) {
      // The best that comes after the last one taken.
      float best = -INFINITY_F;
      int found = NONE;
      for (int e = g * SIZE; e < (g + 1) * SIZE; e++) {
        const float m = merits[warp][e];
        if (better(last, at, m, e) && better(m, e, best, found)) best = m, found = e;
      }
      total += best, last = best, at = found;
    }
    totals[warp][g] = total;
  }
  __syncwarp();
#pragma unroll
  for (int j = 0; j < PER; j++) {
    const int e = lane + 32 * j;
    if (e >= EXPERTS) continue;
    const int mine = e / SIZE;
    int ahead = 0;
    for (int g = 0; g < GROUPS; g++) ahead += better(totals[warp][g], g, totals[warp][mine], mine);
    if (ahead >= GROUP_TOP) open &= ~(1u << j);
  }
#endif
  __syncwarp();
  for (int k = 0; k < TOP_K; k++) {
    float best = -INFINITY_F;
    int found = NONE;
#pragma unroll
    for (int j = 0; j < PER; j++) {
      if ((open >> j & 1) && better(merit[j], lane + 32 * j, best, found)) best = merit[j], found = lane + 32 * j;
    }
#pragma unroll
    for (int by = 16; by > 0; by /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, by);
      const int id = __shfl_xor_sync(0xffffffffu, found, by);
      if (better(other, id, best, found)) best = other, found = id;
    }
    // The host makes sure that one is open.
    found = found < EXPERTS ? found : 0;
    if (found % 32 == lane) open &= ~(1u << (found / 32));
    if (lane == 0) p.ids.row(row)[k] = found, picked[warp][k] = scores[warp][found];
  }
  __syncwarp();
  constexpr int CHOSEN = (TOP_K + 31) / 32;
  float w[CHOSEN];
#pragma unroll
  for (int j = 0; j < CHOSEN; j++) w[j] = lane + 32 * j < TOP_K ? picked[warp][lane + 32 * j] : 0.f;
#if SCORES == 1
  float top = -INFINITY_F, all = 0.f;
#pragma unroll
  for (int j = 0; j < CHOSEN; j++) top = lane + 32 * j < TOP_K ? fmaxf(top, w[j]) : top;
  top = warp_max(top);
#pragma unroll
  for (int j = 0; j < CHOSEN; j++) w[j] = lane + 32 * j < TOP_K ? expf(w[j] - top) : 0.f, all += w[j];
  all = warp_sum(all);
#pragma unroll
  for (int j = 0; j < CHOSEN; j++) w[j] /= all;
#endif
#if defined(RENORMALIZE)
  float chosen = 0.f;
#pragma unroll
  for (int j = 0; j < CHOSEN; j++) chosen += w[j];
  chosen = warp_sum(chosen) + 1e-20f;
#pragma unroll
  for (int j = 0; j < CHOSEN; j++) w[j] /= chosen;
#endif
#pragma unroll
  for (int j = 0; j < CHOSEN; j++) {
    if (lane + 32 * j < TOP_K) p.weights.row(row)[lane + 32 * j] = w[j] * p.scale;
  }
}

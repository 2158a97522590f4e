// arch: sm_80+
// variants: MODEL_BF16 FUNCTION=SILU VEC=8 ITEMS=1; MODEL_F16 FUNCTION=GELU_TANH VEC=8 ITEMS=2 INTERLEAVED; MODEL_F32 CLAMPED FUNCTION=SIGMOID VEC=1 ITEMS=1; MODEL_BF16 CLAMPED FUNCTION=SIGMOID VEC=1 ITEMS=1 INTERLEAVED; MODEL_BF16 FUNCTION=SILU VEC=8 ITEMS=2 BLOCKS
//
// y = act(gate) * up. The activation is rounded to the model's type before the product, as two separate ops would.
// Floor: two reads and a write; 16384 rows of 14336 in bf16 take 1.41 GB.
//
// Defines: FUNCTION, or CLAMPED; INTERLEAVED where one value holds gate 0, up 0, gate 1, …; BLOCKS where it holds eight of
// gate, their eight of up, … (VEC=8); VEC elements of an access; ITEMS accesses of a thread.
#include "include/vector.cuh"
#include "pointwise/functions.cuh"

struct GatedParams {
  Rows<const value_t> gate;  // INTERLEAVED, BLOCKS: both, twice as wide
  Rows<const value_t> up;
  Rows<value_t> y;
  i64 width;    // of y
  int rows;
  float alpha;  // CLAMPED: factor in the sigmoid
  float limit;  // CLAMPED: bound
};

constexpr bool EXACT = sizeof(value_t) == 4;

// The result in `gate`.
DEVICE void combine(float (&gate)[VEC], const float (&up)[VEC], float alpha, float limit) {
#pragma unroll
  for (int j = 0; j < VEC; j++) {
#if defined(CLAMPED)
    const float g = fminf(gate[j], limit), u = fminf(fmaxf(up[j], -limit), limit);
    gate[j] = times_sigmoid<EXACT>(g, alpha * g) * (u + 1.f);
#else
    gate[j] = apply<FUNCTION, EXACT>(gate[j], 0.f, 0.f);
#endif
  }
#if !defined(CLAMPED)
  round_to<value_t, VEC>(gate);
#pragma unroll
  for (int j = 0; j < VEC; j++) gate[j] *= up[j];
#endif
}

// Grid: width / (256 * ITEMS * VEC), rows (see grid_row).
extern "C" __global__ void __launch_bounds__(256) gated(const __grid_constant__ GatedParams p) {
  let_next_start();
  const int row = grid_row();
  const i64 first = ((i64)blockIdx.x * ITEMS * 256 + threadIdx.x) * VEC;
  wait_for_previous();
  if (row >= p.rows) return;
  float g[ITEMS][VEC], u[ITEMS][VEC];
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    i64 at = first + i * 256 * VEC;
    if (at >= p.width) continue;
#if defined(INTERLEAVED)
    float both[2 * VEC];
    const value_t* from = p.gate.row(row) + 2 * at;
    if constexpr (VEC > 1) {
      load<2 * VEC>(both, from);
    } else {
      both[0] = to_float(from[0]), both[1] = to_float(from[1]);
    }
#pragma unroll
    for (int j = 0; j < VEC; j++) g[i][j] = both[2 * j], u[i][j] = both[2 * j + 1];
#elif defined(BLOCKS)
    static_assert(VEC == 8, "a block is one access");
    load<VEC>(g[i], p.gate.row(row) + 2 * at);
    load<VEC>(u[i], p.gate.row(row) + 2 * at + VEC);
#else
    load<VEC>(g[i], p.gate.row(row) + at);
    load<VEC>(u[i], p.up.row(row) + at);
#endif
  }
#pragma unroll
  for (int i = 0; i < ITEMS; i++) {
    i64 at = first + i * 256 * VEC;
    if (at >= p.width) continue;
    combine(g[i], u[i], p.alpha, p.limit);
    store<VEC>(p.y.row(row) + at, g[i]);
  }
}

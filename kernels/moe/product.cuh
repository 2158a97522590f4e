// What the products of experts share: parameters, and the gate between the two.
#pragma once
#include "moe/order.cuh"
#include "pointwise/functions.cuh"

// y [slot] = W [expert] x + bias, of packed rows; or, GATED, the activation of its gate and up rows.
struct ProductParams {
  Rows<const model_t> x;  // by row of the step (GATHER), or by slot
  const u8* weights;      // [experts, rows, k]
  const float* bias;      // [experts, rows]; null for none
  Rows<model_t> y;        // [slots, rows], GATED [slots, rows / 2]
  Order order;
  int k;
  int rows;     // a multiple of 8, GATED of 16
  float alpha;  // CLAMPED: factor in the sigmoid
  float limit;  // CLAMPED: bound
};

#if defined(GATED)
// With the roundings that separate ops would have.
DEVICE float gate(float g, float u, float alpha, float limit) {
  constexpr bool EXACT = sizeof(model_t) == 4;
  g = rounded<model_t>(g), u = rounded<model_t>(u);
#if defined(CLAMPED)
  g = fminf(g, limit), u = fminf(fmaxf(u, -limit), limit);
  return times_sigmoid<EXACT>(g, alpha * g) * (u + 1.f);
#else
  return rounded<model_t>(apply<FUNCTION, EXACT>(g, 0.f, 0.f)) * u;
#endif
}
#endif

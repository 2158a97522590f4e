// Activation functions in f32, as the CPU device computes them.
#pragma once
#include "include/base.cuh"

enum GateKind { GATE_SILU = 1, GATE_GELU = 2, GATE_GELU_TANH = 3 };

DEVICE float silu(float x) { return x / (1.f + __expf(-x)); }
DEVICE float gelu(float x) { return 0.5f * x * (1.f + erff(x * 0.70710678118654752f)); }
DEVICE float gelu_tanh(float x) { return 0.5f * x * (1.f + tanhf(0.79788456080286536f * fmaf(0.044715f * x * x, x, x))); }

// act(gate) * up, with the roundings to T that separate ops would have before the product.
template <int KIND, class T> DEVICE float gated(float gate, float up) {
  gate = rounded<T>(gate);
  const float y = KIND == GATE_GELU ? gelu(gate) : KIND == GATE_GELU_TANH ? gelu_tanh(gate) : silu(gate);
  return rounded<T>(y) * rounded<T>(up);
}

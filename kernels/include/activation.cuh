// Activation functions in f32, as the CPU device computes them.
#pragma once
#include "include/base.cuh"

enum GateKind { GATE_SILU = 1, GATE_GELU = 2, GATE_GELU_TANH = 3 };

DEVICE float silu(float x) { return x / (1.f + __expf(-x)); }
DEVICE float gelu(float x) { return 0.5f * x * (1.f + erff(x * 0.70710678118654752f)); }
DEVICE float gelu_tanh(float x) { return 0.5f * x * (1.f + tanhf(0.79788456080286536f * fmaf(0.044715f * x * x, x, x))); }

// act(gate) * up
template <int KIND> DEVICE float gated(float gate, float up) {
  if (KIND == GATE_GELU) return gelu(gate) * up;
  if (KIND == GATE_GELU_TANH) return gelu_tanh(gate) * up;
  return silu(gate) * up;
}

// Score arithmetic that the attention kernels share. Scores are kept in units of log2: weight = 2^(score - largest).
#pragma once
#include "include/base.cuh"

#define LOG2E 1.4426950408889634f

DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// cap * tanh(x / cap), to about 1e-6 of cap.
DEVICE float soft_capped(float x, float cap) {
  float e = exp2_fast(x / cap * (2.f * LOG2E));
  return cap * (1.f - __fdividef(2.f, 1.f + e));
}

// The base that weights are taken relative to; -inf only where every score is, and then weights must come out as 0.
DEVICE float finite_base(float most) { return most == -INFINITY_F ? 0.f : most; }

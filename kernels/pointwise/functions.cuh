// Functions of one number. Where results are rounded to 16 bits afterwards, exponentials and quotients are the device's
// quick ones (a few units in the last place of f32); in f32 they are the exact ones.
#pragma once
#include "include/base.cuh"

enum Function { SILU, GELU, GELU_TANH, QUICK_GELU, RELU, RELU2, SIGMOID, TANH, SOFTPLUS, EXP, SCALE, CLAMP, SOFTCAP, COPY };

template <bool EXACT> DEVICE float exponential(float x) { return EXACT ? expf(x) : __expf(x); }
template <bool EXACT> DEVICE float quotient(float x, float y) { return EXACT ? x / y : __fdividef(x, y); }
// x / (1 + e^-s)
template <bool EXACT> DEVICE float times_sigmoid(float x, float s) {
  return quotient<EXACT>(x, 1.f + exponential<EXACT>(-s));
}

// `a` and `b` are the function's parameters: factor, bounds, cap.
template <Function F, bool EXACT> DEVICE float apply(float x, float a, float b) {
  if constexpr (F == SILU) {
    return times_sigmoid<EXACT>(x, x);
  } else if constexpr (F == GELU) {
    return 0.5f * x * (1.f + erff(x * 0.70710678f));
  } else if constexpr (F == GELU_TANH) {
    // 1 + tanh(u) = 2 / (1 + e^-2u), with u = sqrt(2 / pi) (x + 0.044715 x^3)
    return times_sigmoid<EXACT>(x, 1.5957691f * fmaf(0.044715f * x * x, x, x));
  } else if constexpr (F == QUICK_GELU) {
    return times_sigmoid<EXACT>(x, 1.702f * x);
  } else if constexpr (F == RELU) {
    return x < 0.f ? 0.f : x;
  } else if constexpr (F == RELU2) {
    float y = x < 0.f ? 0.f : x;
    return y * y;
  } else if constexpr (F == SIGMOID) {
    return times_sigmoid<EXACT>(1.f, x);
  } else if constexpr (F == TANH) {
    return tanhf(x);
  } else if constexpr (F == SOFTPLUS) {
    return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x)));
  } else if constexpr (F == EXP) {
    return exponential<EXACT>(x);
  } else if constexpr (F == SCALE) {
    return a * x;
  } else if constexpr (F == CLAMP) {
    return fminf(fmaxf(x, a), b);
  } else if constexpr (F == SOFTCAP) {
    return a * tanhf(x / a);
  } else {
    return x;
  }
}

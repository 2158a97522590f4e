// arch: sm_80+
// variants: MODEL_BF16 TAPS=4 FUNCTION=SILU; MODEL_F32 TAPS=2 FUNCTION=COPY BIAS; MODEL_F16 TAPS=50 FUNCTION=SILU BIAS
//
// Depthwise causal convolution over each sequence: y[t][c] = f(bias[c] + sum over j of weight[c][j] * x[t - TAPS + 1 + j][c]).
// Inputs before a row's first token come from the sequence's state, its last TAPS - 1 inputs in f32, oldest first; zeros
// where the sequence begins. TAPS: positions seen. FUNCTION: of pointwise/functions.cuh. BIAS: present or not.
//
// Floor: a read and a write of every element; the other TAPS - 1 reads are found in L2.
#include "include/vector.cuh"
#include "pointwise/functions.cuh"
#include "recurrent/state.cuh"

struct ConvParams {
  Rows<const value_t> x;  // [tokens, channels]
  Rows<value_t> y;
  const float* weight;    // [channels, TAPS]
  const float* bias;      // [channels]
  States states;          // [TAPS - 1, channels]
  Batch batch;
  int channels;
};

// The sum of the last inputs, oldest first.
DEVICE float convolve(const ConvParams& p, const float (&last)[TAPS], int c) {
#if defined(BIAS)
  float sum = p.bias[c];
#else
  float sum = 0.f;
#endif
#pragma unroll
  for (int j = 0; j < TAPS; j++) sum = fmaf(last[j], p.weight[(i64)c * TAPS + j], sum);
  return apply<FUNCTION, sizeof(value_t) == 4>(sum, 0.f, 0.f);
}

// Grid: tokens, channels / 128. A row's first token is computed together with the others that see the old state, by the
// thread that writes the new one: nobody else reads it.
extern "C" __global__ void __launch_bounds__(128) causal_conv(const __grid_constant__ ConvParams p) {
  let_next_start();
  const int token = blockIdx.x, c = blockIdx.y * 128 + threadIdx.x;
  wait_for_previous();
  const int row = p.batch.row_of[token];
  if (row < 0 || c >= p.channels) return;
  const int first = p.batch.first[row], len = p.batch.first[row + 1] - first;
  float last[TAPS];
  if (token != first) {
    if (token - first < TAPS - 1) return;
#pragma unroll
    for (int j = 0; j < TAPS; j++) last[j] = to_float(p.x.row(token - TAPS + 1 + j)[c]);
    p.y.row(token)[c] = from_float<value_t>(convolve(p, last, c));
    return;
  }
  float* state = p.states.of(p.batch, row) + c;
  const bool begins = p.batch.positions[first] == 0;
#pragma unroll
  for (int j = 0; j < TAPS - 1; j++) last[j + 1] = begins ? 0.f : state[(i64)j * p.channels];
  const int few = min(len, TAPS - 1);
  for (int t = 0; t < few; t++) {
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++) last[j] = last[j + 1];
    last[TAPS - 1] = to_float(p.x.row(first + t)[c]);
    p.y.row(first + t)[c] = from_float<value_t>(convolve(p, last, c));
  }
  // What is still in `last` are the newest inputs, unless the row is longer.
#pragma unroll
  for (int j = 0; j < TAPS - 1; j++) {
    const float x = len > TAPS - 1 ? to_float(p.x.row(first + len - TAPS + 1 + j)[c]) : last[j + 1];
    state[(i64)j * p.channels] = x;
  }
}

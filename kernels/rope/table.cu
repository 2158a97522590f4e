// arch: sm_80+
// variants: MODEL_BF16; MODEL_F32
//
// Cosines and sines of a step's tokens, one table per distinct rope, used by all layers. Frequencies and angles are f32
// as in Hugging Face's modeling_rope_utils; angles are large (128k positions), so sine and cosine reduce exactly.
// Floor: 4 * rotary bytes written per token; 16384 tokens of rotary 128 take 8.4 MB.
#include "include/base.cuh"

enum FrequencyKind { FIXED, DYNAMIC, DYNAMIC_QWEN, LONG };

struct RopeTableParams {
  float* table;              // [tokens, 2, half]: cosines, then sines
  const float* frequencies;  // [half]; the short ones of LONG
  const float* longer;       // [half] of LONG, for sequences beyond `original`
  Rows<const int> positions; // column 0 is the axis that counts
  const int* place;          // [tokens] position in the sequence
  const int* row_of;         // [tokens], -1 for padding
  const int* prompt_len;     // [rows]
  const int* admitted_len;   // [rows] tokens known at admission; null where there is none
  int tokens;
  int half;
  int kind;
  float theta;
  float factor;              // stretch of DYNAMIC
  float original;            // context of training
  float attention_factor;    // multiplies both
};

// 1 / theta^(2i / rotary), each step rounded to f32 as the reference does.
DEVICE float frequency(float theta, int i, int half) {
  float exponent = (float)(2 * i) / (float)(2 * half);
  return 1.f / (float)pow((double)theta, (double)exponent);
}

extern "C" __global__ void __launch_bounds__(256) rope_table(const __grid_constant__ RopeTableParams p) {
  let_next_start();
  wait_for_previous();
  i64 at = (i64)blockIdx.x * 256 + threadIdx.x;
  if (at >= (i64)p.tokens * p.half) return;
  const int t = (int)(at / p.half), i = (int)(at % p.half);
  float f;
  if (p.kind == FIXED) {
    f = __ldg(p.frequencies + i);
  } else {
    const int row = p.row_of[t];
    int len = p.place[t] + 1;
    if (row >= 0) len = max(len, p.prompt_len[row]);
    const double d = 2 * p.half;
    if (p.kind == LONG) {
      if (row >= 0 && p.admitted_len) len = max(len, p.admitted_len[row]);
      f = (float)len > p.original ? p.longer[i] : p.frequencies[i];
    } else {
      double grown;
      if (p.kind == DYNAMIC) {
        double ratio = fmax((double)len, (double)p.original);
        grown = (double)p.factor * ratio / (double)p.original - ((double)p.factor - 1.0);
      } else {
        double ratio = (double)len / (double)p.original;
        grown = fmax(exp2(ceil(log2(ratio) + 1.0)) - 1.0, 1.0);
      }
      f = frequency((float)((double)p.theta * pow(grown, d / (d - 2.0))), i, p.half);
    }
  }
  float sine, cosine;
  sincosf((float)p.positions.row(t)[0] * f, &sine, &cosine);
  float* row = p.table + (i64)t * 2 * p.half;
  row[i] = cosine * p.attention_factor;
  row[p.half + i] = sine * p.attention_factor;
}

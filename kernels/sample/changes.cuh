// Ops, and those that change single tokens' logits.
#pragma once

enum Code {
  OP_ALLOW,        // a: offset of b ids, ascending: all others get -inf
  OP_BAN,          // a: offset of b ids
  OP_BIAS,         // a: offset of b pairs (id, f32), ascending by id, equal ids in their order
  OP_PENALTIES,    // a: offset of repetition, presence, frequency and b pairs (id, count in the output), ids distinct
  OP_TEMPERATURE,  // a: f32
  OP_TOP_K,        // a: k
  OP_TOP_P,        // a: f32
  OP_MIN_P,        // a, b: f64 ln p, low word first
  OP_TYPICAL_P,    // a: f32
  OP_DYNAMIC,      // a, b, c: f32 min, max, exponent of a dynamic temperature
  OP_SIGMA,        // a: f32 n of top-n-sigma
  OP_EPSILON,      // a, b: f64 ln of the cutoff
  OP_ETA,          // a, b: f64 ln of epsilon
  OP_TAIL_FREE,    // a: f32
  OP_XTC,          // a, b: f64 ln of the threshold; only where it applies
  OP_MIROSTAT1,    // a: f32 mu
  OP_MIROSTAT2,    // a, b: f64 -mu ln 2
  OP_WATERMARK,    // a: offset of key low, key high, digest of the tokens before (3 words), bar, f32 delta
};

struct Op {
  u32 code, a, b, c;
};


// Whether it changes w by what it knows of single tokens.
DEVICE bool changes(u32 code) { return code <= OP_PENALTIES || code == OP_WATERMARK; }

DEVICE double log_of(const Op& op) { return __longlong_as_double((i64)((u64)op.a | (u64)op.b << 32)); }

DEVICE float* place(const Row& row, u32 id) {
  u32 i = id - row.begin;
  return id >= row.begin && i < (u32)row.count ? row.w() + i : nullptr;
}

DEVICE void allow(const Row& row, const u32* ids, u32 n) {
  each_quad(row, [&](int i, float4) {
#pragma unroll 1
    for (int k = 0; k < 4; ++k) {
      u32 id = row.begin + i + k, low = 0, high = n;
      while (low < high) {
        u32 mid = (low + high) / 2;
        if (ids[mid] < id) low = mid + 1;
        else high = mid;
      }
      if (low == n || ids[low] != id) row.w()[i + k] = NEG_INF;
    }
  });
}

DEVICE void penalize(float* at, const float* by, u32 outputs) {
  float x = *at;
  x = x > 0.f ? __fdiv_rn(x, by[0]) : __fmul_rn(x, by[0]);
  if (outputs > 0) {
    x = __fsub_rn(x, __fmul_rn(by[2], (float)outputs));
    x = __fsub_rn(x, by[1]);
  }
  *at = x;
}

// Adds delta to the green tokens; see host/device/src/cpu/sample/watermark.rs.
DEVICE void mark(const Row& row, const u32* by) {
  float delta = __uint_as_float(by[6]);
  each_quad(row, [&](int i, float4 v) {
    uint4 words = philox(make_uint4((row.begin + i) / 4, by[2], by[3], by[4]), by[0], by[1]);
    v.x += words.x < by[5] ? delta : 0.f;
    v.y += words.y < by[5] ? delta : 0.f;
    v.z += words.z < by[5] ? delta : 0.f;
    v.w += words.w < by[5] ? delta : 0.f;
    *(float4*)(row.w() + i) = v;
  });
}

// Changes w by an op that knows ids; the block's threads are together before and after.
SLOW void change(const Row row, const Op op, const u32* list) {
  switch (op.code) {
    case OP_ALLOW: allow(row, list, op.b); break;
    case OP_BAN:
      for (u32 j = threadIdx.x; j < op.b; j += THREADS)
        if (float* at = place(row, list[j])) *at = NEG_INF;
      break;
    case OP_BIAS:
      for (u32 j = threadIdx.x; j < op.b; j += THREADS) {
        u32 id = list[2 * j];
        if (j > 0 && list[2 * j - 2] == id) continue;
        if (float* at = place(row, id))
          for (u32 k = j; k < op.b && list[2 * k] == id; ++k) *at += __uint_as_float(list[2 * k + 1]);
      }
      break;
    case OP_PENALTIES:
      for (u32 j = threadIdx.x; j < op.b; j += THREADS)
        if (float* at = place(row, list[3 + 2 * j])) penalize(at, (const float*)list, list[4 + 2 * j]);
      break;
    case OP_WATERMARK: mark(row, list); break;
  }
  __syncthreads();
}

DEVICE void divide(const Row& row, float t) {
  for (int i = threadIdx.x; i < row.count; i += THREADS) row.w()[i] = __fdiv_rn(row.w()[i], t);
  __syncthreads();
}

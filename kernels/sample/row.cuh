// One draw's slice of a row of logits, and what the stages so far have made of it.
//
// A token's value is `w / t` (temperature kept apart, so that `w` stays the raw logit as long as it can), and it takes
// part while it is above the cut: value > cut, or value == cut and id < cut_end. Both are written into `w` only before a
// stage that changes single tokens.
#pragma once

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr int BINS = 2048;
constexpr int LIST = 128;
constexpr u32 HEATS = 16;

// Out of line: code that most draws do not need, or that is long and called from several places.
#define SLOW inline __device__ __noinline__

#define LOG2E 1.4426950408889634f
#define NEG_INF (-INFINITY_F)

// Dynamic shared memory before the slice; the host knows it too.
constexpr int SHARED_BYTES = 11776;
extern __shared__ __align__(16) unsigned char shared_memory[];

struct Row {
#if CLUSTERED
  // [padded] this block's slice, -inf behind its end
  DEVICE float* w() const { return (float*)(shared_memory + SHARED_BYTES); }
#else
  float* slice;
  DEVICE float* w() const { return slice; }
#endif
  u32 begin;        // id of w[0], a multiple of 8
  int count;        // tokens of the slice
  int padded;       // count, rounded up to 4
  float t, inverse; // temperature and its reciprocal; 1 where there is none
  float cut;        // -inf: none
  u32 cut_end;
  // Over all blocks, of the values that take part:
  float max;
  double sum;       // of e^(value - max)
  u32 arg;          // lowest id of those equal to max
  u32 bad;          // some value is NaN or +inf
  bool max_known, sum_known;
  u32 turn;         // exchanges so far

  // Division as IEEE rounds it, where nothing overflows: temperatures beyond 1e-3 .. 1e3 are written into w at once.
  DEVICE float value(float x) const {
    float q = x * inverse;
    float y = __fmaf_rn(__fmaf_rn(-q, t, x), inverse, q);
    return fmaxf(y, NEG_INF);  // of -inf comes NaN
  }
  DEVICE bool kept(float y, u32 id) const { return y > cut || (y == cut && id < cut_end); }
};

// What blocks tell each other at a step; meaning as at the exchange.
struct Slot {
  u32 x[8];
};

struct Shared {
  u32 hist[BINS];
  u64 coarse[BINS / 32];
  uint2 list[LIST];      // candidates of this block: value bits, id
  uint2 all[LIST];       // of all blocks
  u32 list_count, all_count;
  Slot slots[2][8];
  u32 words[3 * WARPS];
  double doubles[WARPS];
  u64 best;
  u32 best_id;
  u32 flag;
  u32 found[8];
  float heats[HEATS];    // dynamic temperatures so far
};

static_assert(sizeof(Shared) <= SHARED_BYTES && SHARED_BYTES % 16 == 0, "the slice would overlap");

DEVICE Shared& shared() { return *(Shared*)shared_memory; }

DEVICE float exp_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * LOG2E));
  return y;
}

// Orders floats as u32; zeros are equal.
DEVICE u32 key_of(float x) {
  u32 b = __float_as_uint(x + 0.f);
  return b ^ ((u32)((int)b >> 31) | 0x80000000u);
}
DEVICE float of_key(u32 k) { return __uint_as_float(k & 0x80000000u ? k ^ 0x80000000u : ~k); }

DEVICE u64 key_of(double x) {
  u64 b = (u64)__double_as_longlong(x + 0.0);
  return b ^ ((u64)((i64)b >> 63) | 0x8000000000000000ull);
}

// Calls f(index, four values of w) for each quad of the slice; the order of a thread's quads is fixed.
template <class F> DEVICE void each_quad(const Row& row, F f) {
  for (int i = (int)threadIdx.x * 4; i < row.padded; i += THREADS * 4) f(i, *(const float4*)(row.w() + i));
}

// Each block's slot at the others. `mine` counts in warp 0, where lane r writes to block r; `turn` alternates.
DEVICE const Slot* exchange(u32 turn, const Slot& mine) {
  Slot* slots = shared().slots[turn & 1];
  u32 me = cta_rank();
  if (threadIdx.x < CTAS) {
#pragma unroll
    for (int k = 0; k < 8; ++k) peer_store(&slots[me].x[k], threadIdx.x, mine.x[k]);
  }
  cluster_sync();
  return slots;
}

DEVICE u32 warp_max_u32(u32 x) { return __reduce_max_sync(0xffffffffu, x); }
DEVICE u32 warp_min_u32(u32 x) { return __reduce_min_sync(0xffffffffu, x); }
DEVICE u32 warp_sum_u32(u32 x) { return __reduce_add_sync(0xffffffffu, x); }

// Maximum over the block in all threads; one barrier, so a second one must lie between two uses.
DEVICE float block_max(float x) {
  u32 k = warp_max_u32(key_of(x));
  if (threadIdx.x % 32 == 0) shared().words[threadIdx.x / 32] = k;
  __syncthreads();
  u32 lane = threadIdx.x % 32;
  return of_key(warp_max_u32(lane < WARPS ? shared().words[lane] : 0u));
}

// Writes temperature and cut into w.
DEVICE void settle(Row& row) {
  if (row.t == 1.f && row.cut == NEG_INF) return;
  each_quad(row, [&](int i, float4 v) {
    u32 id = row.begin + i;
    float a = row.value(v.x), b = row.value(v.y), c = row.value(v.z), d = row.value(v.w);
    a = row.kept(a, id) ? a : NEG_INF;
    b = row.kept(b, id + 1) ? b : NEG_INF;
    c = row.kept(c, id + 2) ? c : NEG_INF;
    d = row.kept(d, id + 3) ? d : NEG_INF;
    *(float4*)(row.w() + i) = make_float4(a, b, c, d);
  });
  row.t = row.inverse = 1.f;
  row.cut = NEG_INF;
  row.cut_end = 0;
  __syncthreads();
}

struct RawStats {
  float max;
  double sum;
};

// Sums of e^(value - slice's maximum) and the maximum's lowest id, then over all blocks. `high` is the slice's largest w
// or value; `raw` also asks for the sum over w itself, as it is before any stage.
DEVICE void sum_values(Row& row, float high, u32 bad, RawStats* raw) {
  bool both = raw && row.t != 1.f;
  float top = raw ? row.value(high) : high;
  float sum = 0.f, raw_sum = 0.f;
  u32 arg = 0xffffffffu;
  if (top > NEG_INF && top < INFINITY_F) {
    each_quad(row, [&](int i, float4 v) {
      float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float y = row.value(x[k]);
        u32 id = row.begin + i + k;
        if (row.kept(y, id)) {
          sum += exp_of(y - top);
          if (y == top) arg = min(arg, id);
        }
        if (both) raw_sum += exp_of(x[k] - high);
      }
    });
  }
  sum = warp_sum(sum);
  if (both) raw_sum = warp_sum(raw_sum);
  arg = warp_min_u32(arg);
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) {
    shared().words[warp] = __float_as_uint(sum);
    shared().words[WARPS + warp] = __float_as_uint(raw_sum);
    shared().words[2 * WARPS + warp] = arg;
  }
  __syncthreads();
  Slot mine;
  if (warp == 0) {
    sum = warp_sum(lane < WARPS ? __uint_as_float(shared().words[lane]) : 0.f);
    raw_sum = warp_sum(lane < WARPS ? __uint_as_float(shared().words[WARPS + lane]) : 0.f);
    arg = warp_min_u32(lane < WARPS ? shared().words[2 * WARPS + lane] : 0xffffffffu);
    mine = {{__float_as_uint(top), __float_as_uint(sum), arg, bad, __float_as_uint(high), __float_as_uint(raw_sum), 0, 0}};
  }
  const Slot* slots = exchange(row.turn++, mine);
  float max = NEG_INF, raw_max = NEG_INF;
  row.bad = 0;
#pragma unroll 1
  for (int r = 0; r < CTAS; ++r) {
    max = fmaxf(max, __uint_as_float(slots[r].x[0]));
    raw_max = fmaxf(raw_max, __uint_as_float(slots[r].x[4]));
    row.bad |= slots[r].x[3];
  }
  double total = 0.0, raw_total = 0.0;
  row.arg = 0xffffffffu;
#pragma unroll 1
  for (int r = 0; r < CTAS; ++r) {
    float m = __uint_as_float(slots[r].x[0]);
    if (m == max) row.arg = min(row.arg, slots[r].x[2]);
    if (m > NEG_INF) total += (double)__uint_as_float(slots[r].x[1]) * (double)exp_of(m - max);
    float h = __uint_as_float(slots[r].x[4]);
    if (both && h > NEG_INF) raw_total += (double)__uint_as_float(slots[r].x[5]) * (double)exp_of(h - raw_max);
  }
  row.max = max;
  row.sum = total;
  row.max_known = row.sum_known = true;
  if (raw) *raw = both ? RawStats{raw_max, raw_total} : RawStats{max, total};
}

// Maximum, sum and failures of what takes part now.
SLOW Row measured(Row row) {
  float high = NEG_INF;
  bool bad = false;
  each_quad(row, [&](int i, float4 v) {
    float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float y = row.value(x[k]);
      // NaN is looked for in w: a division hides it.
      bad |= !(x[k] < INFINITY_F) || !(y < INFINITY_F);
      if (row.kept(y, row.begin + i + k)) high = fmaxf(high, y);
    }
  });
  u32 any = __syncthreads_or(bad);
  high = block_max(high);
  __syncthreads();
  sum_values(row, high, any, nullptr);
  return row;
}

// Whether a distribution can be made of the row.
DEVICE bool usable(const Row& row) { return !row.bad && row.max > NEG_INF && row.max < INFINITY_F; }

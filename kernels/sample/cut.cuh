// Where a truncation ends: the last token, in order of preference, with which a count or a mass is reached.
//
// Preference is (distance, value, id): distance is `max - value`, or for typical sampling how far a token's surprise is
// from the entropy. A histogram over the distance's bits finds the bin that holds the end, further ones split it, first
// by distance, then by value, then by id, until few enough tokens are left to compare each with each. All sums are
// integers, so their order does not matter.
#pragma once

enum CutBy { BY_COUNT, BY_MASS, BY_TYPICAL };
enum Ties { TIES_KEPT, TIES_BY_ID };

// Masses are in units of 2^-40 of the best token's.
#define MASS_ONE 1099511627776.f

// First level: 128 bins an octave of distance from 2^-9 to 2^7; the ends are open.
constexpr u32 FIRST_CODE = (127u - 9u) << 7;
constexpr u32 INF_BITS = 0x7f800000u;

template <int BY> struct Cut {
  static constexpr int GROUPS = (BY == BY_TYPICAL ? BINS / 2 : BINS) / 32;
  static constexpr int DIGIT = CTAS == 1 ? 13 : 16;  // a block has at most 2^(32 - DIGIT) tokens
  Row row;
  double log_sum, entropy;  // typical sampling only
  int shift;               // a mass of one within its bin is 2^shift

  DEVICE float distance(float y) const {
    if constexpr (BY == BY_TYPICAL) {
      double log_prob = (double)y - (double)row.max - log_sum;
      return (float)fabs(-log_prob - entropy);
    }
    return row.max - y;
  }

  DEVICE static u32 first_bin(u32 bits) {
    u32 last = BY == BY_TYPICAL ? BINS / 2 - 1 : BINS - 1;
    int code = (int)(bits >> 16) - (int)FIRST_CODE + 1;
    return (u32)min(max(code, 0), (int)last);
  }
  DEVICE static u32 bin_low(u32 bin) { return bin == 0 ? 0 : (FIRST_CODE + bin - 1) << 16; }
  DEVICE static u32 bin_high(u32 bin) {
    u32 last = BY == BY_TYPICAL ? BINS / 2 - 1 : BINS - 1;
    return bin == last ? INF_BITS : (FIRST_CODE + bin) * 65536u - 1;
  }

  DEVICE void add(u32 bin, float y, float from) {
    if constexpr (BY == BY_COUNT) {
      atomicAdd(&shared().hist[bin], 1u);
    } else if constexpr (BY == BY_MASS) {
      float m = exp_of(from - (row.max - y)) * (float)(1 << shift);
      atomicAdd(&shared().hist[bin], __float2uint_rn(m));
    } else {
      // Two digits of a mass in units of 2^-32; each one's sum over a block fits 32 bits.
      u32 m = __float2uint_rz(exp_of(y - row.max) * 4294967040.f) >> (32 - 2 * DIGIT);
      atomicAdd(&shared().hist[2 * bin], m & ((1u << DIGIT) - 1));
      atomicAdd(&shared().hist[2 * bin + 1], m >> DIGIT);
    }
  }

  // A bin's sum in units of the target. `from` is the distance at which a mass within the bin is one.
  DEVICE static u64 worth(u32 low, u32 high, float from, int shift) {
    if constexpr (BY == BY_COUNT) return low;
    if constexpr (BY == BY_MASS) return (u64)((float)low * (exp_of(-from) * (MASS_ONE / (float)(1 << shift))));
    return ((u64)low + ((u64)high << DIGIT)) << (40 - 2 * DIGIT);
  }

  DEVICE u64 own_worth(float y) const {
    if constexpr (BY == BY_COUNT) return 1;
    return (u64)(exp_of(y - row.max) * MASS_ONE);
  }

  DEVICE bool before(float y, u32 id, float z, u32 other) const {
    if constexpr (BY == BY_TYPICAL) {
      float a = distance(y), b = distance(z);
      return a < b || (a == b && id < other);
    }
    return y > z || (y == z && id < other);
  }

  struct End {
    bool found;
    float value;     // of the last token that is kept
    float distance;
    u32 id;          // its id; all equals are kept where ties are
    u64 total;       // of what is kept; with TIES_BY_ID alone
    u32 turn;
  };

  // What is looked at: tokens whose distance, value or id lies in low..=high.
  struct Bracket {
    int level;        // 0 distance, 1 value, 2 id
    u32 low, high;
    u32 distance;     // bits, from level 1 on
    u32 value;        // key, at level 2
  };

  DEVICE bool inside(const Bracket& b, float y, u32 id, u32* at) const {
    if (!row.kept(y, id)) return false;
    u32 d = __float_as_uint(distance(y));
    u32 k = d;
    if (b.level > 0) {
      if (d != b.distance) return false;
      k = ~key_of(y);
      if (b.level > 1) {
        if (k != b.value) return false;
        k = id;
      }
    }
    *at = k;
    return k >= b.low && k <= b.high;
  }

  template <class F> DEVICE void each_inside(const Bracket& b, F f) const {
    // Nearly all tokens are told by w alone: bounds with room for rounding.
    float low = NEG_INF, high = INFINITY_F;
    if (BY != BY_TYPICAL) {
      float near = __uint_as_float(b.level == 0 ? b.low : b.distance);
      float far = __uint_as_float(b.level == 0 ? b.high : b.distance);
      float slack = 1e-5f * (fabsf(row.max) + far);
      low = (row.max - far - slack) * row.t;
      high = (row.max - near + slack) * row.t;
    }
    each_quad(row, [&](int i, float4 v) {
      float x[4] = {v.x, v.y, v.z, v.w};
      bool any = false;
#pragma unroll
      for (int k = 0; k < 4; ++k) any |= x[k] >= low && x[k] <= high;
      if (!any) return;
#pragma unroll 1
      for (int k = 0; k < 4; ++k) {
        float y = row.value(k == 0 ? x[0] : k == 1 ? x[1] : k == 2 ? x[2] : x[3]);
        u32 id = row.begin + i + k, at;
        if (inside(b, y, id, &at)) f(y, id, at);
      }
    });
  }

  DEVICE void clear() {
    for (int i = threadIdx.x * 4; i < BINS; i += THREADS * 4) *(uint4*)(shared().hist + i) = make_uint4(0, 0, 0, 0);
    __syncthreads();
  }

  DEVICE static float from_of(u32 bin, bool first, float from) {
    return first ? __uint_as_float(bin_low(bin)) : from;
  }

  // Finds the bin in which `above` plus the bins' sums reaches the target. Called by all; shared in shared().found: found, bin,
  // sum above it (two words), its own count as near as it is known.
  SLOW static void scan(int shift, u64 above, u64 target, bool first, float from) {
    __syncthreads();
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int g = warp; g < GROUPS; g += WARPS) {
      u32 bin = g * 32 + lane;
      u64 x = BY == BY_TYPICAL ? worth(shared().hist[2 * bin], shared().hist[2 * bin + 1], 0.f, shift)
                               : worth(shared().hist[bin], 0, from_of(bin, first, from), shift);
#pragma unroll
      for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(0xffffffffu, x, by);
      if (lane == 0) shared().coarse[g] = x;
    }
    cluster_sync();
    if (warp == 0) {
      u64 c[2] = {0, 0};
#pragma unroll 4
      for (int r = 0; r < CTAS; ++r) {
        c[0] += peer_load(&shared().coarse[lane], r);
        if (GROUPS > 32) c[1] += peer_load(&shared().coarse[lane + 32], r);
      }
      int group = -1;
      u64 sum = above;
#pragma unroll
      for (int half = 0; half < GROUPS / 32; ++half) {
        u64 upto = sum + inclusive(c[half]);
        u32 hit = __ballot_sync(0xffffffffu, upto >= target);
        if (group < 0) {
          if (hit) {
            int l = __ffs(hit) - 1;
            group = half * 32 + l;
            sum = __shfl_sync(0xffffffffu, upto - c[half], l);
          } else {
            sum = __shfl_sync(0xffffffffu, upto, 31);
          }
        }
      }
      if (group >= 0) {
        u32 bin = group * 32 + lane;
        u64 x = 0;
        u32 count = 0;
#pragma unroll 4
        for (int r = 0; r < CTAS; ++r) {
          if constexpr (BY == BY_TYPICAL) {
            u32 low = peer_load(&shared().hist[2 * bin], r), high = peer_load(&shared().hist[2 * bin + 1], r);
            x += worth(low, high, 0.f, shift);
          } else {
            u32 h = peer_load(&shared().hist[bin], r);
            x += worth(h, 0, from_of(bin, first, from), shift);
            count += BY == BY_MASS ? (h + (1u << shift) - 1) >> shift : h;
          }
        }
        u64 upto = sum + inclusive(x);
        u32 hit = __ballot_sync(0xffffffffu, upto >= target);
        int l = hit ? __ffs(hit) - 1 : 31;
        if ((int)lane == l) {
          shared().found[0] = 1;
          shared().found[1] = bin;
          shared().found[2] = (u32)(upto - x);
          shared().found[3] = (u32)((upto - x) >> 32);
          shared().found[4] = count;
        }
      } else if (lane == 0) {
        shared().found[0] = 0;
      }
    }
    __syncthreads();
  }

  DEVICE static u64 inclusive(u64 x) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      u64 y = __shfl_up_sync(0xffffffffu, x, by);
      if (lane >= by) x += y;
    }
    return x;
  }

  // Collects the bracket's tokens of all blocks; their number, of which at most LIST are in shared().all.
  DEVICE u32 gather(const Bracket& b) {
    if (threadIdx.x == 0) shared().list_count = shared().all_count = 0;
    __syncthreads();
    each_inside(b, [&](float y, u32 id, u32) {
      u32 at = atomicAdd(&shared().list_count, 1u);
      if (at < LIST) shared().list[at] = make_uint2(__float_as_uint(y), id);
    });
    cluster_sync();
    u32 total = 0;
    for (int r = 0; r < CTAS; ++r) total += peer_load(&shared().list_count, r);
    if (total <= LIST) {
      for (int r = threadIdx.x / 64; r < CTAS; r += THREADS / 64) {
        u32 n = peer_load(&shared().list_count, r);
        for (u32 j = threadIdx.x % 64; j < n; j += 64) {
          u64 e = peer_load((const u64*)&shared().list[j], r);
          shared().all[atomicAdd(&shared().all_count, 1u)] = make_uint2((u32)e, (u32)(e >> 32));
        }
      }
    }
    __syncthreads();
    return total;
  }

  // The end among shared().all.
  DEVICE End among(u32 n, u64 above, u64 target) {
    if (threadIdx.x == 0) shared().found[0] = 0;
    __syncthreads();
    // Four lanes a candidate.
    u32 me = threadIdx.x / 4, part = threadIdx.x % 4;
    u64 upto = 0;
    float y = 0.f;
    u32 id = 0, behind = 0;
    if (me < n) {
      y = __uint_as_float(shared().all[me].x);
      id = shared().all[me].y;
      for (u32 j = part; j < n; j += 4) {
        float z = __uint_as_float(shared().all[j].x);
        u32 other = shared().all[j].y;
        if (!before(y, id, z, other)) upto += own_worth(z);
        else ++behind;
      }
    }
    upto += __shfl_xor_sync(0xffffffffu, upto, 1);
    upto += __shfl_xor_sync(0xffffffffu, upto, 2);
    behind += __shfl_xor_sync(0xffffffffu, behind, 1);
    behind += __shfl_xor_sync(0xffffffffu, behind, 2);
    if (me < n && part == 0) {
      upto += above;
      bool reached = upto >= target, earlier = upto - own_worth(y) >= target;
      // The last one stands in where rounding left the sum short.
      if ((reached && !earlier) || (!reached && behind == 0)) {
        shared().found[0] = 1;
        shared().found[1] = __float_as_uint(y);
        shared().found[2] = id;
        shared().found[3] = (u32)upto;
        shared().found[4] = (u32)(upto >> 32);
      }
    }
    __syncthreads();
    End end;
    end.found = shared().found[0] != 0;
    end.value = __uint_as_float(shared().found[1]);
    end.distance = distance(end.value);
    end.id = shared().found[2];
    end.turn = row.turn;
    end.total = (u64)shared().found[3] | (u64)shared().found[4] << 32;
    __syncthreads();
    return end;
  }

  // Narrows a bracket to what it holds.
  DEVICE void tighten(Bracket& b) {
    u32 low = 0xffffffffu, high = 0;
    each_inside(b, [&](float, u32, u32 at) {
      low = min(low, at);
      high = max(high, at);
    });
    low = warp_min_u32(low);
    high = warp_max_u32(high);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) {
      shared().words[warp] = low;
      shared().words[WARPS + warp] = high;
    }
    __syncthreads();
    Slot mine;
    if (warp == 0) {
      low = warp_min_u32(lane < WARPS ? shared().words[lane] : 0xffffffffu);
      high = warp_max_u32(lane < WARPS ? shared().words[WARPS + lane] : 0u);
      mine = {{low, high, 0, 0, 0, 0, 0, 0}};
    }
    const Slot* slots = exchange(row.turn++, mine);
    low = 0xffffffffu;
    high = 0;
    for (int r = 0; r < CTAS; ++r) {
      low = min(low, slots[r].x[0]);
      high = max(high, slots[r].x[1]);
    }
    b.low = low;
    b.high = high;
  }

  // `far`: tokens at a greater distance cannot be needed.
  DEVICE End find(u64 target, float far, Ties ties) {
    clear();
    each_quad(row, [&](int i, float4 v) {
      float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float y = row.value(x[k]);
        float d = distance(y);
        if (d <= far && row.kept(y, row.begin + i + k)) {
          u32 bin = first_bin(__float_as_uint(d));
          add(bin, y, __uint_as_float(bin_low(bin)));
        }
      }
    });
    scan(shift, 0, target, true, 0.f);
    if (!shared().found[0]) {
      cluster_sync();
      return {false, NEG_INF, 0.f, 0, 0, row.turn};
    }
    return narrow(*this, target, ties);
  }

  // After the first histogram.
  SLOW static End narrow(Cut cut, u64 target, Ties ties) { return cut.narrowed(target, ties); }

  DEVICE End narrowed(u64 target, Ties ties) {
    u32 bin = shared().found[1];
    u64 above = (u64)shared().found[2] | (u64)shared().found[3] << 32;
    Bracket b = {0, bin_low(bin), bin_high(bin), 0, 0};
    float from = __uint_as_float(b.low);
    u32 guess = shared().found[4];
    __syncthreads();
    for (;;) {
      if (guess <= LIST) {
        u32 n = gather(b);
        if (n <= LIST) return among(n, above, target);
      } else {
        cluster_sync();
      }
      while (b.low == b.high) {
        if (b.level == 0) {
          b = {1, 0, 0xffffffffu, b.low, 0};
          tighten(b);
        } else if (b.level == 1 && ties == TIES_BY_ID) {
          b = {2, 0, 0xffffffffu, b.distance, b.low};
          tighten(b);
        } else {
          float value = b.level == 1 ? of_key(~b.low) : of_key(~b.value);
          return {true, value, __uint_as_float(b.distance), b.level == 1 ? 0xffffffffu : b.low, 0, row.turn};
        }
        // Equal distances are all typical sampling asks for.
        if (BY == BY_TYPICAL) return {true, 0.f, __uint_as_float(b.distance), 0xffffffffu, 0, row.turn};
      }
      u32 range = b.high - b.low;
      u32 bits = 32 - __clz((int)range);
      u32 width = BY == BY_TYPICAL ? 10 : 11;
      u32 by = bits > width ? bits - width : 0;
      clear();
      each_inside(b, [&](float y, u32, u32 at) { add((at - b.low) >> by, y, from); });
        scan(shift, above, target, false, from);
      if (!shared().found[0]) {
        // Rounding left the sum short: the bracket's last token is the end.
        tighten(b);
        b.low = b.high;
        above = target - 1;
        guess = 0;
        continue;
      }
      bin = shared().found[1];
      above = (u64)shared().found[2] | (u64)shared().found[3] << 32;
      guess = shared().found[4];
      u32 low = b.low + (bin << by);
      u32 high = by == 0 ? low : min(b.high, low + ((1u << by) - 1));
      b.low = low;
      b.high = high;
    }
  }
};

// Stages that need a row's best values in order: they are sorted by the first block, so many at a time.
#pragma once

// Values that are sorted at once; they take the histogram's place.
constexpr u32 CHUNK = BINS;
static_assert(CHUNK == 4 * THREADS, "each thread looks at four");

// A token in the order of preference.
struct Rank {
  float value;
  u32 id;
};

SLOW Rank nth_best(Row row, u32 n, u32* turn) {
  Cut<BY_COUNT> cut = {row, 0.f, 0.f, 0};
  auto end = cut.find(n, INFINITY_F, TIES_BY_ID);
  *turn = end.turn;
  return end.found ? Rank{end.value, end.id} : Rank{NEG_INF, 0};
}

// Sorts n keys of this block, a power of two, from the largest on.
SLOW void sort_down(u32* keys, u32 n) {
  for (u32 k = 2; k <= n; k *= 2) {
    for (u32 j = k / 2; j > 0; j /= 2) {
      for (u32 i = threadIdx.x; i < n / 2; i += THREADS) {
        u32 a = 2 * i - (i & (j - 1)), b = a + j;
        u32 x = keys[a], y = keys[b];
        if ((x < y) == ((a & k) == 0)) keys[a] = y, keys[b] = x;
      }
      __syncthreads();
    }
  }
}

// Brings the values of the tokens after `from` and up to `to`, at most CHUNK, to the first block's histogram as keys,
// sorted from the largest on, 0 behind them. Their number. One exchange.
SLOW u32 sort_between(const Row row, Rank from, Rank to) {
  auto inside = [&](float y, u32 id) {
    bool after = y < from.value || (y == from.value && id > from.id);
    return row.kept(y, id) && after && (y > to.value || (y == to.value && id <= to.id));
  };
  if (threadIdx.x == 0) shared().all_count = 0;
  __syncthreads();
  u32 mine = 0;
  each_quad(row, [&](int i, float4 v) {
    u32 id = row.begin + i;
    mine += (u32)inside(row.value(v.x), id) + (u32)inside(row.value(v.y), id + 1) + (u32)inside(row.value(v.z), id + 2) +
            (u32)inside(row.value(v.w), id + 3);
  });
  u32 at = mine ? atomicAdd(&shared().all_count, mine) : 0;
  __syncthreads();
  const Slot* slots = exchange(row.turn, {{shared().all_count, 0, 0, 0, 0, 0, 0, 0}});
  u32 all = 0;
  for (int r = 0; r < CTAS; ++r) {
    if (r < (int)cta_rank()) at += slots[r].x[0];
    all += slots[r].x[0];
  }
  if (mine) {
    each_quad(row, [&](int i, float4 v) {
      float x[4] = {v.x, v.y, v.z, v.w};
      for (int k = 0; k < 4; ++k) {
        float y = row.value(x[k]);
        if (inside(y, row.begin + i + k) && at < CHUNK) peer_store(&shared().hist[at++], 0, key_of(y));
      }
    });
  }
  u32 n = 2;
  while (n < all && n < CHUNK) n *= 2;
  if (cta_rank() == 0)
    for (u32 i = all + threadIdx.x; i < CHUNK; i += THREADS) shared().hist[i] = 0;
  cluster_sync();
  if (cta_rank() == 0) sort_down(shared().hist, n);
  return min(all, CHUNK);
}

// What the first block tells the others; x of its slot.
DEVICE const u32* from_first(u32 turn, const Slot& mine) { return exchange(turn, mine)[0].x; }

// Kept by all threads of the first block, from chunk to chunk.
struct Differences {
  double last[2];  // parts of the last two tokens, the last one second
  double sum;      // of the absolute second differences
  u32 done;        // tokens
};

// Adds the sorted chunk of n tokens: a token's part is e^(value - max). found[0] and found[1]: the first difference at
// which the running sum is above `low` and `high`, or z times what is known of the whole sum where those are negative.
SLOW Differences add_chunk(Differences d, u32 n, float max, u32 m, double z, double fixed) {
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto part = [&](int j) {
    if (j < 0) return d.last[j + 2];
    return exp((double)of_key(shared().hist[j]) - (double)max);
  };
  if (threadIdx.x < 2) shared().found[threadIdx.x] = 0xffffffffu;
  int base = threadIdx.x * 4;
  double own[4], e0 = 0.0, e1 = 0.0, sum = 0.0;
  if (base < (int)n) e0 = part(base - 2), e1 = part(base - 1);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (base + k < (int)n) {
      double e2 = part(base + k);
      if (d.done + base + k >= 2) sum += fabs(e0 - 2.0 * e1 + e2);
      e0 = e1, e1 = e2;
    }
    own[k] = sum;
  }
  double upto = sum;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    double y = __shfl_up_sync(0xffffffffu, upto, by);
    if (lane >= by) upto += y;
  }
  if (lane == 31) shared().doubles[warp] = upto;
  __syncthreads();
  double before = d.sum + (upto - sum), total = d.sum;
  for (int w = 0; w < WARPS; ++w) {
    if (w < (int)warp) before += shared().doubles[w];
    total += shared().doubles[w];
  }
  Differences next = {{part((int)n - 2), part((int)n - 1)}, total, d.done + n};
  // Parts fall, so the differences that are left add up to at most this.
  double rest = next.done < m ? 2.0 * next.last[0] : 0.0;
  double low = fixed >= 0.0 ? fixed : z * total, high = fixed >= 0.0 ? fixed : z * (total + rest);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    u32 index = d.done + base + k - 2;
    if (base + k >= (int)n || d.done + base + k < 2) continue;
    double sum_here = before + own[k];
    if (sum_here > low) atomicMin(&shared().found[0], index);
    if (sum_here > high) atomicMin(&shared().found[1], index);
  }
  __syncthreads();
  return next;
}

enum Answer { ANSWER_NONE, ANSWER_FOUND, ANSWER_EARLIER };

// Tail-free sampling's end among the sorted tokens: see host/device/src/cpu/sample/cutoffs.rs. Goes on until what is left
// cannot change the answer; where it lies in a chunk that has gone by, once more.
SLOW Row tail_free(Row row, float z) {
  Spread s = spread(row);
  ++row.turn;
  u32 m = (u32)s.count;
  if (m <= 2) return row;
  double fixed = -1.0;
  Differences d = {{0.0, 0.0}, 0.0, 0};
  Rank from = {INFINITY_F, 0};
  u32 keep = m;
  for (;;) {
    Rank to = {NEG_INF, 0};
    if (d.done + CHUNK < m) to = nth_best(row, d.done + CHUNK, &row.turn);
    u32 n = sort_between(row, from, to);
    ++row.turn;
    Slot mine = {{0, 0, 0, 0, 0, 0, 0, 0}};
    if (cta_rank() == 0) {
      double start = d.sum;
      d = add_chunk(d, n, row.max, m, (double)z, fixed);
      double rest = d.done < m ? 2.0 * d.last[0] : 0.0;
      bool whole = d.sum + rest == d.sum;
      u32 low = shared().found[0], high = shared().found[1];
      u32 answer = ANSWER_NONE, index = low;
      double threshold = (double)z * d.sum;
      if (fixed >= 0.0) {
        if (low != 0xffffffffu || d.done >= m) answer = ANSWER_FOUND;
      } else if (whole && d.sum == 0.0) {
        // All parts are equal: every difference counts alike.
        answer = ANSWER_FOUND;
        double all = (double)(m - 2);
        index = (u32)fmax(floor((double)z * all), 1.0) - 1;
        while ((double)(index + 1) / all <= (double)z) ++index;
      } else if (start <= threshold && low == high && low != 0xffffffffu) {
        answer = ANSWER_FOUND;
      } else if (whole) {
        answer = ANSWER_EARLIER;
      }
      u64 bits = (u64)__double_as_longlong(threshold);
      mine = {{answer, index, (u32)bits, (u32)(bits >> 32), 0, 0, 0, 0}};
    } else {
      d.done += n;
    }
    const u32* told = from_first(row.turn++, mine);
    u32 answer = told[0];
    if (answer == ANSWER_FOUND) {
      keep = max(min(told[1], m), 1u);
      break;
    }
    from = to;
    if (answer == ANSWER_EARLIER) {
      fixed = __longlong_as_double((i64)((u64)told[2] | (u64)told[3] << 32));
      d = {{0.0, 0.0}, 0.0, 0};
      from = {INFINITY_F, 0};
    } else if (d.done >= m) {
      break;
    }
  }
  if (keep < m) {
    Rank end = nth_best(row, keep, &row.turn);
    cut_at(row, end.value, end.id + 1);
    row.sum_known = false;
  }
  return row;
}

// Tokens from which Zipf's exponent is estimated.
constexpr u32 ZIPF_BEST = 100;

// Tokens that the first mirostat algorithm keeps: see host/device/src/cpu/sample/mirostat.rs.
SLOW u32 mirostat_count(Row row, float mu, u32 vocab, u32* turn) {
  u32 m = 0;
  each_quad(row, [&](int i, float4 v) {
    u32 id = row.begin + i;
    m += (u32)row.kept(row.value(v.x), id) + (u32)row.kept(row.value(v.y), id + 1) +
         (u32)row.kept(row.value(v.z), id + 2) + (u32)row.kept(row.value(v.w), id + 3);
  });
  m = (u32)block_sum((double)m);
  const Slot* slots = exchange(row.turn++, {{m, 0, 0, 0, 0, 0, 0, 0}});
  m = 0;
  for (int r = 0; r < CTAS; ++r) m += slots[r].x[0];
  Rank to = {NEG_INF, 0};
  if (m > ZIPF_BEST) to = nth_best(row, ZIPF_BEST, &row.turn);
  u32 n = sort_between(row, {INFINITY_F, 0}, to);
  ++row.turn;
  Slot mine = {{0, 0, 0, 0, 0, 0, 0, 0}};
  if (cta_rank() == 0 && threadIdx.x < 32) {
    double products = 0.0, squares = 0.0;
    for (u32 i = threadIdx.x; i + 1 < n; i += 32) {
      double t = log((double)(i + 2) / (double)(i + 1));
      products += t * ((double)of_key(shared().hist[i]) - (double)of_key(shared().hist[i + 1]));
      squares += t * t;
    }
#pragma unroll
    for (int by = 16; by > 0; by /= 2) {
      products += __shfl_xor_sync(0xffffffffu, products, by);
      squares += __shfl_xor_sync(0xffffffffu, squares, by);
    }
    double s = products / squares, log_n = log((double)vocab), epsilon = s - 1.0;
    double share = epsilon == 0.0 ? log_n : -expm1(-epsilon * log_n) / epsilon;
    double k = round(pow(exp2((double)mu) / share, 1.0 / s));
    mine.x[0] = k >= (double)vocab ? vocab : k >= 1.0 ? (u32)k : 1u;
  }
  u32 k = from_first(row.turn++, mine)[0];
  *turn = row.turn;
  return k;
}

// Stages that remove tokens by rank or probability. All of a cluster call them together.
#pragma once

DEVICE void cut_at(Row& row, float value, u32 end) {
  row.cut = value;
  row.cut_end = end;
}

DEVICE void top_k(Row& row, u32 k) {
  Cut<BY_COUNT> cut = {row, 0.f, 0.f, 0};
  auto end = cut.find(k, INFINITY_F, TIES_KEPT);
  row.turn = end.turn;
  if (end.found && end.value > row.cut) {
    cut_at(row, end.value, 0xffffffffu);
    row.sum_known = false;
  }
}

DEVICE void top_p(Row& row, float p, int vocab, int per) {
  Cut<BY_MASS> cut = {row, 0.f, 0.f, min(20, __clz(per))};
  double want = (double)p * row.sum;
  // All tokens farther than this together have less than is left out.
  float far = p < 0.999f ? logf((float)vocab / ((1.f - p) * (float)row.sum)) + 0.01f : INFINITY_F;
  u64 target = (u64)(want * 1099511627776.0);
  auto end = cut.find(target > 0 ? target : 1, fmaxf(far, 0.f), TIES_BY_ID);
  row.turn = end.turn;
  if (end.found) {
    cut_at(row, end.value, end.id + 1);
    row.sum_known = end.total > 0;
    row.sum = (double)end.total * (1.0 / 1099511627776.0);
  }
}

DEVICE void min_p(Row& row, double log_p) {
  float bar = __double2float_ru((double)row.max + log_p);
  if (bar > row.cut) {
    // Just below the bar, none of whose equals go.
    cut_at(row, bar, 0xffffffffu);
    row.sum_known = false;
  }
}

DEVICE double block_sum(double x) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(0xffffffffu, x, by);
  if (threadIdx.x % 32 == 0) shared().doubles[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0.0;
  for (int w = 0; w < WARPS; ++w) sum += shared().doubles[w];
  __syncthreads();
  return sum;
}

// Three sums over all blocks.
struct Sums {
  double x[3];
};

// f adds a value that takes part to the three. One exchange: the caller takes the next turn.
template <class F> DEVICE Sums sums(const Row& row, F f) {
  Sums own = {{0.0, 0.0, 0.0}};
  each_quad(row, [&](int i, float4 v) {
    float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll 1
    for (int k = 0; k < 4; ++k) {
      float y = row.value(x[k]);
      if (row.kept(y, row.begin + i + k)) f(y, own.x);
    }
  });
  Slot mine = {{0, 0, 0, 0, 0, 0, 0, 0}};
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    u64 bits = (u64)__double_as_longlong(block_sum(own.x[k]));
    mine.x[2 * k] = (u32)bits;
    mine.x[2 * k + 1] = (u32)(bits >> 32);
  }
  const Slot* slots = exchange(row.turn, mine);
  Sums all = {{0.0, 0.0, 0.0}};
#pragma unroll 1
  for (int r = 0; r < CTAS; ++r) {
#pragma unroll
    for (int k = 0; k < 3; ++k)
      all.x[k] += __longlong_as_double((i64)((u64)slots[r].x[2 * k] | (u64)slots[r].x[2 * k + 1] << 32));
  }
  return all;
}

// With d the distance from the best: how many take part, and the sums of e^d and of d e^d. One exchange.
DEVICE Sums probability_sums(const Row& row) {
  return sums(row, [&](float y, double* x) {
    double d = (double)y - (double)row.max, e = exp(d);
    x[0] += 1.0;
    x[1] += e;
    if (e > 0.0) x[2] += d * e;
  });
}

// Distances of nearly equal tokens differ in their last bits: entropy and sum are those of doubles.
SLOW Row typical_p(Row row, float mass) {
  Sums s = probability_sums(row);
  ++row.turn;
  double log_sum = log(s.x[1]), entropy = log_sum - s.x[2] / s.x[1];
  u64 target = (u64)((double)mass * s.x[1] * 1099511627776.0);
  Cut<BY_TYPICAL> cut = {row, log_sum, entropy, 0};
  auto end = cut.find(target > 0 ? target : 1, INFINITY_F, TIES_KEPT);
  row.turn = end.turn;
  if (!end.found) return row;
  each_quad(row, [&](int i, float4 v) {
    float x[4] = {v.x, v.y, v.z, v.w};
    for (int k = 0; k < 4; ++k) {
      float y = row.value(x[k]);
      bool stays = row.kept(y, row.begin + i + k) && cut.distance(y) <= end.distance;
      row.w()[i + k] = stays ? y : NEG_INF;
    }
  });
  row.t = row.inverse = 1.f;
  cut_at(row, NEG_INF, 0);
  row.max_known = row.sum_known = false;
  __syncthreads();
  return row;
}

// ---- cuts at a probability or a logit -----------------------------------------------------------------------------

// Keeps values of at least the bar.
DEVICE void keep_from(Row& row, double bar) {
  float at = __double2float_ru(bar);
  if (at > row.cut) {
    cut_at(row, at, 0xffffffffu);
    row.sum_known = false;
  }
}

// Logit of a log-probability, at most the best one's.
DEVICE double probability_bar(const Row& row, double log_p) {
  return fmin((double)row.max, (double)row.max + log(row.sum) + log_p);
}

struct Spread {
  double count, entropy;
};

// How many take part, and their entropy in nats. One exchange.
SLOW Spread spread(const Row row) {
  Sums s = probability_sums(row);
  return {s.x[0], log(s.x[1]) - s.x[2] / s.x[1]};
}

DEVICE float dynamic_temperature(Row& row, const Op& op) {
  Spread s = spread(row);
  ++row.turn;
  double share = s.count > 1.0 ? fmin(fmax(s.entropy / log(s.count), 0.0), 1.0) : 0.0;
  double low = (double)__uint_as_float(op.a), high = (double)__uint_as_float(op.b);
  return (float)(low + (high - low) * pow(share, (double)__uint_as_float(op.c)));
}

SLOW Row top_n_sigma(Row row, float n) {
  Sums s = sums(row, [&](float y, double* x) {
    double d = (double)y - (double)row.max;
    x[0] += 1.0;
    x[1] += d;
    x[2] += d * d;
  });
  ++row.turn;
  double mean = s.x[1] / s.x[0];
  double variance = fmax(s.x[2] / s.x[0] - mean * mean, 0.0);
  keep_from(row, (double)row.max - (double)n * sqrt(variance));
  return row;
}

SLOW Row eta_cutoff(Row row, double log_epsilon) {
  Spread s = spread(row);
  ++row.turn;
  keep_from(row, probability_bar(row, fmin(log_epsilon, 0.5 * log_epsilon - s.entropy)));
  return row;
}

// Of the tokens of at least a probability only the least likely stays, with its equals.
SLOW Row exclude_top(Row row, double log_threshold) {
  float bar = __double2float_ru((double)row.max + log(row.sum) + log_threshold);
  float least = INFINITY_F;
  each_quad(row, [&](int i, float4 v) {
    float x[4] = {v.x, v.y, v.z, v.w};
    for (int k = 0; k < 4; ++k) {
      float y = row.value(x[k]);
      if (row.kept(y, row.begin + i + k) && y >= bar) least = fminf(least, y);
    }
  });
  least = -block_max(-least);
  __syncthreads();
  const Slot* slots = exchange(row.turn++, {{__float_as_uint(least), 0, 0, 0, 0, 0, 0, 0}});
  for (int r = 0; r < CTAS; ++r) least = fminf(least, __uint_as_float(slots[r].x[0]));
  if (!(least < row.max)) return row;
  each_quad(row, [&](int i, float4 v) {
    float x[4] = {v.x, v.y, v.z, v.w};
    for (int k = 0; k < 4; ++k) {
      float y = row.value(x[k]);
      row.w()[i + k] = row.kept(y, row.begin + i + k) && y <= least ? y : NEG_INF;
    }
  });
  row.t = row.inverse = 1.f;
  cut_at(row, NEG_INF, 0);
  row.max_known = row.sum_known = false;
  __syncthreads();
  return row;
}

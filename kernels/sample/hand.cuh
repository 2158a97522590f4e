// What a guest that chooses tokens is handed: the best candidates with their ranks, or whole rows, and hidden states.
//
// Included by draw.cu, behind what it needs of it. Ranks are exact: sorted bars split the row, and what lies between two
// of them is counted.
#pragma once

constexpr u32 MOST_CANDIDATES = 1024;
static_assert(MOST_CANDIDATES * sizeof(u64) == BINS * sizeof(u32), "candidates are sorted where the histogram was");
static_assert(MOST_CANDIDATES == 2 * THREADS, "a thread has two candidates");

// Candidates threadIdx.x and threadIdx.x + THREADS of the sorted list; the same in every block.
struct Two {
  u64 key[2];  // ~key_of(value) << 32 | id
  u32 rank[2];
  float reported[2];
};

DEVICE u32 token_of(u64 key) { return (u32)key; }
DEVICE float value_of(u64 key) { return of_key(~(u32)(key >> 32)); }

// Sorts `n` keys, a power of two, ascending. Begins and ends with the block's threads together.
template <class K> DEVICE void sort_keys(K* keys, u32 n) {
  for (u32 size = 2; size <= n; size *= 2) {
    for (u32 by = size / 2; by > 0; by /= 2) {
      __syncthreads();
      for (u32 i = threadIdx.x; i < n / 2; i += THREADS) {
        u32 a = 2 * i - (i & (by - 1)), b = a + by;
        K x = keys[a], y = keys[b];
        if ((x > y) == ((a & size) == 0)) keys[a] = y, keys[b] = x;
      }
    }
  }
  __syncthreads();
}

// First of `n` ascending keys that is not below `key`.
template <class K> DEVICE u32 first_from(const K* keys, u32 n, K key) {
  u32 low = 0, high = n;
  while (low < high) {
    u32 mid = (low + high) / 2;
    if (keys[mid] < key) low = mid + 1;
    else high = mid;
  }
  return low;
}

DEVICE u32 power_from(u32 n) {
  u32 size = 2;
  while (size < n) size *= 2;
  return size;
}

// The best `n`, sorted, in every block; how many there are. Ranks are those among w. Leaves the cluster's threads
// together.
SLOW u32 list_best(const Row row, u32 n, Two& two) {
  u64* keys = (u64*)shared().hist;
  Best b = best_of(row, n);
  // All blocks are behind their search: the histograms are free.
  u32 size = power_from(b.all);
  for (u32 i = b.all + threadIdx.x; i < size; i += THREADS) keys[i] = ~0ull;
  each_best(b, n, [&](u32 at, u32 id, float x) {
    u64 key = (u64)~key_of(x) << 32 | id;
    for (int r = 0; r < CTAS; ++r) peer_store(&keys[at], r, key);
  });
  cluster_sync();
  sort_keys(keys, size);
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    u32 j = threadIdx.x + k * THREADS;
    two.key[k] = j < b.all ? keys[j] : ~0ull;
    two.reported[k] = value_of(two.key[k]);
    two.rank[k] = first_from(keys, b.all, two.key[k] >> 32 << 32) + 1;
  }
  cluster_sync();
  return b.all;
}

// Ranks of the `n` listed among w, whatever order they have there. Called and left with the cluster's threads together.
SLOW void rank_among(const Row row, u32 n, Two& two) {
  u32* bars = shared().hist;                     // ~key_of(logit), so that ascending is best first
  u32* counts = shared().hist + MOST_CANDIDATES;
  u32 size = power_from(n);
  for (u32 i = threadIdx.x; i < size; i += THREADS) {
    counts[i] = 0;
    if (i >= n) bars[i] = 0xffffffffu;
  }
  // Each candidate's logit comes from the block that has it.
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    u32 j = threadIdx.x + k * THREADS;
    const float* at = j < n ? place(row, token_of(two.key[k])) : nullptr;
    if (at)
      for (int r = 0; r < CTAS; ++r) peer_store(&bars[j], r, ~key_of(*at));
  }
  cluster_sync();
  u32 mine[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    u32 j = threadIdx.x + k * THREADS;
    mine[k] = j < n ? bars[j] : 0xffffffffu;
    two.reported[k] = of_key(~mine[k]);
  }
  sort_keys(bars, size);
  u32 last = n > 0 ? bars[n - 1] : 0;
  // Counted at the first bar that is lower.
  each_quad(row, [&](int, float4 v) {
    float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll 1
    for (int k = 0; k < 4; ++k) {
      u32 key = ~key_of(x[k]);
      if (key < last) atomicAdd(&counts[first_from(bars, n, key + 1)], 1u);
    }
  });
  cluster_sync();
  u32 sum[2] = {0, 0};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    u32 j = threadIdx.x + k * THREADS;
    if (j < size)
      for (int r = 0; r < CTAS; ++r) sum[k] += peer_load(&counts[j], r);
  }
  cluster_sync();
#pragma unroll
  for (int k = 0; k < 2; ++k)
    if (threadIdx.x + k * THREADS < size) counts[threadIdx.x + k * THREADS] = sum[k];
  for (u32 by = 1; by < size; by *= 2) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      u32 j = threadIdx.x + k * THREADS;
      sum[k] = j >= by && j < size ? counts[j - by] : 0;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 2; ++k)
      if (threadIdx.x + k * THREADS < size) counts[threadIdx.x + k * THREADS] += sum[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 2; ++k)
    if (threadIdx.x + k * THREADS < n) two.rank[k] = counts[first_from(bars, n, mine[k])] + 1;
  cluster_sync();
}

// The slice's part of a row.
DEVICE void write_row(const Row& row, float* out) {
  for (int i = threadIdx.x; i < row.count; i += THREADS) out[row.begin + i] = row.w()[i];
}

DEVICE void write_hidden(const SampleParams& p, const Draw& draw) {
  if (draw.hidden_at < 0) return;
  float* out = p.floats + draw.hidden_at;
  i64 at = draw.hidden_row * p.hidden_stride;
  for (int i = cta_rank() * THREADS + threadIdx.x; i < p.hidden_width; i += CTAS * THREADS)
    out[i] = p.hidden_f32 ? ((const float*)p.hidden)[at + i] : to_float(((const model_t*)p.hidden)[at + i]);
}

// After the stages: `row` can be drawn from, `raw` is of the logits before them.
SLOW void hand(const SampleParams& p, int d, Row row, RawStats raw) {
  const Draw& draw = p.draws[d];
  bool lists = draw.kind == DRAW_CANDIDATES, processed = draw.report == REPORT_PROCESSED, changed = draw.op_count > 0;
  RawStats after = {row.max, row.sum}, reported = processed ? after : raw;
  u32 top = min(draw.top, (u32)p.vocab), tops = 0, listed = 0;
  float entropy = 0.f;
  Two two;
  settle(row);
  if (lists) {
    entropy = (float)fmax(spread(row).entropy, 0.0);
    ++row.turn;
    listed = list_best(row, min(draw.candidates, MOST_CANDIDATES), two);
  } else {
    write_row(row, p.floats + draw.row_at);
  }
  if (processed && top > 0) {
    tops = best_tokens(row, top, p.tops + draw.top_at);
    cluster_sync();
  }
  if (changed) {
    __syncthreads();
    float high;
    bool bad;
    load_slice(row, p.logits + draw.row * p.stride + row.begin, draw.mask >= 0 ? p.pool + draw.mask : nullptr, &high, &bad);
    cluster_sync();
    if (!lists) write_row(row, p.floats + draw.raw_at);
    else if (!processed) rank_among(row, listed, two);
  }
  if (!processed && top > 0) {
    row.max = raw.max;
    tops = best_tokens(row, top, p.tops + draw.top_at);
  }
  write_hidden(p, draw);
  if (cta_rank() != 0) return;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    u32 j = threadIdx.x + k * THREADS;
    if (lists && j < listed)
      p.lists[draw.list_at + j] = {token_of(two.key[k]), value_of(two.key[k]), two.reported[k], two.rank[k]};
  }
  if (threadIdx.x == 0) {
    double log_sum = log(after.sum);
    p.results[d] = {0, FAIL_NONE, 0.f, 0.f, 0, tops, reported.max, 0.f, log(reported.sum), 0.f,
                    listed, (float)((double)after.max + log_sum), entropy};
    if (p.sampled) p.sampled[d] = 0;
  }
}

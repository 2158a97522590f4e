// arch: sm_80+
// variants: MODEL_BF16 CLUSTER=8; MODEL_F16 CLUSTER=1; MODEL_F32 CLUSTER=8; MODEL_F32 CLUSTER=1
//
// Chooses tokens: mask, stages in their order, draw, and what is reported of the choice. See host/engine/src/sampling.rs
// for what the stages mean and host/device/src/cpu/sample for the reference.
//
// CLUSTER blocks share a draw (one on machines before sm_90, where the slice lies in `scratch` instead of shared memory).
// Nothing depends on other draws. LOGITS_F32: the logits are f32 whatever model_t is.
#include "include/base.cuh"
#include "sample/cluster.cuh"
#include "sample/philox.cuh"
#include "sample/row.cuh"
#include "sample/cut.cuh"
#include "sample/changes.cuh"
#include "sample/truncations.cuh"
#include "sample/sorted.cuh"

#if defined(LOGITS_F32)
typedef float logit_t;
#else
typedef model_t logit_t;
#endif

enum Kind { DRAW_GREEDY, DRAW_SAMPLE, DRAW_TARGET, DRAW_CANDIDATES, DRAW_ROW };

// Of which logits log-probabilities, ranks and best tokens are: before the stages or after them.
enum Report { REPORT_RAW, REPORT_PROCESSED };

enum Failure { FAIL_NONE, FAIL_NOT_FINITE, FAIL_MASKED, FAIL_NONE_LEFT, FAIL_TEMPERATURE, FAIL_NO_PROBABILITIES };

// 96 bytes. Offsets are in words of `pool`.
struct Draw {
  int row;          // of the logits; -1: padding
  u32 kind;
  RandomKey random;
  u32 ops, op_count;
  int mask;         // offset of [vocab / 32] words, -1: none
  u32 top;          // best tokens to report
  u32 top_at;       // where, in pairs
  int target;       // DRAW_TARGET: the token
  u32 unused[4];
  u32 report;       // Report
  u32 candidates;   // DRAW_CANDIDATES: how many, at most MOST_CANDIDATES
  u32 list_at;      // where, in entries of `lists`
  u32 row_at;       // DRAW_ROW: where the row goes, in words of `floats`
  u32 raw_at;       // and the row before its stages, if it has any
  int hidden_at;    // where the hidden state goes; -1: nowhere
  int hidden_row;
  u32 padding;
};

// 64 bytes.
struct Result {
  int token;
  u32 failure;      // Failure, and the stage's op << 8
  float logprob;
  float processed;
  u32 rank;
  u32 top_count;    // tokens above -inf reported; in no order
  float max;        // of the logits that are reported
  float logit;      // the token's among them
  double log_sum;   // ln of the sum of e^(logit - max)
  float surprise;   // bits, of the token where it entered a mirostat stage
  u32 listed;         // DRAW_CANDIDATES: those above -inf,
  float log_sum_exp;  // after all stages,
  float entropy;      // nats
  u32 unused[2];
};

// What a guest is told of a candidate.
struct Candidate {
  u32 token;
  float logit;     // after all stages
  float reported;  // among the logits that are reported
  u32 rank;        // of which so many are higher, plus one
};

struct SampleParams {
  const logit_t* logits;
  i64 stride;            // elements from row to row
  const Draw* draws;     // [count]
  const u32* pool;       // ops (16-byte aligned), lists, masks
  Result* results;       // [count]
  uint2* tops;           // (id, f32 logit)
  int* sampled;          // [count] tokens, 0 where none could be chosen; or null
  float* scratch;        // [gridDim.x, vocab rounded up to 8], without clusters
  Candidate* lists;      // best first
  float* floats;         // rows [vocab] and hidden states [hidden_width]
  const void* hidden;    // rows of model_t, or of f32 if hidden_f32 says so
  i64 hidden_stride;     // elements from row to row
  int hidden_width;
  int hidden_f32;
  int count;
  int vocab;
};

template <class T> DEVICE void unpack(uint4 v, float* x) {
  u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if constexpr (sizeof(T) == 4) {
      x[k] = __uint_as_float(words[k]);
    } else {
      float2 two = unpack2<T>(words[k]);
      x[2 * k] = two.x, x[2 * k + 1] = two.y;
    }
  }
}

// Reads the slice's logits under the mask into w. Largest one, and whether one is NaN or +inf, of this thread's.
DEVICE void load_slice(const Row& row, const logit_t* from, const u32* mask, float* high, bool* bad) {
  constexpr int N = vec16<logit_t>::N, U = 4;
  float most = NEG_INF;
  bool wrong = false;
  int full = ((u64)from % 16 == 0) ? row.count / N : 0;
  for (int at = threadIdx.x; at < full; at += THREADS * U) {
    uint4 r[U];
#pragma unroll
    for (int u = 0; u < U; ++u)
      if (at + u * THREADS < full) r[u] = ((const uint4*)from)[at + u * THREADS];
#pragma unroll
    for (int u = 0; u < U; ++u) {
      int v = at + u * THREADS;
      if (v >= full) break;
      float x[N];
      unpack<logit_t>(r[u], x);
      u32 allowed = 0xffffffffu;
      if (mask) {
        u32 id = row.begin + v * N;
        allowed = mask[id / 32] >> (id % 32);
      }
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if (mask && !(allowed >> k & 1)) x[k] = NEG_INF;
        most = fmaxf(most, x[k]);
        wrong |= !(x[k] < INFINITY_F);
      }
#pragma unroll
      for (int k = 0; k < N; k += 4) *(float4*)(row.w() + v * N + k) = make_float4(x[k], x[k + 1], x[k + 2], x[k + 3]);
    }
  }
#pragma unroll 8
  for (int i = full * N + threadIdx.x; i < row.count; i += THREADS) {
    float x = to_float(from[i]);
    u32 id = row.begin + i;
    if (mask && !(mask[id / 32] >> (id % 32) & 1)) x = NEG_INF;
    most = fmaxf(most, x);
    wrong |= !(x < INFINITY_F);
    row.w()[i] = x;
  }
  int tail = row.count + threadIdx.x;
  if (tail < row.padded) row.w()[tail] = NEG_INF;
  *high = most;
  *bad = wrong;
}

// ---- the draw -----------------------------------------------------------------------------------------------------

struct Chosen {
  u32 token;
  float value;  // after all stages
  float w;      // as it stands in the slice
};

// The token and its values, from its own block.
SLOW Chosen look_up(const Row row, u32 token) {
  Slot mine = {{0, 0, 0, 0, 0, 0, 0, 0}};
  if (float* at = place(row, token)) mine = {{1, __float_as_uint(*at), __float_as_uint(row.value(*at)), 0, 0, 0, 0, 0}};
  const Slot* slots = exchange(row.turn, mine);
  Chosen c = {token, NEG_INF, NEG_INF};
  for (int r = 0; r < CTAS; ++r)
    if (slots[r].x[0]) c = {token, __uint_as_float(slots[r].x[2]), __uint_as_float(slots[r].x[1])};
  return c;
}

// Gumbel-max over what takes part: near scores for all that could win, exact ones for the nearest. Also the sum, where
// it is not known.
DEVICE Chosen gumbel(Row& row, const RandomKey& random) {
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  bool need_sum = !row.sum_known;
  float near = 2e-5f + 4.8e-7f * (fabsf(row.max) + 20.f);
  float bar = row.max + noise_near(word_of(random_words(random, row.arg / 4), row.arg)) - 2.f * near;
  float first = NEG_INF, second = NEG_INF;
  u32 first_id = 0, second_id = 0;
  float sum = 0.f;
  for (int base = warp * 128; base < row.padded; base += WARPS * 128) {
    int i = base + lane * 4;
    float4 v = make_float4(NEG_INF, NEG_INF, NEG_INF, NEG_INF);
    if (i < row.padded) v = *(const float4*)(row.w() + i);
    float y[4] = {row.value(v.x), row.value(v.y), row.value(v.z), row.value(v.w)};
    float most = NEG_INF;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      y[k] = row.kept(y[k], row.begin + i + k) ? y[k] : NEG_INF;
      most = fmaxf(most, y[k]);
    }
    if (need_sum && most > NEG_INF) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sum += exp_of(y[k] - row.max);
    }
    bool better = false;
    if (most >= bar - MOST_NOISE) {
      uint4 words = random_words(random, (row.begin + i) / 4);
      u32 word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        // The noise reaches what is missing only if 1 - u <= -ln u <= e^(value - bar).
        if (complement(word[k]) <= exp_of(y[k] - bar)) {
          float score = y[k] + noise_near(word[k]);
          u32 id = row.begin + i + k;
          if (score > first) {
            second = first, second_id = first_id;
            first = score, first_id = id;
            better = true;
          } else if (score > second) {
            second = score, second_id = id;
          }
        }
      }
    }
    if (__any_sync(0xffffffffu, better)) bar = fmaxf(bar, warp_max(first) - 2.f * near);
  }
  sum = need_sum ? warp_sum(sum) : 0.f;
  u32 k = warp_max_u32(key_of(first));
  if (lane == 0) {
    shared().words[warp] = k;
    shared().words[WARPS + warp] = __float_as_uint(sum);
  }
  if (threadIdx.x == 0) {
    shared().best = 0;
    shared().best_id = 0xffffffffu;
  }
  __syncthreads();
  float most = of_key(warp_max_u32(lane < WARPS ? shared().words[lane] : 0u));
  u64 keys[2] = {0, 0};
  if (first > NEG_INF && first >= most - 2.f * near) {
    keys[0] = key_of((double)row.value(*place(row, first_id)) +
                     noise_exact(word_of(random_words(random, first_id / 4), first_id)));
    atomicMax(&shared().best, keys[0]);
    if (second > NEG_INF && second >= most - 2.f * near) {
      keys[1] = key_of((double)row.value(*place(row, second_id)) +
                       noise_exact(word_of(random_words(random, second_id / 4), second_id)));
      atomicMax(&shared().best, keys[1]);
    }
  }
  __syncthreads();
  u64 best = shared().best;
  if (keys[0] == best && best) atomicMin(&shared().best_id, first_id);
  if (keys[1] == best && best) atomicMin(&shared().best_id, second_id);
  __syncthreads();
  Slot mine;
  if (warp == 0) {
    sum = warp_sum(lane < WARPS ? __uint_as_float(shared().words[WARPS + lane]) : 0.f);
    float w = best ? *place(row, shared().best_id) : NEG_INF;
    mine = {{(u32)best, (u32)(best >> 32), shared().best_id, __float_as_uint(w), __float_as_uint(sum), 0, 0, 0}};
  }
  const Slot* slots = exchange(row.turn++, mine);
  u64 high = 0;
  Chosen c = {0, NEG_INF, NEG_INF};
  double total = 0.0;
#pragma unroll 1
  for (int r = 0; r < CTAS; ++r) {
    u64 key = (u64)slots[r].x[0] | (u64)slots[r].x[1] << 32;
    if (key > high || (key == high && key && slots[r].x[2] < c.token)) {
      high = key;
      c.token = slots[r].x[2];
      c.w = __uint_as_float(slots[r].x[3]);
    }
    total += (double)__uint_as_float(slots[r].x[4]);
  }
  c.value = row.value(c.w);
  if (need_sum) {
    row.sum = total;
    row.sum_known = true;
  }
  return c;
}

// Tokens with a logit above `logit`, over all blocks.
DEVICE u32 count_above(Row& row, float logit) {
  u32 n = 0;
  each_quad(row, [&](int, float4 v) {
    n += (u32)(v.x > logit) + (u32)(v.y > logit) + (u32)(v.z > logit) + (u32)(v.w > logit);
  });
  n = warp_sum_u32(n);
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) shared().words[warp] = n;
  __syncthreads();
  Slot mine;
  if (warp == 0) mine = {{warp_sum_u32(lane < WARPS ? shared().words[lane] : 0u), 0, 0, 0, 0, 0, 0, 0}};
  const Slot* slots = exchange(row.turn++, mine);
  u32 all = 0;
  for (int r = 0; r < CTAS; ++r) all += slots[r].x[0];
  return all;
}

struct Best {
  Row row;   // cut to the best
  u32 mine;  // of them this thread's,
  u32 at;    // which begin there in a common list
  u32 all;
};

// The best `top` tokens above -inf; w holds what is compared, and row.max is its largest.
SLOW Best best_of(Row row, u32 top) {
  row.t = row.inverse = 1.f;
  cut_at(row, NEG_INF, 0);
  Cut<BY_COUNT> cut = {row, 0.f, 0.f, 0};
  auto end = cut.find(top, INFINITY_F, TIES_BY_ID);
  row.turn = end.turn;
  if (end.found) cut_at(row, end.value, end.id + 1);
  // Others may still read this block's list_count.
  if (threadIdx.x == 0) shared().all_count = 0;
  __syncthreads();
  u32 mine = 0;
  each_quad(row, [&](int i, float4 v) {
    u32 id = row.begin + i;
    mine += (u32)row.kept(v.x, id) + (u32)row.kept(v.y, id + 1) + (u32)row.kept(v.z, id + 2) + (u32)row.kept(v.w, id + 3);
  });
  u32 at = mine ? atomicAdd(&shared().all_count, mine) : 0;
  __syncthreads();
  const Slot* slots = exchange(row.turn++, {{shared().all_count, 0, 0, 0, 0, 0, 0, 0}});
  u32 all = 0;
  for (int r = 0; r < CTAS; ++r) {
    if (r < (int)cta_rank()) at += slots[r].x[0];
    all += slots[r].x[0];
  }
  return {row, mine, at, min(all, top)};
}

// Calls f(place in the list, id, value) for this thread's best tokens.
template <class F> DEVICE void each_best(const Best& b, u32 top, F f) {
  if (b.mine == 0) return;
  u32 at = b.at;
  each_quad(b.row, [&](int i, float4 v) {
    float x[4] = {v.x, v.y, v.z, v.w};
    for (int k = 0; k < 4; ++k) {
      u32 id = b.row.begin + i + k;
      if (b.row.kept(x[k], id) && at < top) f(at++, id, x[k]);
    }
  });
}

// Writes the best `top` tokens above -inf in any order; their number. The caller's exchanges go on after a cluster_sync.
SLOW u32 best_tokens(Row row, u32 top, uint2* out) {
  Best b = best_of(row, top);
  each_best(b, top, [&](u32 at, u32 id, float x) { out[at] = make_uint2(id, __float_as_uint(x)); });
  return b.all;
}

#include "sample/hand.cuh"

constexpr u32 NONE_ENTERED = 0xffffffffu;

// The row that entered a mirostat stage.
struct Entry {
  u32 op;           // NONE_ENTERED: there is none
  float max;
  double sum;
  bool moved;       // values have changed since
};

// A chosen token's value before op `until`: w holds raw logits and loses them. Truncations kept the token, and cut nothing
// from its value.
SLOW float value_before(Row row, const Op* ops, u32 until, const u32* pool, u32 token) {
  u32 heats = 0;
  for (u32 i = 0; i < until; ++i) {
    Op op = ops[i];
    if (op.code == OP_TEMPERATURE) divide(row, __uint_as_float(op.a));
    if (op.code == OP_DYNAMIC) divide(row, shared().heats[heats++ % HEATS]);
    if (op.code == OP_BIAS || op.code == OP_PENALTIES || op.code == OP_WATERMARK) change(row, op, pool + op.a);
  }
  return look_up(row, token).w;
}

DEVICE void fail(const SampleParams& p, int d, u32 why, u32 op) {
  if (cta_rank() == 0 && threadIdx.x == 0) {
    p.results[d] = {0, why | op << 8, 0.f, 0.f, 0, 0, 0.f, 0.f, 0.0, 0.f, 0};
    if (p.sampled) p.sampled[d] = 0;
  }
}

DEVICE void sample_one(const SampleParams& p, int d, Row& row, int per) {
  const Draw& draw = p.draws[d];
  const logit_t* from = p.logits + draw.row * p.stride + row.begin;
  const u32* mask = draw.mask >= 0 ? p.pool + draw.mask : nullptr;
  const Op* ops = (const Op*)(p.pool + draw.ops);
  u32 op_count = draw.op_count, kind = draw.kind, next = 0;
  row.t = row.inverse = 1.f;
  cut_at(row, NEG_INF, 0);

  float high;
  bool bad;
  load_slice(row, from, mask, &high, &bad);
  // A temperature that comes first shares the pass over the raw logits.
  auto heat = [&](float t) {
    row.t = t;
    row.inverse = __frcp_rn(t);
  };
  auto usual = [](float t) { return t > 1e-3f && t < 1e3f; };
  if (op_count > 0 && ops[0].code == OP_TEMPERATURE && usual(__uint_as_float(ops[0].a))) {
    heat(__uint_as_float(ops[0].a));
    next = 1;
  }
  u32 any = __syncthreads_or(bad);
  high = block_max(high);
  __syncthreads();
  RawStats raw;
  sum_values(row, high, any, &raw);
  if (kind != DRAW_TARGET) {
    if (row.bad) return fail(p, d, FAIL_NOT_FINITE, 0);
    if (raw.max == NEG_INF) return fail(p, d, FAIL_MASKED, 0);
  }

  // Whether w still holds the raw logits.
  bool pristine = true;
  Entry entry = {NONE_ENTERED, 0.f, 0.0, false};
  u32 heats = 0;
  for (; next < op_count; ++next) {
    Op op = ops[next];
    bool heating = op.code == OP_TEMPERATURE || op.code == OP_DYNAMIC;
    if (heating || op.code == OP_BIAS || op.code == OP_PENALTIES || op.code == OP_WATERMARK) entry.moved = true;
    if (changes(op.code)) {
      settle(row);
      change(row, op, p.pool + op.a);
      pristine = false;
      row.max_known = row.sum_known = false;
      continue;
    }
    bool wants_sum = op.code == OP_TOP_P || op.code >= OP_TYPICAL_P;
    bool of_mass = op.code == OP_TOP_P || op.code == OP_TYPICAL_P || op.code == OP_TAIL_FREE;
    if (of_mass && __uint_as_float(op.a) >= 1.f) continue;
    if (op.code == OP_TOP_K && (op.a == 0 || op.a >= (u32)p.vocab)) continue;
    if (op.code != OP_TEMPERATURE) {
      if (!row.max_known || (wants_sum && !row.sum_known)) row = measured(row);
      if (!usable(row)) {
        if (wants_sum) return fail(p, d, FAIL_NO_PROBABILITIES, next);
        continue;
      }
    }
    if (heating) {
      float t = __uint_as_float(op.a);
      if (op.code == OP_DYNAMIC) {
        t = dynamic_temperature(row, op);
        if (threadIdx.x == 0) shared().heats[heats % HEATS] = t;
        ++heats;
      }
      if (!(t > 0.f && t < INFINITY_F)) return fail(p, d, FAIL_TEMPERATURE, next);
      if (t == 1.f) continue;
      if (row.t != 1.f || row.cut > NEG_INF || !usual(t)) {
        settle(row);
        pristine = false;
      }
      if (usual(t)) heat(t);
      else divide(row, t);
      row.max_known = row.sum_known = false;
      continue;
    }
    switch (op.code) {
      case OP_TOP_K: top_k(row, op.a); break;
      case OP_TOP_P: top_p(row, __uint_as_float(op.a), p.vocab, per); break;
      case OP_MIN_P: min_p(row, log_of(op)); break;
      case OP_TYPICAL_P:
        row = typical_p(row, __uint_as_float(op.a));
        pristine = false;
        break;
      case OP_SIGMA: row = top_n_sigma(row, __uint_as_float(op.a)); break;
      case OP_EPSILON: keep_from(row, probability_bar(row, log_of(op))); break;
      case OP_ETA: row = eta_cutoff(row, log_of(op)); break;
      case OP_TAIL_FREE: row = tail_free(row, __uint_as_float(op.a)); break;
      case OP_XTC:
        row = exclude_top(row, log_of(op));
        pristine = false;
        break;
      case OP_MIROSTAT1:
      case OP_MIROSTAT2:
        // What enters stands in w from here on, until an op moves it.
        if (row.t != 1.f) {
          settle(row);
          pristine = false;
        }
        entry = {next, row.max, row.sum, false};
        if (op.code == OP_MIROSTAT2) {
          keep_from(row, probability_bar(row, log_of(op)));
        } else {
          u32 k = mirostat_count(row, __uint_as_float(op.a), (u32)p.vocab, &row.turn);
          if (k < (u32)p.vocab) top_k(row, k);
        }
        break;
    }
  }
  bool draws = kind == DRAW_SAMPLE;
  if (!row.max_known || (!row.sum_known && !draws)) row = measured(row);
  if (kind != DRAW_TARGET && !usable(row)) return fail(p, d, FAIL_NONE_LEFT, 0);
  if (kind >= DRAW_CANDIDATES) return hand(p, d, row, raw);

  Chosen chosen;
  bool sure = kind == DRAW_GREEDY && pristine && row.t == 1.f;
  if (draws) chosen = gumbel(row, draw.random);
  else if (sure) chosen = {row.arg, row.max, row.max};
  else {
    chosen = look_up(row, kind == DRAW_TARGET ? (u32)draw.target : row.arg);
    ++row.turn;
  }
  float processed = (float)((double)chosen.value - (double)row.max - log(row.sum));

  float logit = chosen.w, entered = chosen.w;
  u32 rank = 1, tops = 0;
  if (draw.report == REPORT_PROCESSED) {
    settle(row);
    logit = chosen.value;
    raw = {row.max, row.sum};
  } else if (!pristine) {
    __syncthreads();
    load_slice(row, from, mask, &high, &bad);
    __syncthreads();
    cut_at(row, NEG_INF, 0);
    row.t = row.inverse = 1.f;
    logit = look_up(row, chosen.token).w;
    ++row.turn;
  }
  if (!sure) rank += count_above(row, logit);
  if (draw.top > 0) {
    row.max = raw.max;
    tops = best_tokens(row, min(draw.top, (u32)p.vocab), p.tops + draw.top_at);
  }
  float surprise = 0.f;
  if (entry.op != NONE_ENTERED) {
    if (entry.moved) {
      // Others may still read what the last exchange brought them.
      cluster_sync();
      if (draw.report == REPORT_PROCESSED) {
        load_slice(row, from, mask, &high, &bad);
        __syncthreads();
      }
      row.t = row.inverse = 1.f;
      cut_at(row, NEG_INF, 0);
      entered = value_before(row, ops, entry.op, p.pool, chosen.token);
    }
    float log_prob = (float)((double)entered - (double)entry.max - log(entry.sum));
    surprise = (float)(-(double)log_prob / 0.6931471805599453);
  }
  if (cta_rank() == 0 && threadIdx.x == 0) {
    double log_sum = log(raw.sum);
    float logprob = (float)((double)logit - (double)raw.max - log_sum);
    if (kind == DRAW_TARGET) processed = logprob;
    p.results[d] = {(int)chosen.token, FAIL_NONE, logprob, processed, rank, tops, raw.max, logit, log_sum, surprise, 0};
    if (p.sampled) p.sampled[d] = (int)chosen.token;
  }
}

// Blocks of a multiprocessor, which overlap each other's waiting.
#ifndef BLOCKS
#define BLOCKS 2
#endif

#if CLUSTER > 1 && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)
#define IN_CLUSTERS __cluster_dims__(CLUSTER, 1, 1)
#else
#define IN_CLUSTERS
#endif

static_assert(sizeof(Draw) == 96 && sizeof(Result) == 64 && sizeof(Candidate) == 16 && sizeof(Op) == 16, "the host has other sizes");

// A cluster (without them a block) takes every gridDim.x / CTAS-th draw. Dynamic shared memory: Shared, then the slice.
extern "C" __global__ void IN_CLUSTERS __launch_bounds__(THREADS, BLOCKS) sample(const __grid_constant__ SampleParams p) {
  cluster_enter();
  wait_for_previous();
  cluster_entered();
  let_next_start();
  int per = ((p.vocab + CTAS - 1) / CTAS + 7) / 8 * 8;
  Row row;
#if !CLUSTERED
  row.slice = p.scratch + (i64)blockIdx.x * per;
#endif
  row.begin = cta_rank() * per;
  row.count = max(0, min(per, p.vocab - (int)row.begin));
  row.padded = (row.count + 3) / 4 * 4;
  row.turn = 0;
  for (int d = blockIdx.x / CTAS; d < p.count; d += gridDim.x / CTAS) {
    if (p.draws[d].row < 0) continue;
    sample_one(p, d, row, per);
    // Others may still read this block's shared memory.
    cluster_sync();
  }
}

struct BringParams {
  const uint4* from;  // page-locked host memory
  uint4* to;
  int count;
};

// Draws and their lists from the host. What it reads and writes no earlier kernel that may still run touches, so it only
// ends after those.
extern "C" __global__ void __launch_bounds__(256) bring(const __grid_constant__ BringParams p) {
  let_next_start();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += gridDim.x * blockDim.x) p.to[i] = p.from[i];
  wait_for_previous();
}

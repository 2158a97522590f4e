// What the prefill attention kernels share: their plan, and the softmax of score tiles in matrix fragments.
//
// A query row is a (token, head of the group) pair: row = token * GROUP + head, so that the heads that share keys share tiles.
// Keys are taken in tiles that start at multiples of KV_TILE positions, last tile first, and nothing of a row's arithmetic
// depends on the other rows or on where the tile of queries begins: a row's result is bitwise the same in any batch or chunk.
//
// Defines:
//   MODEL_BF16 | MODEL_F16
//   K_DIM, V_DIM elements of a key (and query) head and of a value head; multiples of 8, at most 256
//   GROUP        query heads per key head
//   BLOCK_SIZE   positions of a cache block; a multiple of 16 (default 16)
//   WINDOW       a query sees the last `window` positions, itself included
//   SOFTCAP      scores are softcap * tanh(q k scale / softcap)
//   ALIBI        slopes[head] * (key position - query position) is added to scores
//   SINKS        sinks[head] is the score of a key that has no value
//   PREFIX       tokens of a row's prefix see all of it; it is computed in one chunk
#pragma once
#include "attention/scores.cuh"

#ifndef BLOCK_SIZE
#define BLOCK_SIZE 16
#endif
#ifdef WINDOW
static constexpr bool HAS_WINDOW = true;
#else
static constexpr bool HAS_WINDOW = false;
#endif
#if defined(SOFTCAP) || defined(ALIBI)
static constexpr bool TRANSFORMED = true;  // scores are brought to log2 units before the largest is taken
#else
static constexpr bool TRANSFORMED = false;
#endif
static_assert(K_DIM % 8 == 0 && K_DIM <= 256 && V_DIM % 8 == 0 && V_DIM <= 256 && BLOCK_SIZE % 16 == 0, "shape");

// A tile of queries: consecutive tokens of one sequence.
struct Entry {
  int token;       // first row of q and out
  int tokens;      // at least 1, at most the kernel's TOKENS
  int position;    // of the first token in its sequence
  int kv_len;      // positions in the cache
  int slot;        // line of the block tables
  int prefix_len;  // for PREFIX; at most kv_len
  int unused[2];
};

// A step's work. An item is an entry times a KV head. Heads are taken `heads` at a time, all entries of the first group of heads
// coming first; within a group, item i is entry i / heads, head i % heads. The host orders entries so that those that run at
// the same time share keys that fit in L2, long ones before short ones.
// A block begins with item blockIdx.x; further ones are drawn in turn, one for each that is computed. So the draw that gives
// count * kv_heads - 1 is the last, and sets `turn` back to 0.
struct Plan {
  int count;   // entries
  u32 turn;    // items drawn; 0 between launches
  int heads;   // divides kv_heads
  int unused[5];
  Entry entries[1];  // [count]
};

// What both kernels are told besides where q and the cache are.
struct PrefillArgs {
  model_t* out;  // [tokens, heads * V_DIM], rows aligned to 16 bytes
  i64 out_stride;
  Plan* plan;
  const int* tables;    // [slots, table_stride]
  const float* slopes;  // [heads], ALIBI
  const float* sinks;   // [heads], SINKS
  int table_stride;
  int kv_heads;
  int window;
  float scale;
  float softcap;
  int unused;
};

// First position that a query does not see.
DEVICE int visible_to(int position, int prefix_len) {
#ifdef PREFIX
  return max(position + 1, prefix_len);
#else
  return position + 1;
#endif
}

// An item as the threads that compute it need it.
struct Item {
  int token, tokens, position, kv_len;
  int head, from, to, prefix_len;  // tiles of keys [from, to)
  int slot;
};
template <int TILE> DEVICE Item make_item(const Plan* plan, u32 index, u32 count, u32 heads, int window) {
  u32 group = index / (count * heads), in_group = index % (count * heads);
  const int4* from = (const int4*)(plan->entries + in_group / heads);
  int4 a = from[0], b = from[1];
  Entry e = {a.x, a.y, a.z, a.w, b.x, b.y, {0, 0}};
  Item item = {e.token, e.tokens, e.position, e.kv_len, (int)(group * heads + in_group % heads), 0, 0, e.prefix_len, e.slot};
  item.from = HAS_WINDOW ? max(e.position - window + 1, 0) / TILE : 0;
  item.to = (min(visible_to(e.position + e.tokens - 1, e.prefix_len), e.kv_len) + TILE - 1) / TILE;
  return item;
}
// The item after this one; one thread of the block.
DEVICE u32 draw_item(Plan* plan, u32 total) {
  u32 drawn = atomicAdd(&plan->turn, 1);
  if (drawn == total - 1) plan->turn = 0;
  return drawn + gridDim.x;
}

// A query row of a thread.
struct RowState {
  float most;   // unit of the weights, in units of scores: about the largest score so far
  float total;  // this thread's part of the sum of weights
  int visible;  // positions [lowest, visible) are seen
  int lowest;
  int position;
  int head;     // of all query heads
  float slope;  // times log2(e)
};

// Online softmax of two query rows of a warp's 16, lane / 4 and lane / 4 + 8 (Milakov and Gimelshein 2018). A tile of scores of
// N keys is s[N / 2]: element 4 j + 2 r + i is row r's score of key 8 j + 2 (lane % 4) + i.
struct Softmax {
  const PrefillArgs& p;
  float to_log2;  // raw scores times this are in log2 units
  RowState rows[2];
  int clear_from, clear_to;  // tiles that all tokens of the item see whole

  DEVICE explicit Softmax(const PrefillArgs& p) : p(p), to_log2(p.scale * LOG2E) {}

  // `first_row`: of the item's rows, the one that this thread's row 0 is.
  template <int TILE> DEVICE void begin(const Item& item, int first_row) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = first_row + 8 * r;
      RowState& state = rows[r];
      state.position = item.position + row / GROUP;
      state.visible = visible_to(state.position, item.prefix_len);
      state.lowest = state.position - p.window + 1;
      state.head = item.head * GROUP + row % GROUP;
      state.most = -INFINITY_F;
      state.total = 0.f;
#ifdef ALIBI
      state.slope = p.slopes[state.head] * LOG2E;
#endif
    }
    clear_to = visible_to(item.position, item.prefix_len) / TILE;
    clear_from = HAS_WINDOW ? (max(item.position + item.tokens - p.window, 0) + TILE - 1) / TILE : 0;
  }

  // Scores of a tile become weights in place; `shrink` multiplies what was summed before.
  template <int N> DEVICE void run(float (&s)[N], int tile, float (&shrink)[2]) {
    int first = tile * (2 * N) + threadIdx.x % 4 * 2;  // position of s[0]
    if constexpr (TRANSFORMED) {
#ifdef SOFTCAP
      float inner = 2.f * to_log2 / p.softcap, outer = p.softcap * LOG2E;
#endif
#pragma unroll
      for (int i = 0; i < N; i++) {
#ifdef SOFTCAP
        s[i] = fmaf(-2.f * outer, __fdividef(1.f, exp2_fast(s[i] * inner) + 1.f), outer);
#else
        s[i] *= to_log2;
#endif
#ifdef ALIBI
        s[i] = fmaf(rows[i / 2 % 2].slope, (float)(first - rows[i / 2 % 2].position + i / 4 * 8 + i % 2), s[i]);
#endif
      }
    }
    float unit = TRANSFORMED ? 1.f : to_log2;
    if (tile >= clear_to || tile < clear_from) {
      int visible[2] = {rows[0].visible - first, rows[1].visible - first};
      int lowest[2] = {rows[0].lowest - first, rows[1].lowest - first};
#pragma unroll
      for (int i = 0; i < N; i++) {
        int r = i / 2 % 2, c = i / 4 * 8 + i % 2;
        if (c >= visible[r] || (HAS_WINDOW && c < lowest[r])) s[i] = -INFINITY_F;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      RowState& row = rows[r];
      float most = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
      for (int j = 1; j < N / 4; j++) most = fmaxf(most, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      // The unit changes only when a weight would exceed 2^8, so that sums are rarely scaled.
      if ((most - row.most) * unit <= 8.f) most = row.most;
      shrink[r] = most == row.most ? 1.f : exp2_fast((row.most - most) * unit);
      row.most = most;
      float base = finite_base(most) * unit, sum = 0.f;
#pragma unroll
      for (int j = 0; j < N / 4; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float& x = s[4 * j + 2 * r + i];
          x = exp2_fast(fmaf(x, unit, -base));
          sum += x;
        }
      }
      row.total = row.total * shrink[r] + sum;
    }
  }

  // What the weighted sums of row r are multiplied by at the end. All four lanes of a row call it.
  DEVICE float factor(int r) {
    const RowState& row = rows[r];
    float total = row.total + __shfl_xor_sync(0xffffffffu, row.total, 1);
    total += __shfl_xor_sync(0xffffffffu, total, 2);
#ifdef SINKS
    float sink = p.sinks[row.head] * LOG2E, most = row.most * (TRANSFORMED ? 1.f : to_log2);
    float base = fmaxf(sink, most), part = exp2_fast(most - base);
    return part / (total * part + exp2_fast(sink - base));
#else
    return 1.f / total;
#endif
  }

  DEVICE static bool rescales(const float (&shrink)[2]) { return __any_sync(0xffffffffu, shrink[0] != 1.f || shrink[1] != 1.f); }
};

// Weights as the A operand of the product with values.
template <int N> DEVICE void pack_weights(u32 (&weights)[N], const float (&s)[2 * N]) {
#pragma unroll
  for (int i = 0; i < N; i++) weights[i] = pack2<model_t>(s[2 * i], s[2 * i + 1]);
}

// Four lanes hold four pieces of each of four vectors (x[j]: this lane's piece of vector j); afterwards lane i has vector i.
DEVICE void transpose4(u32 (&x)[4]) {
  int lane = threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    u32 t = __shfl_xor_sync(0xffffffffu, lane & 1 ? x[j] : x[j + 1], 1);
    if (lane & 1) x[j] = t;
    else x[j + 1] = t;
  }
#pragma unroll
  for (int j = 0; j < 2; j++) {
    u32 t = __shfl_xor_sync(0xffffffffu, lane & 2 ? x[j] : x[j + 2], 2);
    if (lane & 2) x[j] = t;
    else x[j + 2] = t;
  }
}

// Writes a thread's two rows of sums o (columns as in a tile of scores), 16 bytes at a time.
template <int N> DEVICE void store_rows(Softmax& softmax, const Item& item, int first_row, const float (&o)[N]) {
  const PrefillArgs& p = softmax.p;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float factor = softmax.factor(r);
    int token = (first_row + 8 * r) / GROUP;
    model_t* out = p.out + (item.token + token) * p.out_stride + softmax.rows[r].head * V_DIM;
#pragma unroll
    for (int j = 0; j < N / 4; j += 4) {
      u32 x[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int at = min(j + i, N / 4 - 1) * 4 + 2 * r;
        x[i] = pack2<model_t>(o[at] * factor, o[at + 1] * factor);
      }
      transpose4(x);
      int column = (j + threadIdx.x % 4) * 8;
      if (token < item.tokens && column < V_DIM) *(uint4*)(out + column) = make_uint4(x[0], x[1], x[2], x[3]);
    }
  }
}

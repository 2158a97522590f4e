// arch: sm_90a
// variants: MODEL_BF16 HEAD_DIM=128 GROUP=4; MODEL_BF16 HEAD_DIM=64 GROUP=4; MODEL_F16 HEAD_DIM=256 GROUP=2 WINDOW SOFTCAP; MODEL_BF16 HEAD_DIM=192 GROUP=1 ALIBI; MODEL_BF16 HEAD_DIM=80 GROUP=7 SINKS; MODEL_F16 HEAD_DIM=96 GROUP=1 PREFIX_LM
//
// Flash attention over the paged cache for many query tokens (Dao 2023; Shah et al. 2024).
//
// One block has a producer warp, which copies tiles by TMA, and QUERY_GROUPS warpgroups that each own 64 query rows of the
// tile: S = Q K^T and O += P V by wgmma, S, P and O in registers. A warpgroup's softmax runs beside its own product of the
// tile before and beside the other warpgroup's products (they take turns at issuing).
//
// A query row is a (token, head of the group) pair: row = token * GROUP + head, so that the heads that share keys share tiles.
// Keys are taken in tiles that start at multiples of KV_TILE positions, last tile first, and nothing of a row's arithmetic
// depends on the other rows or on where the tile of queries begins: a row's result is bitwise the same in any batch or chunk.
//
// Defines:
//   MODEL_BF16 | MODEL_F16
//   HEAD_DIM     elements of a head of q, k and v; a multiple of 8, at most 256
//   GROUP        query heads per key head, at most 64 * QUERY_GROUPS
//   BLOCK_SIZE   positions of a cache block; a multiple of 16 (default 16)
//   WINDOW       a query sees the last `window` positions, itself included
//   SOFTCAP      scores are softcap * tanh(q k scale / softcap)
//   ALIBI        slopes[head] * (key position - query position) is added to scores
//   SINKS        sinks[head] is the score of a key that has no value
//   PREFIX_LM    tokens of the prompt see the whole prompt
// and, for tuning: KV_TILE (multiple of 16), QUERY_GROUPS (2 or 3), STAGES, EXP_BY_FMA (of 8 exponentials, how many are polynomials).
//
// Launch: grid min(multiprocessors, entries * kv_heads) or more, QUERY_GROUPS * 128 + 128 threads, SHARED_BYTES of dynamic
// shared memory (`prefill_sm90_shape` tells all of them). `turn` is a zero that the kernel leaves at zero.
// Tensor maps, all with 16-bit elements, 128-byte swizzle, zero fill:
//   q     [tokens, heads, HEAD_DIM], stride of a token as the buffer has it; box [TOKENS, GROUP, 64]
//   k, v  [blocks * kv_heads, BLOCK_SIZE, HEAD_DIM]; box [1, 16, 64]
#include "include/tma.cuh"
#include "include/wgmma.cuh"

#ifndef BLOCK_SIZE
#define BLOCK_SIZE 16
#endif
#ifndef QUERY_GROUPS
#define QUERY_GROUPS 2
#endif
#ifndef KV_TILE
#define KV_TILE (HEAD_DIM <= 128 ? 128 : HEAD_DIM <= 192 ? 96 : 80)
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef EXP_BY_FMA
#define EXP_BY_FMA 0
#endif
#ifdef WINDOW
static constexpr bool HAS_WINDOW = true;
#else
static constexpr bool HAS_WINDOW = false;
#endif

static constexpr int ROWS = 64 * QUERY_GROUPS;
static constexpr int TOKENS = ROWS / GROUP;
static constexpr int PANELS = (HEAD_DIM + 63) / 64;  // 64 columns each, the width of a swizzle line
static constexpr int K_STEPS = (HEAD_DIM + 15) / 16;
static constexpr int OUT_COLUMNS = K_STEPS * 16;
static constexpr int THREADS = 128 * (QUERY_GROUPS + 1);
static constexpr int Q_BYTES = ROWS * PANELS * 128;
static constexpr int TILE_BYTES = KV_TILE * PANELS * 128;
static constexpr int SHARED_BYTES = 1024 + Q_BYTES + 2 * STAGES * TILE_BYTES;
static constexpr int CONSUMER_REGISTERS = QUERY_GROUPS == 2 ? 240 : 160;
static constexpr int PRODUCER_REGISTERS = QUERY_GROUPS == 2 ? 24 : 32;
static constexpr float LOG2E = 1.4426950408889634f;
#if defined(SOFTCAP) || defined(ALIBI)
static constexpr bool TRANSFORMED = true;  // scores are brought to log2 units before the maximum is taken
#else
static constexpr bool TRANSFORMED = false;
#endif
static_assert(HEAD_DIM % 8 == 0 && HEAD_DIM <= 256 && GROUP <= ROWS && KV_TILE % 16 == 0 && BLOCK_SIZE % 16 == 0, "shape");
static_assert(KV_TILE / 16 * PANELS <= 32, "one box a lane");

// A tile of queries: up to TOKENS consecutive tokens of one sequence. The list has the longest first.
struct Entry {
  int token;       // first row of q and out
  int tokens;      // at least 1
  int position;    // of the first token in its sequence
  int kv_len;      // positions in the cache
  int slot;        // line of the block tables
  int prompt_len;  // for PREFIX_LM
  int unused[2];
};

struct PrefillParams {
  TensorMap q, k, v;
  model_t* out;          // [tokens, heads, HEAD_DIM], 16-byte aligned rows
  i64 out_stride;        // elements
  const int* count;      // entries
  const Entry* entries;
  u32* turn;             // next item, all blocks' own first one apart
  const int* tables;     // [slots, table_stride]
  const float* slopes;   // [heads]
  const float* sinks;    // [heads]
  int table_stride;
  int kv_heads;
  int window;
  float scale;
  float softcap;
};

struct Shape {
  int tokens, threads, shared_bytes, kv_tile;
};
extern "C" __constant__ Shape prefill_sm90_shape = {TOKENS, THREADS, SHARED_BYTES, KV_TILE};

// What consumers need of an item; from < 0 ends the block.
struct Item {
  int token, tokens, position, kv_len;
  int head, from, to, prompt_len;  // tiles of keys [from, to)
};

struct Barriers {
  u64 q_full, q_empty, item_full[2], item_empty[2];
  u64 k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
  Item items[2];
};

// A place in a ring of N slots and the parity of its phase.
template <int N> struct Ring {
  u32 at = 0, phase = 0;
  DEVICE void next() {
    if (++at == N) at = 0, phase ^= 1;
  }
};

DEVICE float exp2_unit(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 2^x by FMAs, for x <= 16; what is below 2^-126 may become 0, -inf does.
DEVICE float exp2_fma(float x) {
  x = fmaxf(x, -127.f);
  float shifted = x + 12582912.f;
  float f = x - (shifted - 12582912.f);
#ifdef MODEL_F16
  float y = fmaf(fmaf(fmaf(fmaf(0.00967618f, f, 0.05550341f), f, 0.24022349f), f, 0.69314686f), f, 1.f);
#else
  float y = fmaf(fmaf(fmaf(0.05592204f, f, 0.24264008f), f, 0.69310032f), f, 1.f);
#endif
  return __int_as_float(__float_as_int(y) + (__float_as_int(shifted) << 23));
}
DEVICE float tanh_precise(float x) {
  float e = exp2_unit(x * (2.f * LOG2E));
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(e + 1.f));
  return fmaf(-2.f, r, 1.f);
}

DEVICE int tiles_from(int position, int window) {
  return HAS_WINDOW ? max(position - window + 1, 0) / KV_TILE : 0;
}

// First position that a query does not see.
DEVICE int visible_to(int position, int prompt_len) {
#ifdef PREFIX_LM
  return max(position + 1, prompt_len);
#else
  return position + 1;
#endif
}

DEVICE void produce(const PrefillParams& p, Barriers& bars, u8* q, u8* k, u8* v) {
  int lane = threadIdx.x % 32;
  u32 total = (u32)*p.count * p.kv_heads;
  Ring<STAGES> k_ring, v_ring;
  Ring<2> item_ring;
  u32 q_phase = 0;
  int group = lane % (KV_TILE / 16), panel = lane / (KV_TILE / 16);
  bool has_box = panel < PANELS;
  for (u32 index = blockIdx.x;;) {
    mbarrier_wait(&bars.item_empty[item_ring.at], item_ring.phase ^ 1);
    if (index >= total) {
      if (lane == 0) {
        bars.items[item_ring.at].from = -1;
        mbarrier_arrive(&bars.item_full[item_ring.at]);
      }
      return;
    }
    u32 next = 0;
    if (lane == 0) {
      next = atomicAdd(p.turn, 1);
      if (next == total - 1) *p.turn = 0;
    }
    int head = index % p.kv_heads;
    const int4* from = (const int4*)(p.entries + index / p.kv_heads);
    int4 a = from[0], b = from[1];
    Entry e = {a.x, a.y, a.z, a.w, b.x, b.y, {0, 0}};
    int tile_from = tiles_from(e.position, p.window);
    int tile_to = (min(visible_to(e.position + e.tokens - 1, e.prompt_len), e.kv_len) + KV_TILE - 1) / KV_TILE;
    if (lane == 0) {
      bars.items[item_ring.at] = {e.token, e.tokens, e.position, e.kv_len, head, tile_from, tile_to, e.prompt_len};
      mbarrier_arrive(&bars.item_full[item_ring.at]);
    }
    item_ring.next();

    const int* table = p.tables + (i64)e.slot * p.table_stride;
    // Plane of `k` and `v` that this lane's box lies in; -1 is outside and reads as zeros.
    auto plane = [&](int tile) {
      int at = tile * KV_TILE + group * 16;
      return has_box && tile >= tile_from && at < e.kv_len ? table[at / BLOCK_SIZE] * p.kv_heads + head : -1;
    };
    auto load = [&](const TensorMap* map, u8* tile, u64* full, int tile_index, int plane) {
      if (lane == 0) mbarrier_arrive_expect(full, TILE_BYTES);
      __syncwarp();
      if (has_box)
        tensor_load_3d(tile + panel * (KV_TILE * 128) + group * 2048, map, full, panel * 64, (tile_index * KV_TILE + group * 16) % BLOCK_SIZE, plane);
    };
    int plane_k = plane(tile_to - 1), plane_v = -1;

    mbarrier_wait(&bars.q_empty, q_phase ^ 1);
    q_phase ^= 1;
    if (lane == 0) {
      mbarrier_arrive_expect(&bars.q_full, PANELS * TOKENS * GROUP * 128);
      for (int i = 0; i < PANELS; i++) tensor_load_3d(q + i * (ROWS * 128), &p.q, &bars.q_full, i * 64, head * GROUP, e.token);
    }
    for (int tile = tile_to - 1; tile >= tile_from - 1; tile--) {
      int plane_next = plane(tile - 1);
      if (tile >= tile_from) {
        mbarrier_wait(&bars.k_empty[k_ring.at], k_ring.phase ^ 1);
        load(&p.k, k + k_ring.at * TILE_BYTES, &bars.k_full[k_ring.at], tile, plane_k);
        k_ring.next();
      }
      if (tile + 1 < tile_to) {
        mbarrier_wait(&bars.v_empty[v_ring.at], v_ring.phase ^ 1);
        load(&p.v, v + v_ring.at * TILE_BYTES, &bars.v_full[v_ring.at], tile + 1, plane_v);
        v_ring.next();
      }
      plane_v = plane_k;
      plane_k = plane_next;
    }
    index = __shfl_sync(0xffffffffu, next, 0) + gridDim.x;
  }
}

// Of the two query rows that a thread has elements of.
struct RowState {
  float most;     // largest score, in units of S
  float total;    // this thread's part of the sum of weights
  int visible;    // positions [lowest, visible) are seen
  int lowest;
  float slope;    // times log2(e)
  int position;
};

struct Consumer {
  const PrefillParams& p;
  float to_log2;  // S times this is in log2 units
  RowState rows[2];
  float s[KV_TILE / 2];
  u32 weights[KV_TILE / 4];
  float o[OUT_COLUMNS / 2];

  DEVICE void scores(u64 q, u64 k) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < K_STEPS; i++)
      wgmma_ss<model_t, K_MAJOR>(s, advance(q, i / 4 * (ROWS * 128) + i % 4 * 32), advance(k, i / 4 * (KV_TILE * 128) + i % 4 * 32), i > 0);
    wgmma_commit();
  }
  DEVICE void weigh(u64 v, bool more) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < KV_TILE / 16; i++) wgmma_rs<model_t, MN_MAJOR>(o, weights + 4 * i, advance(v, i * 2048), i > 0 || more);
    wgmma_commit();
  }

  // Scores of tile `at` (first position) become weights in s; `shrink` multiplies what was summed before.
  DEVICE void softmax(int at, bool masked, float (&shrink)[2]) {
    int column = threadIdx.x % 4 * 2;
    if constexpr (TRANSFORMED) {
#pragma unroll
      for (int i = 0; i < KV_TILE / 2; i++) {
#ifdef SOFTCAP
        s[i] = tanh_precise(s[i] * (p.scale / p.softcap)) * (p.softcap * LOG2E);
#else
        s[i] *= to_log2;
#endif
#ifdef ALIBI
        s[i] = fmaf(rows[i / 2 % 2].slope, (float)(at + column - rows[i / 2 % 2].position + i / 4 * 8 + i % 2), s[i]);
#endif
      }
    }
    float unit = TRANSFORMED ? 1.f : to_log2;
    if (masked) {
      int visible[2] = {rows[0].visible - at - column, rows[1].visible - at - column};
      int lowest[2] = {rows[0].lowest - at - column, rows[1].lowest - at - column};
#pragma unroll
      for (int i = 0; i < KV_TILE / 2; i++) {
        int row = i / 2 % 2, c = i / 4 * 8 + i % 2;
        if (c >= visible[row] || (HAS_WINDOW && c < lowest[row])) s[i] = -INFINITY_F;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
      RowState& row = rows[r];
      float most = fmaxf(s[2 * r], s[2 * r + 1]);
#pragma unroll
      for (int j = 1; j < KV_TILE / 8; j++) most = fmaxf(most, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
#ifdef LAZY
      // The old maximum stays as the unit as long as no weight exceeds 2^LAZY.
      most = (most - row.most) * unit <= (float)LAZY ? row.most : most;
#else
      most = fmaxf(most, row.most);
#endif
      float base = most == -INFINITY_F ? 0.f : most * unit;
      shrink[r] = most == -INFINITY_F ? 1.f : exp2_unit((row.most - most) * unit);  // exactly 1 when nothing changes
      row.most = most;
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < KV_TILE / 8; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float& x = s[4 * j + 2 * r + i];
          float y = fmaf(x, unit, -base);
          x = j % 8 < EXP_BY_FMA ? exp2_fma(y) : exp2_unit(y);
          sum += x;
        }
      }
      row.total = row.total * shrink[r] + sum;
    }
  }
  // Has the softmax's arithmetic done before what follows; the assembler would move the wait for a product above it. The store
  // never happens, as sums of weights are not negative, but the assembler cannot know.
  DEVICE void settle() {
#ifndef NO_SETTLE
    asm volatile("{.reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p st.shared.f32 [%1], %0;}" ::"f"(rows[0].total + rows[1].total), "r"(0) : "memory");
#endif
  }
  DEVICE void pack() {
#pragma unroll
    for (int i = 0; i < KV_TILE / 4; i++) weights[i] = pack2<model_t>(s[2 * i], s[2 * i + 1]);
  }
  DEVICE void rescale(const float (&shrink)[2]) {
#ifdef SKIP_RESCALE
    if (!__any_sync(0xffffffffu, shrink[0] != 1.f || shrink[1] != 1.f)) return;
#endif
#pragma unroll
    for (int i = 0; i < OUT_COLUMNS / 2; i++) o[i] *= shrink[i / 2 % 2];
  }
};

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

#ifndef NO_TURNS
#define TAKE_TURN() named_sync(1 + me, 256)
#define PASS_TURN() named_arrive(1 + (me + 1) % QUERY_GROUPS, 256)
#else
#define TAKE_TURN()
#define PASS_TURN()
#endif

DEVICE void consume(const PrefillParams& p, Barriers& bars, const u8* q, const u8* k, u8* v) {
  int me = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, lane = threadIdx.x % 32;
  Consumer c{p};
  c.to_log2 = p.scale * LOG2E;
  Ring<STAGES> k_ring, v_ring;
  Ring<2> item_ring;
  u32 q_phase = 0;
  u64 q_desc = matrix_desc<128>(smem_address(q) + me * 8192, 1024);
  u64 k_desc = matrix_desc<128>(smem_address(k), 1024);
  u64 v_desc = matrix_desc<128>(smem_address(v), 1024, KV_TILE * 128);
  auto k_tile = [&] { return advance(k_desc, k_ring.at * TILE_BYTES); };
  auto v_tile = [&] { return advance(v_desc, v_ring.at * TILE_BYTES); };
  if (me == QUERY_GROUPS - 1) PASS_TURN();

  for (;;) {
    mbarrier_wait(&bars.item_full[item_ring.at], item_ring.phase);
    Item item = bars.items[item_ring.at];
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&bars.item_empty[item_ring.at]);
    item_ring.next();
    if (item.from < 0) break;

    int first_row = me * 64 + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = first_row + 8 * r;
      RowState& state = c.rows[r];
      state.position = item.position + row / GROUP;
      state.visible = visible_to(state.position, item.prompt_len);
      state.lowest = state.position - p.window + 1;
      state.most = -INFINITY_F;
      state.total = 0.f;
#ifdef ALIBI
      state.slope = p.slopes[item.head * GROUP + row % GROUP] * LOG2E;
#endif
    }
    // Tiles wholly seen by all tokens of the item need no mask.
    int clear_to = visible_to(item.position, item.prompt_len) / KV_TILE;
    int clear_from = HAS_WINDOW ? (max(item.position + item.tokens - p.window, 0) + KV_TILE - 1) / KV_TILE : 0;
    float shrink[2];

    int tile = item.to - 1;
    mbarrier_wait(&bars.q_full, q_phase);
    q_phase ^= 1;
    mbarrier_wait(&bars.k_full[k_ring.at], k_ring.phase);
    c.scores(q_desc, k_tile());
    wgmma_wait<0>();
    hold(c.s);
    if (lane == 0) mbarrier_arrive(&bars.k_empty[k_ring.at]);
    k_ring.next();
    c.softmax(tile * KV_TILE, tile >= clear_to || tile < clear_from, shrink);
    c.pack();
    // Values after the sequence's end may be anything; their weight is zero, and NaN times zero is not.
    if (item.kv_len % 16 != 0 && item.kv_len < item.to * KV_TILE) {
      mbarrier_wait(&bars.v_full[v_ring.at], v_ring.phase);
      int line = item.kv_len - tile * KV_TILE, lines = 16 - item.kv_len % 16;
      for (int i = threadIdx.x - 128; i < lines * PANELS * 8; i += QUERY_GROUPS * 128) {
        u8* to = v + v_ring.at * TILE_BYTES + i / 8 % PANELS * (KV_TILE * 128) + (line + i / 8 / PANELS) * 128 + i % 8 * 16;
        *(int4*)to = make_int4(0, 0, 0, 0);
      }
      fence_async_shared();
      named_sync(1 + QUERY_GROUPS, QUERY_GROUPS * 128);
    }
    bool more = false;
    for (tile--; tile >= item.from; tile--) {
      mbarrier_wait(&bars.k_full[k_ring.at], k_ring.phase);
      TAKE_TURN();
      c.scores(q_desc, k_tile());
      mbarrier_wait(&bars.v_full[v_ring.at], v_ring.phase);
      c.weigh(v_tile(), more);
      more = true;
      PASS_TURN();
      wgmma_wait<1>();
      hold(c.s);
      if (lane == 0) mbarrier_arrive(&bars.k_empty[k_ring.at]);
      k_ring.next();
      c.softmax(tile * KV_TILE, tile >= clear_to || tile < clear_from, shrink);
      c.settle();
      wgmma_wait<0>();
      hold(c.o);
      hold(c.weights);
      if (lane == 0) mbarrier_arrive(&bars.v_empty[v_ring.at]);
      v_ring.next();
      c.rescale(shrink);
      c.pack();
    }
    if (lane == 0) mbarrier_arrive(&bars.q_empty);
    mbarrier_wait(&bars.v_full[v_ring.at], v_ring.phase);
    c.weigh(v_tile(), more);
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      RowState& row = c.rows[r];
      float total = row.total + __shfl_xor_sync(0xffffffffu, row.total, 1);
      total += __shfl_xor_sync(0xffffffffu, total, 2);
#ifdef SINKS
      float sink = p.sinks[item.head * GROUP + (first_row + 8 * r) % GROUP] * LOG2E, most = row.most * (TRANSFORMED ? 1.f : c.to_log2);
      float base = fmaxf(sink, most), part = exp2_unit(most - base);
      factor[r] = part / (total * part + exp2_unit(sink - base));
#else
      factor[r] = 1.f / total;
#endif
    }
    wgmma_wait<0>();
    hold(c.o);
    if (lane == 0) mbarrier_arrive(&bars.v_empty[v_ring.at]);
    v_ring.next();

#pragma unroll
    for (int r = 0; r < 2; r++) {
      int row = first_row + 8 * r, token = row / GROUP;
      model_t* out = p.out + (item.token + token) * p.out_stride + (item.head * GROUP + row % GROUP) * HEAD_DIM;
#pragma unroll
      for (int j = 0; j < OUT_COLUMNS / 8; j += 4) {
        u32 x[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int at = min(j + i, OUT_COLUMNS / 8 - 1) * 4 + 2 * r;
          x[i] = pack2<model_t>(c.o[at] * factor[r], c.o[at + 1] * factor[r]);
        }
        transpose4(x);
        int column = (j + lane % 4) * 8;
        if (token < item.tokens && column < HEAD_DIM) *(uint4*)(out + column) = make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) prefill_sm90(const __grid_constant__ PrefillParams p) {
  extern __shared__ u8 raw[];
  __shared__ Barriers bars;
  u8* q = (u8*)(((u64)raw + 1023) & ~1023ull);
  u8* k = q + Q_BYTES;
  u8* v = k + STAGES * TILE_BYTES;
  if (threadIdx.x == 0) {
    constexpr int WARPS = 4 * QUERY_GROUPS;
    mbarrier_init(&bars.q_full, 1);
    mbarrier_init(&bars.q_empty, WARPS);
    for (int i = 0; i < 2; i++) {
      mbarrier_init(&bars.item_full[i], 1);
      mbarrier_init(&bars.item_empty[i], WARPS);
    }
    for (int i = 0; i < STAGES; i++) {
      mbarrier_init(&bars.k_full[i], 1);
      mbarrier_init(&bars.k_empty[i], WARPS);
      mbarrier_init(&bars.v_full[i], 1);
      mbarrier_init(&bars.v_empty[i], WARPS);
    }
    mbarrier_fence_init();
    tensor_prefetch_map(&p.q);
    tensor_prefetch_map(&p.k);
    tensor_prefetch_map(&p.v);
  }
  __syncthreads();
  wait_for_previous();
  let_next_start();
  if (threadIdx.x < 128) {
    registers_fewer<PRODUCER_REGISTERS>();
    if (threadIdx.x < 32) produce(p, bars, q, k, v);
  } else {
    registers_more<CONSUMER_REGISTERS>();
    consume(p, bars, q, k, v);
  }
}

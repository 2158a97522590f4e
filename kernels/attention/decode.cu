// arch: sm_80+
// variants: MODEL_BF16 HEAD_DIM=128 VALUE_DIM=128 GROUP=4; MODEL_F16 HEAD_DIM=64 VALUE_DIM=64 GROUP=7 WINDOW SOFTCAP STAGES=6; MODEL_BF16 HEAD_DIM=256 VALUE_DIM=128 GROUP=20 ALIBI SINKS STAGES=2; MODEL_BF16 HEAD_DIM=96 VALUE_DIM=96 GROUP=1 WARPS=2
//
// Attention of one query per row over the paged cache.
//
// A work item is a range of 16-position tiles of one row and KV head; the query heads of the group are the columns of the
// matrix products (S^T = K Q^T, O^T = V^T P^T), so keys and values are read once for all of them. The host cuts the items and
// deals them to the blocks of a fixed grid (ops/attention_decode.rs). Each of a block's warps takes one contiguous part of
// an item and has a ring of tiles of its own in shared memory, whose loads run on into the next items; the parts meet in
// shared memory. A pair of row and KV head that was cut into several items meets in global memory: the block that arrives
// last adds the pieces in their order, so the result depends on where the cuts are and on nothing else.
//
// HEAD_DIM, VALUE_DIM: multiples of 16. GROUP: query heads per KV head; above 16 an item has 16 of them or what is left.
// WARPS (a power of two), STAGES: of the block, and tiles in a warp's ring. WINDOW, SOFTCAP, ALIBI, SINKS: present or not.
#include "attention/pieces.cuh"
#include "include/mma.cuh"

#ifndef WARPS
#define WARPS 4
#endif
#ifndef STAGES
#define STAGES 3
#endif

// Positions of a tile, the grain of all ranges.
constexpr int TILE = 16;
// Query heads of an item.
constexpr int PACK = GROUP < 16 ? GROUP : 16;
// Groups of 8 columns.
constexpr int COLUMNS = (PACK + 7) / 8;
constexpr int THREADS = WARPS * 32;
// 16-byte chunks of a row, and from row to row in shared memory: odd, so that 8 rows lie in different banks.
constexpr int K_CHUNKS = HEAD_DIM / 8, K_PITCH = K_CHUNKS + 1;
constexpr int V_CHUNKS = VALUE_DIM / 8, V_PITCH = V_CHUNKS + 1;
constexpr int K_BYTES = TILE * K_PITCH * 16, STAGE_BYTES = K_BYTES + TILE * V_PITCH * 16;
// Floats from head to head in the buffer where parts meet.
constexpr int O_PITCH = VALUE_DIM + 4;

struct AttentionDecodeParams {
  Rows<const model_t> q;   // [tokens, heads * HEAD_DIM]
  Rows<model_t> out;       // [tokens, heads * VALUE_DIM]
  Cache cache;
  const Item* items;       // [grid] the first of each block, begin = end where it has none, then all others
  const int* starts;       // [grid + 1] in items, the second of each block
  float* piece_sums;       // [pieces, PACK, VALUE_DIM] weighted sums
  float2* piece_weights;   // [pieces, PACK] largest score and sum of weights
  int* arrived;            // [pieces] zero between launches; indexed by a pair's first piece
  const float* slopes;     // [heads], ALIBI
  const float* sinks;      // [heads], SINKS
  float scale;
  float softcap;
  int window;
  int early;               // not 0: see the launch order in the kernel
};

// The tiles of an item that one of the WARPS parts has.
DEVICE int part_begin(const Item& item, int part) { return item.begin + (item.end - item.begin) * part / WARPS; }

// One tile of keys or values, of which the first `rows` positions are in use; the others become zero.
template <int CHUNKS> DEVICE void load_tile(u32 to, const model_t* from, int rows, int lane, u64 policy) {
  constexpr int PITCH = CHUNKS + 1;
  if (rows >= TILE) {
#pragma unroll
    for (int i = 0; i < CHUNKS / 2; i++) {
      int row = 32 % CHUNKS == 0 ? lane / CHUNKS + i * (32 / CHUNKS) : (i * 32 + lane) / CHUNKS;
      int column = 32 % CHUNKS == 0 ? lane % CHUNKS : (i * 32 + lane) % CHUNKS;
      copy_async16_once(to + (row * PITCH + column) * 16, from + (i * 32 + lane) * 8, policy);
    }
  } else {
    for (int i = 0; i < CHUNKS / 2; i++) {
      int row = (i * 32 + lane) / CHUNKS, column = (i * 32 + lane) % CHUNKS;
      copy_async16(to + (row * PITCH + column) * 16, from + (i * 32 + lane) * 8, row < rows ? 16 : 0);
    }
  }
}

// The order in which one warp loads tiles: its parts of all items of the block, one after the other. Block ids are read
// 32 tiles at a time and one such batch ahead, items one further ahead still.
struct Loader {
  const AttentionDecodeParams& p;
  int lane, warp;
  u64 policy;
  const Item* rest;    // the block's second item
  int count;           // items of the block
  int taken;           // items already looked at
  Item ahead;          // the next one, if there is one
  // Batch being loaded: tiles tile .. end; this lane's unit is that of tile base + lane.
  int tile, end, base, kv_len, unit;
  // The batch after it, and the end of the part it lies in.
  int next_begin, next_end, next_unit, part_end;
  Item item;           // that the next batch belongs to

  DEVICE Loader(const AttentionDecodeParams& p, const Item& first, const Item* rest, int count, int lane, int warp)
      : p(p), lane(lane), warp(warp), policy(read_once()), rest(rest), count(count), taken(0), ahead(first), tile(0), end(0), base(0), kv_len(0), unit(0), next_begin(0),
        next_end(0), next_unit(0), part_end(0), item(first) {
    look_ahead();
  }

  // Makes the batch after the one that ends at next_end the next one; empty when there is none.
  DEVICE void look_ahead() {
    while (next_end == part_end) {
      if (taken == count) {
        next_begin = next_end = part_end = 0;
        return;
      }
      item = ahead;
      int part = (warp + taken) % WARPS;
      taken++;
      if (taken < count) ahead = load_item(rest + taken - 1);
      next_end = part_begin(item, part);
      part_end = part_begin(item, part + 1);
    }
    next_begin = next_end;
    next_end = min(next_begin + 32, part_end);
    int mine = next_begin + lane, tiles = p.cache.block_size / TILE;
    if (mine < next_end) {
      int line = mine / tiles;
      int block = p.cache.tables[(i64)item.slot * p.cache.table_stride + line];
      next_unit = (block * p.cache.heads + item.q_head / GROUP) * tiles + mine - line * tiles;
    }
  }

  // Starts the loads of the warp's next tile and closes their group, which is empty at the end of the work. Only the tile
  // with the newest position holds what this step has written.
  DEVICE void issue(u32 stage) {
    if (tile == end && next_begin != next_end) {
      tile = base = next_begin;
      end = next_end;
      unit = next_unit;
      kv_len = item.kv_len;
      look_ahead();
    }
    if (tile != end) {
      i64 at = __shfl_sync(0xffffffffu, unit, tile - base);
      int rows = kv_len - tile * TILE;
      if (rows <= TILE) wait_for_previous();
      load_tile<K_CHUNKS>(stage, p.cache.keys + at * (TILE * HEAD_DIM), rows, lane, policy);
      load_tile<V_CHUNKS>(stage + K_BYTES, p.cache.values + at * (TILE * VALUE_DIM), rows, lane, policy);
      tile++;
    }
    copy_async_commit();
  }
};

// Query heads that an item has.
DEVICE int item_heads(const Item& item) { return GROUP <= 16 ? PACK : min(PACK, GROUP - item.q_head % GROUP); }

// The queries of an item as this lane needs them: heads 8 c + lane / 4 as B. Its columns of results are heads
// 8 c + 2 (lane % 4) + {0, 1}.
struct Queries {
  u32 q[COLUMNS][HEAD_DIM / 16][2];
#ifdef ALIBI
  float slope[COLUMNS][2];
#endif
  DEVICE Queries() {}
  DEVICE Queries(const AttentionDecodeParams& p, const Item& item, int lane) {
    int heads = item_heads(item);
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      int head = c * 8 + lane / 4;
      const model_t* row = p.q.row(item.token) + (item.q_head + min(head, heads - 1)) * HEAD_DIM + lane % 4 * 2;
#pragma unroll
      for (int k = 0; k < HEAD_DIM / 16; k++) {
        q[c][k][0] = *(const u32*)(row + k * 16);
        q[c][k][1] = *(const u32*)(row + k * 16 + 8);
      }
#ifdef ALIBI
#pragma unroll
      for (int e = 0; e < 2; e++) slope[c][e] = p.slopes[item.q_head + min(c * 8 + lane % 4 * 2 + e, heads - 1)] * LOG2E;
#endif
    }
  }
};

// Whether there are registers for the next item's queries.
constexpr bool QUERIES_AHEAD = COLUMNS * HEAD_DIM <= 256;

// A weighted sum that grows by parts, each relative to its own largest score.
struct Merged {
  float4 sum;
  float most, total;
  DEVICE Merged() : sum(make_float4(0.f, 0.f, 0.f, 0.f)), most(-INFINITY_F), total(0.f) {}
  DEVICE void rebase(float to) {
    float shrink = exp2_fast(most - finite_base(to));
    sum.x *= shrink, sum.y *= shrink, sum.z *= shrink, sum.w *= shrink, total *= shrink;
    most = to;
  }
  // `weights` is {largest score, sum of weights}; the largest is at most `most`.
  DEVICE void add(float2 weights, float4 x) {
    float w = exp2_fast(weights.x - finite_base(most));
    sum.x += w * x.x, sum.y += w * x.y, sum.z += w * x.z, sum.w += w * x.w, total += w * weights.y;
  }
};

// Divides by the sum of weights, which a sink adds to, and writes four elements of one head.
DEVICE void write_out(const AttentionDecodeParams& p, const Item& item, int head, int column, Merged x) {
#ifdef SINKS
  float sink = p.sinks[item.q_head + head] * LOG2E;
  x.rebase(fmaxf(x.most, sink));
  x.total += exp2_fast(sink - finite_base(x.most));
#endif
  float by = x.total > 0.f ? 1.f / x.total : 0.f;
  uint2 y = make_uint2(pack2<model_t>(x.sum.x * by, x.sum.y * by), pack2<model_t>(x.sum.z * by, x.sum.w * by));
  *(uint2*)(p.out.row(item.token) + (item.q_head + head) * VALUE_DIM + column) = y;
}

// One more arrival at `counter`; true for the last of `expected`, which sets it back to zero. Called by one thread; what the
// block wrote before a barrier is then visible to whoever comes last, and all that the others wrote is visible here.
DEVICE bool arrive(int* counter, int expected) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  if (before != expected - 1) return false;
  *counter = 0;
  return true;
}

// Adds the parts of an item in shared memory and writes the result, or the piece. True in all threads where this was the last
// of the pair's pieces to arrive.
DEVICE bool finish_item(const AttentionDecodeParams& p, const Item& item, int heads, const float* part_sums, const float2* part_weights, bool* is_last) {
  for (int at = threadIdx.x; at < heads * (VALUE_DIM / 4); at += THREADS) {
    int head = at / (VALUE_DIM / 4), column = at % (VALUE_DIM / 4) * 4;
    Merged x;
#pragma unroll
    for (int w = 0; w < WARPS; w++) x.most = fmaxf(x.most, part_weights[w * PACK + head].x);
#pragma unroll
    for (int w = 0; w < WARPS; w++) x.add(part_weights[w * PACK + head], *(const float4*)(part_sums + (w * PACK + head) * O_PITCH + column));
    if (item.piece < 0) {
      write_out(p, item, head, column, x);
    } else {
      i64 to = (i64)(item.piece + (item.share & 0xffff)) * PACK + head;
      *(float4*)(p.piece_sums + to * VALUE_DIM + column) = x.sum;
      if (column == 0) p.piece_weights[to] = make_float2(x.most, x.total);
    }
  }
  __syncthreads();
  if (item.piece < 0) return false;
  if (threadIdx.x == 0) *is_last = arrive(p.arrived + item.piece, item.share >> 16);
  __syncthreads();
  return *is_last;
}

// Adds a pair's pieces in their order and writes the result.
DEVICE void merge_pieces(const AttentionDecodeParams& p, const Item& item, int heads) {
  // Loads under way at once. More of them gain nothing and take registers from the loop over tiles.
  constexpr int RUN = 16;
  int pieces = item.share >> 16;
  for (int at = threadIdx.x; at < heads * (VALUE_DIM / 4); at += THREADS) {
    int head = at / (VALUE_DIM / 4), column = at % (VALUE_DIM / 4) * 4;
    Merged x;
    for (int from = 0; from < pieces; from += RUN) {
      float4 sums[RUN];
      float2 weights[RUN];
#pragma unroll
      for (int r = 0; r < RUN; r++) {
        i64 piece = (i64)(item.piece + min(from + r, pieces - 1)) * PACK + head;
        weights[r] = load_shared_by_all(p.piece_weights + piece);
        sums[r] = load_shared_by_all(p.piece_sums + piece * VALUE_DIM + column);
      }
      float most = x.most;
#pragma unroll
      for (int r = 0; r < RUN; r++) most = fmaxf(most, weights[r].x);
      x.rebase(most);
#pragma unroll
      for (int r = 0; r < RUN; r++)
        if (from + r < pieces) x.add(weights[r], sums[r]);
    }
    write_out(p, item, head, column, x);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention_decode(const __grid_constant__ AttentionDecodeParams p) {
  extern __shared__ __align__(16) u8 shared[];
  // [WARPS, PACK, O_PITCH] sums of parts, [WARPS, PACK] largest score and sum of weights, then the rings.
  float* part_sums = (float*)shared;
  float2* part_weights = (float2*)(part_sums + WARPS * PACK * O_PITCH);
  __shared__ bool is_last;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u32 ring = shared_address(part_weights + (WARPS * PACK + 1) / 2 * 2) + warp * (STAGES * STAGE_BYTES);

  let_next_start();
  // The plan, the block tables and all positions but the newest of each row are older than this step. Where the kernels
  // of a step cannot start before those are complete, as in a captured graph, they are read without waiting for the kernels
  // ahead: the host says so.
  if (!p.early) wait_for_previous();
  Item item = load_item(p.items + blockIdx.x);
  const Item* rest = p.items + p.starts[blockIdx.x];
  int count = 1 + p.starts[blockIdx.x + 1] - p.starts[blockIdx.x];
  if (item.begin == item.end) {
    // Makes room for the next kernel's blocks at once. One block waits in any case: whoever waits for this kernel waits for
    // all before it.
    if (blockIdx.x == 0) wait_for_previous();
    return;
  }
  Item next = count > 1 ? load_item(rest) : item;
  Loader loader(p, item, rest, count, lane, warp);
#pragma unroll 1
  for (int s = 0; s < STAGES; s++) loader.issue(ring + s * STAGE_BYTES);
  wait_for_previous();

  // Addresses of this lane's rows for ldmatrix: keys as A, values transposed as A.
  u32 key_row = (lane % 16 * K_PITCH + lane / 16) * 16;
  u32 value_row = K_BYTES + ((lane % 8 + lane / 16 * 8) * V_PITCH + lane / 8 % 2) * 16;
  int stage = 0;

  Queries queries(p, item, lane);
  for (int i = 0; i < count; i++) {
    // What the next item needs is read while this one is worked on.
    Queries queries_ahead;
    if (QUERIES_AHEAD && i + 1 < count) queries_ahead = Queries(p, next, lane);
    Item after = i + 2 < count ? load_item(rest + i + 1) : next;
    int heads = item_heads(item);
    int part = (warp + i) % WARPS;
    int tile = part_begin(item, part), end = part_begin(item, part + 1);
    float most[COLUMNS][2], total[COLUMNS][2], o[COLUMNS][VALUE_DIM / 16][4];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      most[c][0] = most[c][1] = -INFINITY_F;
      total[c][0] = total[c][1] = 0.f;
#pragma unroll
      for (int v = 0; v < VALUE_DIM / 16; v++) o[c][v][0] = o[c][v][1] = o[c][v][2] = o[c][v][3] = 0.f;
    }
#ifdef WINDOW
    int visible = max(item.kv_len - p.window, 0);
#else
    constexpr int visible = 0;
#endif

    for (; tile < end; tile++) {
      u32 at = ring + stage * STAGE_BYTES;
      copy_async_wait<STAGES - 1>();
      __syncwarp();

      // Two sums per column group halve the chain of dependent products.
      float s[COLUMNS][2][4] = {};
#pragma unroll
      for (int k = 0; k < HEAD_DIM / 16; k++) {
        u32 a[4];
        ldmatrix(a, at + key_row + k * 32);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) mma<model_t>(s[c][k % 2], a, queries.q[c][k][0], queries.q[c][k][1]);
      }
      int position = tile * TILE + lane / 4;
      bool edge = tile * TILE + TILE > item.kv_len || tile * TILE < visible;
      u32 weights[COLUMNS][2];
      bool grown = false;
      float shrink[COLUMNS][2];
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) {
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
          float y = s[c][0][e] + s[c][1][e];
#ifdef SOFTCAP
          x[e] = soft_capped(y * p.scale, p.softcap) * LOG2E;
#else
          x[e] = y * (p.scale * LOG2E);
#endif
          int at_position = position + e / 2 * 8;
#ifdef ALIBI
          x[e] += queries.slope[c][e % 2] * (float)(at_position - (item.kv_len - 1));
#endif
          if (edge && (at_position >= item.kv_len || at_position < visible)) x[e] = -INFINITY_F;
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float high = fmaxf(x[e], x[e + 2]);
#pragma unroll
          for (int by = 4; by < 32; by *= 2) high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, by));
          grown |= high > most[c][e];
          high = fmaxf(high, most[c][e]);
          float base = finite_base(high);
          shrink[c][e] = exp2_fast(most[c][e] - base);
          most[c][e] = high;
          x[e] = exp2_fast(x[e] - base);
          x[e + 2] = exp2_fast(x[e + 2] - base);
          total[c][e] = total[c][e] * shrink[c][e] + x[e] + x[e + 2];
        }
        weights[c][0] = transposed(pack2<model_t>(x[0], x[1]));
        weights[c][1] = transposed(pack2<model_t>(x[2], x[3]));
      }
      if (__any_sync(0xffffffffu, grown)) {
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
#pragma unroll
          for (int v = 0; v < VALUE_DIM / 16; v++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[c][v][e] *= shrink[c][e % 2];
      }
#pragma unroll
      for (int v = 0; v < VALUE_DIM / 16; v++) {
        u32 a[4];
        ldmatrix_transposed(a, at + value_row + v * 32);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) mma<model_t>(o[c][v], a, weights[c][0], weights[c][1]);
      }
      __syncwarp();
      loader.issue(at);
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int by = 4; by < 32; by *= 2) total[c][e] += __shfl_xor_sync(0xffffffffu, total[c][e], by);
        int head = c * 8 + lane % 4 * 2 + e;
        if (head < PACK) {
          if (lane < 4) part_weights[part * PACK + head] = make_float2(most[c][e], total[c][e]);
          float* to = part_sums + (part * PACK + head) * O_PITCH + lane / 4;
#pragma unroll
          for (int v = 0; v < VALUE_DIM / 16; v++) {
            to[v * 16] = o[c][v][e];
            to[v * 16 + 8] = o[c][v][e + 2];
          }
        }
      }
    __syncthreads();

    bool merges = finish_item(p, item, heads, part_sums, part_weights, &is_last);
    if (merges) merge_pieces(p, item, heads);
    item = next;
    next = after;
    if (QUERIES_AHEAD)
      queries = queries_ahead;
    else if (i + 1 < count)
      queries = Queries(p, item, lane);
  }
}

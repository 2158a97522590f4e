// arch: sm_80+
// variants: MODEL_BF16 HEADS=128 RANK=512 ROPE=64 ROWS=64 TILE=32 STAGES=3 BLOCK_SIZE=16; MODEL_F16 HEADS=16 RANK=512 ROPE=64 ROWS=16 TILE=64 STAGES=2 BLOCK_SIZE=32; MODEL_BF16 HEADS=20 RANK=48 ROPE=16 ROWS=64 TILE=32 STAGES=3 BLOCK_SIZE=16; MODEL_BF16 HEADS=40 RANK=512 ROPE=64 ROWS=32 TILE=32 STAGES=2 BLOCK_SIZE=16
//
// Attention over latents (DeepSeek-V2, absorbed form): every query head reads the one cached head, whose keys are RANK + ROPE
// elements and whose values are the first RANK of them. Tensor cores pay even for one token, since all its heads share what
// is read.
//
// A work item has up to ROWS queries, the heads of one token or of several neighbours, and a range of 16-position tiles; the host
// cuts the items and deals them to the blocks of a fixed grid (ops/attention_latent.rs). A block takes TILE positions at a time
// from a ring in shared memory: all warps share the scores, then each warp has all queries and RANK / 8 columns of the result.
// Queries that were cut leave their pieces in global memory, and `attention_latent_merge` adds these in their order.
//
// Numerics: a query's result depends on its own positions, on TILE and on where its range was cut; what other queries are in
// the item does not matter. With `cut` an item that runs across a multiple of `cut` tiles computes what pieces cut there and merged
// would be, bit for bit.
//
// HEADS: query heads. RANK, ROPE: multiples of 16. ROWS: 16, 32 or 64. TILE: a multiple of 16, at least 512 / ROWS. BLOCK_SIZE:
// positions of a cache block.
#include "attention/pieces.cuh"
#include "include/mma.cuh"

constexpr int WIDTH = RANK + ROPE;
constexpr int WARPS = 8, THREADS = WARPS * 32;
// Tokens of an item at most.
constexpr int TOKENS = HEADS >= ROWS ? 1 : ROWS / HEADS;
// 16-byte chunks of a query or key, and bytes from row to row in shared memory. Chunks are swizzled in groups of 8, so that 8
// rows at one column lie in different banks.
constexpr int CHUNKS = WIDTH / 8, PITCH = (CHUNKS + 7) / 8 * 128;
// Scores: warp w has 16 queries and COLUMNS positions.
constexpr int ROW_GROUPS = ROWS / 16, COLUMNS = TILE * ROW_GROUPS / WARPS, N_TILES = COLUMNS / 8;
constexpr int SCORE_PITCH = TILE + 8, WEIGHT_PITCH = TILE * 2 + 16;
// Lanes that share a query's softmax, and positions of one of them.
constexpr int LANES = THREADS / ROWS, SHARE = TILE / LANES;
// 16-column tiles of the result that a warp has.
constexpr int VALUE_TILES = (RANK / 16 + WARPS - 1) / WARPS;
static_assert(WIDTH % 16 == 0 && RANK % 16 == 0 && TILE % 16 == 0 && COLUMNS % 8 == 0 && N_TILES <= 2, "no such shape");

struct AttentionLatentParams {
  Rows<const model_t> q;   // [tokens, HEADS * WIDTH]
  Rows<model_t> out;       // [tokens, HEADS * RANK]
  Cache cache;             // one head; values are the prefix of keys
  Batch batch;
  const Item* items;       // [grid] the first of each block, begin = end where it has none, then all others
  const int* starts;       // [grid + 1] in items, the second of each block
  const int4* pairs;       // those that were cut: {token, q_head, first piece, pieces}, after one that holds their number
  float* piece_sums;       // [pieces, ROWS, RANK] weighted sums
  float2* piece_weights;   // [pieces, ROWS] largest score and sum of weights
  float* carried;          // [grid, ROWS, RANK], used where items run across cuts
  float scale;
  int cut;                 // tiles from cut to cut; 0 for none
};

DEVICE u32 swizzled(int row, int chunk) { return row * PITCH + ((chunk ^ (row & 7)) << 4); }

// Token and head of an item's query; the item's first token and head are given.
struct Query {
  int token, head;
  DEVICE Query(int first, int q_head, int row) : token(TOKENS > 1 ? first + row / HEADS : first), head(TOKENS > 1 ? row % HEADS : q_head + row) {}
  // Positions that it sees, 0 when there is no such query.
  DEVICE int visible(const AttentionLatentParams& p, int first, int row) const {
    bool there = TOKENS > 1 ? row < TOKENS * HEADS && token < p.batch.token_count && p.batch.row_of[token] == p.batch.row_of[first] : head < HEADS;
    return there ? p.batch.positions[token] + 1 : 0;
  }
};

// A sum of weighted parts, each relative to its own largest score, taken in order. The arithmetic is spelled out: it is the same
// wherever parts meet.
struct Fold {
  float most, total;
  DEVICE Fold() : most(-INFINITY_F), total(0.f) {}
  // Takes a part's {largest score, sum of weights}; returns what the sums so far and the part's sums are multiplied by.
  DEVICE float2 take(float2 part) {
    float high = fmaxf(most, part.x), base = finite_base(high);
    float2 by = make_float2(exp2_fast(most - base), exp2_fast(part.x - base));
    most = high;
    total = add(total, part.y, by);
    return by;
  }
  DEVICE static float add(float sum, float part, float2 by) { return fmaf(by.y, part, __fmul_rn(sum, by.x)); }
};

DEVICE float inverse(float total) { return total > 0.f ? 1.f / total : 0.f; }

// TILE positions from `from` on; those at `to` and later become zero.
DEVICE void load_tile(const AttentionLatentParams& p, const int* table, u32 stage, int from, int to) {
#pragma unroll
  for (int i = 0; i < (TILE * CHUNKS + THREADS - 1) / THREADS; i++) {
    int at = i * THREADS + threadIdx.x, row = at / CHUNKS, chunk = at % CHUNKS, position = from + row;
    if (TILE * CHUNKS % THREADS != 0 && at >= TILE * CHUNKS) break;
    bool there = position < to;
    i64 line = there ? (i64)table[position / BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE : 0;
    copy_async16(stage + swizzled(row, chunk), p.cache.keys + line * WIDTH + chunk * 8, there ? 16 : 0);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_latent(const __grid_constant__ AttentionLatentParams p) {
  // [ROWS] queries, [STAGES, TILE] keys, [ROWS] weights of TILE positions, [ROWS, SCORE_PITCH] scores.
  extern __shared__ __align__(128) u8 shared[];
  __shared__ float shrinks[ROWS];
  __shared__ float2 parts[ROWS];
  __shared__ int visible[ROWS];
  const u32 queries = shared_address(shared), ring = queries + ROWS * PITCH;
  const u32 weights = ring + STAGES * TILE * PITCH;
  float* scores = (float*)(shared + (ROWS + STAGES * TILE) * PITCH + ROWS * WEIGHT_PITCH);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t4 = lane % 4;
  // Of the softmax.
  const int my_row = threadIdx.x / LANES, my_part = threadIdx.x % LANES;
  float* carried = p.carried + (i64)blockIdx.x * ROWS * RANK;

  wait_for_previous();
  let_next_start();
  const Item* rest = p.items + p.starts[blockIdx.x];
  const int count = 1 + p.starts[blockIdx.x + 1] - p.starts[blockIdx.x];
#pragma unroll 1
  for (int index = 0; index < count; index++) {
    const Item item = load_item(index == 0 ? p.items + blockIdx.x : rest + index - 1);
    if (item.begin == item.end) return;
    const int* table = p.cache.tables + (i64)item.slot * p.cache.table_stride;
    const int from = item.begin * 16, to = min(item.end * 16, item.kv_len), tiles = (to - from + TILE - 1) / TILE;

    // Nobody reads the item before any more.
    __syncthreads();
    if (threadIdx.x < ROWS) visible[threadIdx.x] = Query(item.token, item.q_head, threadIdx.x).visible(p, item.token, threadIdx.x);
    __syncthreads();
    for (int at = threadIdx.x; at < ROWS * CHUNKS; at += THREADS) {
      int row = at / CHUNKS, chunk = at % CHUNKS;
      bool there = visible[row] > 0;
      Query query(item.token, item.q_head, there ? row : 0);
      copy_async16(queries + swizzled(row, chunk), p.q.row(query.token) + query.head * WIDTH + chunk * 8, there ? 16 : 0);
    }
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) {
      if (s < tiles) load_tile(p, table, ring + s * TILE * PITCH, from + s * TILE, to);
      copy_async_commit();
    }
    const int seen = visible[my_row];
    float most = -INFINITY_F, total = 0.f;
    float o[ROW_GROUPS][VALUE_TILES][2][4];
#pragma unroll
    for (int m = 0; m < ROW_GROUPS; m++)
#pragma unroll
      for (int v = 0; v < VALUE_TILES; v++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[m][v][0][e] = o[m][v][1][e] = 0.f;
    // What was carried over cuts, kept by each query's softmax lanes.
    Fold fold;
    bool carries = false;

#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++) {
      copy_async_wait<STAGES - 2>();
      __syncthreads();
      {
        int next = tile + STAGES - 1;
        if (next < tiles) load_tile(p, table, ring + next % STAGES * (TILE * PITCH), from + next * TILE, to);
        copy_async_commit();
      }
      const u32 stage = ring + tile % STAGES * (TILE * PITCH);
      const int start = from + tile * TILE;

      {
        const int row_group = warp % ROW_GROUPS, column = warp / ROW_GROUPS * COLUMNS;
        const int q_row = row_group * 16 + lane % 16;
        const int k_row = column + lane % 8 + (N_TILES == 2 ? lane / 16 * 8 : 0);
        // Two sums per tile halve the chain of dependent products.
        float s[N_TILES][2][4] = {};
#pragma unroll
        for (int k = 0; k < WIDTH / 16; k++) {
          u32 a[4];
          ldmatrix(a, queries + swizzled(q_row, 2 * k + lane / 16));
          if constexpr (N_TILES == 2) {
            u32 b[4];
            ldmatrix(b, stage + swizzled(k_row, 2 * k + lane / 8 % 2));
            mma<model_t>(s[0][k % 2], a, b[0], b[1]);
            mma<model_t>(s[1][k % 2], a, b[2], b[3]);
          } else {
            u32 b[2];
            ldmatrix(b, stage + swizzled(k_row, 2 * k + lane / 8 % 2));
            mma<model_t>(s[0][k % 2], a, b[0], b[1]);
          }
        }
#pragma unroll
        for (int n = 0; n < N_TILES; n++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            float* at = scores + (row_group * 16 + g + half * 8) * SCORE_PITCH + column + n * 8 + 2 * t4;
            *(float2*)at = make_float2(s[n][0][2 * half] + s[n][1][2 * half], s[n][0][2 * half + 1] + s[n][1][2 * half + 1]);
          }
      }
      __syncthreads();

      {
        const int end = min(seen, to) - start;
        float x[SHARE], high = -INFINITY_F, sum = 0.f;
#pragma unroll
        for (int j = 0; j < SHARE; j++) {
          int column = my_part * SHARE + j;
          x[j] = column < end ? scores[my_row * SCORE_PITCH + column] * (p.scale * LOG2E) : -INFINITY_F;
          high = fmaxf(high, x[j]);
        }
        high = fmaxf(most, warp_max<LANES>(high));
        const float base = finite_base(high), shrink = exp2_fast(most - base);
#pragma unroll
        for (int j = 0; j < SHARE; j += 2) {
          x[j] = exp2_fast(x[j] - base), x[j + 1] = exp2_fast(x[j + 1] - base);
          sum += x[j] + x[j + 1];
          *(u32*)(shared + (weights - queries) + my_row * WEIGHT_PITCH + (my_part * SHARE + j) * 2) = pack2<model_t>(x[j], x[j + 1]);
        }
        most = high;
        total = fmaf(total, shrink, warp_sum<LANES>(sum));
        if (my_part == 0) shrinks[my_row] = shrink;
      }
      __syncthreads();

#pragma unroll
      for (int m = 0; m < ROW_GROUPS; m++) {
        const float upper = shrinks[m * 16 + g], lower = shrinks[m * 16 + g + 8];
        if (__any_sync(0xffffffffu, upper != 1.f || lower != 1.f)) {
#pragma unroll
          for (int v = 0; v < VALUE_TILES; v++)
#pragma unroll
            for (int n = 0; n < 2; n++) o[m][v][n][0] *= upper, o[m][v][n][1] *= upper, o[m][v][n][2] *= lower, o[m][v][n][3] *= lower;
        }
      }
#pragma unroll
      for (int k = 0; k < TILE / 16; k++) {
        u32 a[ROW_GROUPS][4];
#pragma unroll
        for (int m = 0; m < ROW_GROUPS; m++) ldmatrix(a[m], weights + (m * 16 + lane % 16) * WEIGHT_PITCH + (2 * k + lane / 16) * 16);
#pragma unroll
        for (int v = 0; v < VALUE_TILES; v++) {
          const int column = warp * VALUE_TILES + v;
          if (RANK / 16 % WARPS != 0 && column >= RANK / 16) break;
          u32 b[4];
          ldmatrix_transposed(b, stage + swizzled(k * 16 + lane % 16, column * 2 + lane / 16));
#pragma unroll
          for (int m = 0; m < ROW_GROUPS; m++) {
            mma<model_t>(o[m][v][0], a[m], b[0], b[1]);
            mma<model_t>(o[m][v][1], a[m], b[2], b[3]);
          }
        }
      }

      const int next_start = start + TILE;
      const bool ends = next_start >= to;
      const bool crosses = !ends && p.cut != 0 && next_start % (p.cut * 16) == 0;
      if (crosses || (ends && carries)) {
        // Joins what was carried so far; each thread has its own elements of it.
        const float2 by = fold.take(make_float2(most, total));
        if (my_part == 0) parts[my_row] = by;
        __syncthreads();
#pragma unroll
        for (int m = 0; m < ROW_GROUPS; m++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const int row = m * 16 + g + half * 8;
            const float2 factors = parts[row];
#pragma unroll
            for (int v = 0; v < VALUE_TILES; v++) {
              const int column = warp * VALUE_TILES + v;
              if (RANK / 16 % WARPS != 0 && column >= RANK / 16) break;
#pragma unroll
              for (int n = 0; n < 2; n++) {
                float2* at = (float2*)(carried + row * RANK + column * 16 + n * 8 + 2 * t4);
                float2 sum = carries ? *at : make_float2(0.f, 0.f);
                float* x = &o[m][v][n][2 * half];
                x[0] = Fold::add(sum.x, x[0], factors), x[1] = Fold::add(sum.y, x[1], factors);
                if (crosses) {
                  *at = make_float2(x[0], x[1]);
                  x[0] = x[1] = 0.f;
                }
              }
            }
          }
        if (crosses) {
          most = -INFINITY_F, total = 0.f;
          carries = true;
        } else {
          most = fold.most, total = fold.total;
        }
      }
    }

    __syncthreads();
    if (my_part == 0) parts[my_row] = make_float2(most, total);
    __syncthreads();
    const i64 piece = item.piece + (item.share & 0xffff);
    if (item.piece >= 0 && threadIdx.x < ROWS) p.piece_weights[piece * ROWS + threadIdx.x] = parts[threadIdx.x];
#pragma unroll
    for (int m = 0; m < ROW_GROUPS; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = m * 16 + g + half * 8;
        if (visible[row] == 0) continue;
        const Query query(item.token, item.q_head, row);
        const float by = inverse(parts[row].y);
#pragma unroll
        for (int v = 0; v < VALUE_TILES; v++) {
          const int column = warp * VALUE_TILES + v;
          if (RANK / 16 % WARPS != 0 && column >= RANK / 16) break;
#pragma unroll
          for (int n = 0; n < 2; n++) {
            const int at = column * 16 + n * 8 + 2 * t4;
            const float x = o[m][v][n][2 * half], y = o[m][v][n][2 * half + 1];
            if (item.piece >= 0)
              *(float2*)(p.piece_sums + (piece * ROWS + row) * RANK + at) = make_float2(x, y);
            else
              *(u32*)(p.out.row(query.token) + query.head * RANK + at) = pack2<model_t>(x * by, y * by);
          }
        }
      }
  }
}

// Adds the pieces of queries that were cut and writes the results. A block has a query at a time.
extern "C" __global__ void __launch_bounds__(128) attention_latent_merge(const __grid_constant__ AttentionLatentParams p) {
  // Loads under way at once.
  constexpr int RUN = 8;
  wait_for_previous();
  let_next_start();
  const int units = p.pairs[0].x * ROWS;
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int4 pair = p.pairs[1 + unit / ROWS];
    const int row = unit % ROWS, pieces = pair.w;
    const Query query(pair.x, pair.y, row);
    if (query.visible(p, pair.x, row) == 0) continue;
    for (int column = threadIdx.x * 4; column < RANK; column += 128 * 4) {
      Fold fold;
      float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
      for (int from = 0; from < pieces; from += RUN) {
        float4 sums[RUN];
        float2 parts[RUN];
#pragma unroll
        for (int r = 0; r < RUN; r++) {
          i64 at = (i64)(pair.z + min(from + r, pieces - 1)) * ROWS + row;
          parts[r] = load_shared_by_all(p.piece_weights + at);
          sums[r] = load_shared_by_all(p.piece_sums + at * RANK + column);
        }
#pragma unroll
        for (int r = 0; r < RUN; r++) {
          if (from + r >= pieces) break;
          float2 by = fold.take(parts[r]);
          sum.x = Fold::add(sum.x, sums[r].x, by), sum.y = Fold::add(sum.y, sums[r].y, by);
          sum.z = Fold::add(sum.z, sums[r].z, by), sum.w = Fold::add(sum.w, sums[r].w, by);
        }
      }
      const float by = inverse(fold.total);
      *(uint2*)(p.out.row(query.token) + query.head * RANK + column) =
          make_uint2(pack2<model_t>(sum.x * by, sum.y * by), pack2<model_t>(sum.z * by, sum.w * by));
    }
  }
}

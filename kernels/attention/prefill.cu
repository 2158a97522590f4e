// arch: sm_80+
// variants: MODEL_BF16 K_DIM=128 V_DIM=128 GROUP=4; MODEL_F16 K_DIM=64 V_DIM=64 GROUP=1 WINDOW; MODEL_BF16 K_DIM=256 V_DIM=256 GROUP=8 SOFTCAP; MODEL_F16 K_DIM=192 V_DIM=128 GROUP=1 ALIBI SINKS; MODEL_BF16 K_DIM=80 V_DIM=80 GROUP=7 PREFIX
//
// Flash attention over the paged cache for many query tokens, with mma.sync and cp.async (Dao 2023).
//
// A block has ROWS query rows, 16 * TALL to a warp. Keys of the next tile are under way during softmax and the product with values,
// values during the product with keys.
//
// Defines beyond those of prefill.cuh, for tuning: QUERY_WARPS, TALL (1 or 2), KV_TILE (a multiple of 16). GROUP is at most ROWS.
// Launch: any grid, as many blocks a multiprocessor as it holds; THREADS threads; SHARED_BYTES of dynamic shared memory.
#include "attention/prefill.cuh"
#include "include/mma.cuh"

#ifndef TALL
#define TALL (K_DIM <= 128 && V_DIM <= 128 ? 2 : 1)
#endif
#ifndef QUERY_WARPS
#define QUERY_WARPS (GROUP <= 64 * TALL ? 4 : 8)
#endif
#ifndef KV_TILE
#define KV_TILE (K_DIM + V_DIM <= 128 ? 64 : K_DIM <= 128 && V_DIM <= 128 ? 32 : K_DIM + V_DIM <= 448 ? 64 : 48)
#endif

static constexpr int ROWS = 16 * TALL * QUERY_WARPS;
static constexpr int TOKENS = ROWS / GROUP;
static constexpr int THREADS = 32 * QUERY_WARPS;
static constexpr int K_STEPS = (K_DIM + 15) / 16, V_STEPS = (V_DIM + 15) / 16;
static constexpr int K_LINE = K_STEPS * 32 + 16, V_LINE = V_STEPS * 32 + 16;  // bytes; 16 more, against bank conflicts
static constexpr int SHARED_BYTES = (ROWS + KV_TILE) * K_LINE + KV_TILE * V_LINE;
static constexpr int BLOCKS = TALL * QUERY_WARPS > 8 ? 1 : TALL * (K_DIM + V_DIM) <= 128 ? 4 : TALL * (K_DIM + V_DIM) <= 256 ? 3 : TALL == 2 ? 2 : 1;
static_assert(GROUP <= ROWS && KV_TILE % 16 == 0, "shape");

struct PrefillParams {
  const model_t* q;  // [tokens, heads * K_DIM], rows aligned to 16 bytes
  i64 q_stride;
  const model_t* keys;    // [blocks, kv_heads, BLOCK_SIZE, K_DIM]
  const model_t* values;  // [blocks, kv_heads, BLOCK_SIZE, V_DIM]
  PrefillArgs args;
};

struct Shape {
  int tokens, threads, shared_bytes, kv_tile;
};
extern "C" __constant__ Shape prefill_shape = {TOKENS, THREADS, SHARED_BYTES, KV_TILE};

// Begins to copy a tile of keys or values; positions from kv_len on are zeros. `plane`: of the head in block 0.
template <int DIM, int LINE> DEVICE void load_tile(u32 to, const model_t* plane, const int* table, int kv_heads, int tile, int kv_len) {
  constexpr int PIECES = (LINE - 16) / 16;
#pragma unroll
  for (int group = 0; group < KV_TILE / 16; group++) {
    int at = tile * KV_TILE + group * 16;
    const model_t* from = plane;
    if (at < kv_len) from += (i64)table[at / BLOCK_SIZE] * kv_heads * (BLOCK_SIZE * DIM) + at % BLOCK_SIZE * DIM;
#pragma unroll
    for (int j = 0; j < (16 * PIECES + THREADS - 1) / THREADS; j++) {
      int i = threadIdx.x + j * THREADS, line = i / PIECES, piece = i % PIECES;
      if (16 * PIECES % THREADS != 0 && line >= 16) break;
      bool there = line < kv_len - at && (DIM % 16 == 0 || piece * 8 < DIM);
      copy_async16(to + (group * 16 + line) * LINE + piece * 16, there ? from + line * DIM + piece * 8 : plane, there ? 16 : 0);
    }
  }
  copy_async_commit();
}

DEVICE float (&part(float* x))[4] { return *(float(*)[4])x; }

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) prefill(const __grid_constant__ PrefillParams p) {
  extern __shared__ __align__(16) u8 raw[];
  __shared__ u32 next;
  const PrefillArgs& args = p.args;
  u32 q = shared_address(raw), k = q + ROWS * K_LINE, v = k + KV_TILE * K_LINE;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int first_row = warp * (16 * TALL) + lane / 4;
  // Where this lane's rows of ldmatrix begin.
  u32 q_from = q + (warp * (16 * TALL) + lane % 16) * K_LINE + lane / 16 * 16;
  u32 k_from = k + (lane % 8 + lane / 16 * 8) * K_LINE + lane / 8 % 2 * 16;
  u32 v_from = v + lane % 16 * V_LINE + lane / 16 * 16;
  Softmax softmax[TALL] = {
      Softmax(args),
#if TALL == 2
      Softmax(args),
#endif
  };
  float o[TALL][V_STEPS * 8];

  wait_for_previous();
  let_next_start();
  u32 count = args.plan->count, heads = args.plan->heads, total = count * args.kv_heads;
  for (u32 index = blockIdx.x; index < total; index = next) {
    __syncthreads();
    if (threadIdx.x == 0) next = draw_item(args.plan, total);
    Item item = make_item<KV_TILE>(args.plan, index, count, heads, args.window);
    int head = item.head;
#pragma unroll
    for (int t = 0; t < TALL; t++) softmax[t].begin<KV_TILE>(item, first_row + 16 * t);
    const int* table = args.tables + (i64)item.slot * args.table_stride;
    auto load_keys = [&](int tile) { load_tile<K_DIM, K_LINE>(k, p.keys + head * (BLOCK_SIZE * K_DIM), table, args.kv_heads, tile, item.kv_len); };
    auto load_values = [&](int tile) { load_tile<V_DIM, V_LINE>(v, p.values + head * (BLOCK_SIZE * V_DIM), table, args.kv_heads, tile, item.kv_len); };

    for (int i = threadIdx.x; i < ROWS * K_STEPS * 2; i += THREADS) {
      int row = i / (K_STEPS * 2), piece = i % (K_STEPS * 2), token = row / GROUP;
      bool there = token < item.tokens && piece * 8 < K_DIM;
      const model_t* from = there ? p.q + (item.token + token) * p.q_stride + (head * GROUP + row % GROUP) * K_DIM + piece * 8 : p.q;
      copy_async16(q + row * K_LINE + piece * 16, from, there ? 16 : 0);
    }
    load_keys(item.to - 1);
    load_values(item.to - 1);
#pragma unroll
    for (int t = 0; t < TALL; t++)
#pragma unroll
      for (int i = 0; i < V_STEPS * 8; i++) o[t][i] = 0.f;

    for (int tile = item.to - 1; tile >= item.from; tile--) {
      float s[TALL][KV_TILE / 2];
      u32 weights[TALL][KV_TILE / 4];
      copy_async_wait<1>();
      __syncthreads();
#pragma unroll
      for (int t = 0; t < TALL; t++)
#pragma unroll
        for (int i = 0; i < KV_TILE / 2; i++) s[t][i] = 0.f;
#pragma unroll
      for (int i = 0; i < K_STEPS; i++) {
        u32 a[TALL][4];
#pragma unroll
        for (int t = 0; t < TALL; t++) ldmatrix(a[t], q_from + t * (16 * K_LINE) + i * 32);
#pragma unroll
        for (int n = 0; n < KV_TILE / 16; n++) {
          u32 b[4];
          ldmatrix(b, k_from + n * (16 * K_LINE) + i * 32);
#pragma unroll
          for (int t = 0; t < TALL; t++) {
            mma<model_t>(part(s[t] + 8 * n), a[t], b[0], b[1]);
            mma<model_t>(part(s[t] + 8 * n + 4), a[t], b[2], b[3]);
          }
        }
      }
      __syncthreads();
      if (tile > item.from) load_keys(tile - 1);
      else copy_async_commit();

#pragma unroll
      for (int t = 0; t < TALL; t++) {
        float shrink[2];
        softmax[t].run(s[t], tile, shrink);
        pack_weights(weights[t], s[t]);
        if (Softmax::rescales(shrink)) {
#pragma unroll
          for (int i = 0; i < V_STEPS * 8; i++) o[t][i] *= shrink[i / 2 % 2];
        }
      }
      copy_async_wait<1>();
      __syncthreads();
#pragma unroll
      for (int i = 0; i < KV_TILE / 16; i++) {
#pragma unroll
        for (int n = 0; n < V_STEPS; n++) {
          u32 b[4];
          ldmatrix_transposed(b, v_from + i * (16 * V_LINE) + n * 32);
#pragma unroll
          for (int t = 0; t < TALL; t++) {
            const u32(&a)[4] = *(const u32(*)[4])(weights[t] + 4 * i);
            mma<model_t>(part(o[t] + 8 * n), a, b[0], b[1]);
            mma<model_t>(part(o[t] + 8 * n + 4), a, b[2], b[3]);
          }
        }
      }
      __syncthreads();
      if (tile > item.from) load_values(tile - 1);
      else copy_async_commit();
    }
#pragma unroll
    for (int t = 0; t < TALL; t++) store_rows(softmax[t], item, first_row + 16 * t, o[t]);
  }
}

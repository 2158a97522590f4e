// arch: sm_80+
// variants: MODEL_BF16 EXPERTS=128 TOP_K=8 WARPS=32; MODEL_F32 EXPERTS=5 TOP_K=5 WARPS=32; MODEL_F16 EXPERTS=1024 TOP_K=8 WARPS=8
//
// Sorts pairs by expert: a stable counting sort by one block, so that the order is the same in every run. Each warp counts
// and then places a run of pairs of its own.
//
// Defines: EXPERTS, TOP_K, WARPS of the block.
#include "moe/order.cuh"

struct SortParams {
  Rows<const int> ids;
  const int* row_of;  // -1 for padding rows, which get no experts; or null
  Order order;
  int rows;
  int tile;  // most slots of a tile
};

// Grid: 1. Shared memory: counts [WARPS][EXPERTS], then [EXPERTS] first slot, slots, first tile.
extern "C" __global__ void __launch_bounds__(32 * WARPS) sort(const __grid_constant__ SortParams p) {
  extern __shared__ int shared[];
  int* counts = shared;
  int* first = shared + WARPS * EXPERTS;
  int* total = first + EXPERTS;
  int* first_tile = total + EXPERTS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int pairs = p.rows * TOP_K;
  const int run = (pairs + 32 * WARPS - 1) / (32 * WARPS) * 32;
  const int begin = warp * run, end = min(pairs, begin + run);
  for (int i = threadIdx.x; i < WARPS * EXPERTS; i += 32 * WARPS) counts[i] = 0;
  let_next_start();
  wait_for_previous();
  __syncthreads();
  auto expert_of = [&](int pair) {
    if (pair >= end) return -1;
    const int row = pair / TOP_K;
    if (p.row_of != nullptr && p.row_of[row] < 0) return -1;
    const int e = p.ids.row(row)[pair % TOP_K];
    return e >= 0 && e < EXPERTS ? e : -1;
  };
  int* mine = counts + warp * EXPERTS;
  for (int at = begin; at < end; at += 32) {
    const int e = expert_of(at + lane);
    const u32 same = __match_any_sync(0xffffffffu, e);
    if (e >= 0 && lane == __ffs(same) - 1) mine[e] += __popc(same);
    __syncwarp();
  }
  __syncthreads();
  for (int e = threadIdx.x; e < EXPERTS; e += 32 * WARPS) {
    int sum = 0;
    for (int w = 0; w < WARPS; w++) {
      const int n = counts[w * EXPERTS + e];
      counts[w * EXPERTS + e] = sum;
      sum += n;
    }
    total[e] = sum;
  }
  __syncthreads();
  if (warp == 0) {
    int slots = 0, tiles = 0;
    for (int at = 0; at < EXPERTS; at += 32) {
      const int e = at + lane, n = e < EXPERTS ? total[e] : 0, t = (n + p.tile - 1) / p.tile;
      int sum = n, sum_t = t;
#pragma unroll
      for (int by = 1; by < 32; by *= 2) {
        const int a = __shfl_up_sync(0xffffffffu, sum, by), b = __shfl_up_sync(0xffffffffu, sum_t, by);
        if (lane >= by) sum += a, sum_t += b;
      }
      if (e < EXPERTS) first[e] = slots + sum - n, first_tile[e] = tiles + sum_t - t;
      slots += __shfl_sync(0xffffffffu, sum, 31), tiles += __shfl_sync(0xffffffffu, sum_t, 31);
    }
    if (lane == 0) *p.order.count = tiles;
  }
  __syncthreads();
  for (int e = warp; e < EXPERTS; e += WARPS) {
    for (int at = lane * p.tile; at < total[e]; at += 32 * p.tile) {
      p.order.tiles[first_tile[e] + at / p.tile] = make_int4(e, first[e] + at, min(p.tile, total[e] - at), 0);
    }
  }
  for (int at = begin; at < end; at += 32) {
    const int e = expert_of(at + lane);
    const u32 same = __match_any_sync(0xffffffffu, e);
    const int rank = __popc(same & ((1u << lane) - 1));
    const int slot = e >= 0 ? first[e] + mine[e] + rank : -1;
    __syncwarp();
    if (e >= 0 && rank == 0) mine[e] += __popc(same);
    __syncwarp();
    if (at + lane < end) p.order.slot_of[at + lane] = slot;
    if (slot >= 0) p.order.pair_of[slot] = at + lane;
  }
}

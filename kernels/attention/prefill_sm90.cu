// arch: sm_90a
// variants: MODEL_BF16 K_DIM=128 V_DIM=128 GROUP=4; MODEL_BF16 K_DIM=64 V_DIM=64 GROUP=4; MODEL_F16 K_DIM=256 V_DIM=256 GROUP=2 WINDOW SOFTCAP; MODEL_BF16 K_DIM=192 V_DIM=128 GROUP=1 ALIBI; MODEL_BF16 K_DIM=80 V_DIM=80 GROUP=7 SINKS; MODEL_F16 K_DIM=96 V_DIM=96 GROUP=1 PREFIX
//
// Flash attention over the paged cache for many query tokens (Dao 2023; Shah et al. 2024).
//
// A block has four producer warps, which copy tiles by TMA (two of them keys and two values: there are many small boxes), and
// QUERY_GROUPS warpgroups that each own 64 query rows of the item: S = Q K^T and O += P V by wgmma, S, P and O in registers. A
// warpgroup's softmax runs beside its own product with the values of the tile before and beside the other warpgroup's
// products; they take turns at issuing.
//
// Defines beyond those of prefill.cuh, for tuning: KV_TILE (a multiple of 16), QUERY_GROUPS (2 or 3), STAGES and Q_STAGES (tiles
// of keys, values and queries in flight). GROUP is at most 64 * QUERY_GROUPS.
//
// Launch: any grid, one block a multiprocessor; THREADS threads; SHARED_BYTES of dynamic shared memory.
// Tensor maps, of 16-bit elements, with 128-byte swizzle and zero fill, innermost dimension first:
//   q  [K_DIM, heads, tokens], stride of a token as its buffer has it; box [64, GROUP, TOKENS]
//   k  [K_DIM, BLOCK_SIZE, blocks * kv_heads]; box [64, 16, 1]. v likewise of V_DIM.
#include "attention/prefill.cuh"
#include "include/tma.cuh"
#include "include/wgmma.cuh"

#ifndef QUERY_GROUPS
#define QUERY_GROUPS (K_DIM <= 64 && V_DIM <= 64 ? 3 : 2)
#endif
#ifndef KV_TILE
#define KV_TILE (K_DIM <= 128 && V_DIM <= 128 ? 128 : K_DIM <= 192 && V_DIM <= 192 ? 96 : 64)
#endif
#ifndef STAGES
#define STAGES (K_DIM <= 64 && V_DIM <= 64 ? 3 : 2)
#endif

static constexpr int ROWS = 64 * QUERY_GROUPS;
static constexpr int TOKENS = ROWS / GROUP;
static constexpr int K_PANELS = (K_DIM + 63) / 64, V_PANELS = (V_DIM + 63) / 64;  // of 64 columns, the width of a swizzle line
static constexpr int K_STEPS = (K_DIM + 15) / 16;
static constexpr int OUT_COLUMNS = (V_DIM + 15) / 16 * 16;
static constexpr int PANEL_BYTES = KV_TILE * 128;
static constexpr int Q_BYTES = ROWS * K_PANELS * 128;
static constexpr int K_BYTES = K_PANELS * PANEL_BYTES, V_BYTES = V_PANELS * PANEL_BYTES;  // of a tile
#ifndef Q_STAGES
static constexpr int Q_STAGES = 1024 + 2 * Q_BYTES + STAGES * (K_BYTES + V_BYTES) <= 226 * 1024 ? 2 : 1;
#endif
static constexpr int THREADS = 128 * (QUERY_GROUPS + 1);
static constexpr int SHARED_BYTES = 1024 + Q_STAGES * Q_BYTES + STAGES * (K_BYTES + V_BYTES);
static constexpr int CONSUMER_REGISTERS = QUERY_GROUPS > 2 ? 160 : 232;
static constexpr int PRODUCER_REGISTERS = QUERY_GROUPS > 2 ? 32 : 40;
static constexpr int BOXES = KV_TILE / 16;  // of a panel
static_assert(GROUP <= ROWS && KV_TILE % 16 == 0 && BOXES * K_PANELS <= 64 && BOXES * V_PANELS <= 64, "shape");

struct PrefillSm90Params {
  TensorMap q, k, v;
  PrefillArgs args;
};

struct Shape {
  int tokens, threads, shared_bytes, kv_tile;
};
extern "C" __constant__ Shape prefill_sm90_shape = {TOKENS, THREADS, SHARED_BYTES, KV_TILE};

// `full` barriers count warps that copy, `empty` barriers warps that read. An item with from < 0 ends the block.
struct Barriers {
  u64 q_full[Q_STAGES], q_empty[Q_STAGES], item_full[2], item_empty[2];
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

// Copies an item's tiles of keys or values, this warp every other box.
template <int PANELS> DEVICE void feed(const PrefillArgs& args, const Item& item, const TensorMap* map, u8* tiles, u64* full, u64* empty, Ring<STAGES>& ring) {
  int half = threadIdx.x / 32 % 2, lane = threadIdx.x % 32;
  int mine = lane * 2 + half, box = mine % BOXES, panel = mine / BOXES;
  int bytes = (BOXES * PANELS + 1 - half) / 2 * 2048;
  const int* table = args.tables + (i64)item.slot * args.table_stride;
  // A block that is not there is -1, and outside of the map: zeros.
  auto block = [&](int tile) {
    int at = tile * KV_TILE + box * 16;
    return tile >= item.from && at < item.kv_len ? table[at / BLOCK_SIZE] : -1;
  };
  int now = block(item.to - 1);
  for (int tile = item.to - 1; tile >= item.from; tile--) {
    int next = block(tile - 1);
    mbarrier_wait(&empty[ring.at], ring.phase ^ 1);
    if (lane == 0) mbarrier_arrive_expect(&full[ring.at], bytes);
    __syncwarp();
    if (panel < PANELS)
      tensor_load_3d(tiles + ring.at * (PANELS * PANEL_BYTES) + panel * PANEL_BYTES + box * 2048, map, &full[ring.at], panel * 64,
                     (tile * KV_TILE + box * 16) % BLOCK_SIZE, now < 0 ? -1 : now * args.kv_heads + item.head);
    ring.next();
    now = next;
  }
}

DEVICE void produce(const PrefillSm90Params& p, Barriers& bars, u8* q, u8* k, u8* v) {
  const PrefillArgs& args = p.args;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  u32 count = args.plan->count, heads = args.plan->heads, total = count * args.kv_heads;
  Ring<STAGES> ring;
  Ring<2> item_ring;
  Ring<Q_STAGES> q_ring;
  for (u32 index = blockIdx.x;;) {
    Item item;
    if (warp == 0) {
      mbarrier_wait(&bars.item_empty[item_ring.at], item_ring.phase ^ 1);
      item.from = -1;
      if (index < total) item = make_item<KV_TILE>(args.plan, index, count, heads, args.window);
      if (lane == 0) {
        bars.items[item_ring.at] = item;
        mbarrier_arrive(&bars.item_full[item_ring.at]);
      }
    } else {
      mbarrier_wait(&bars.item_full[item_ring.at], item_ring.phase);
      item = bars.items[item_ring.at];
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&bars.item_empty[item_ring.at]);
    }
    item_ring.next();
    if (item.from < 0) return;
    if (warp < 2) {
      u32 next = 0;
      if (warp == 0) {
        if (lane == 0) {
          next = draw_item(args.plan, total);
          mbarrier_wait(&bars.q_empty[q_ring.at], q_ring.phase ^ 1);
          mbarrier_arrive_expect(&bars.q_full[q_ring.at], K_PANELS * TOKENS * GROUP * 128);
          for (int i = 0; i < K_PANELS; i++)
            tensor_load_3d(q + q_ring.at * Q_BYTES + i * (ROWS * 128), &p.q, &bars.q_full[q_ring.at], L2_EVICT_FIRST, i * 64, item.head * GROUP, item.token);
        }
        q_ring.next();
      }
      feed<K_PANELS>(args, item, &p.k, k, bars.k_full, bars.k_empty, ring);
      index = __shfl_sync(0xffffffffu, next, 0);
    } else {
      feed<V_PANELS>(args, item, &p.v, v, bars.v_full, bars.v_empty, ring);
    }
  }
}

DEVICE void start_scores(float (&s)[KV_TILE / 2], u64 q, u64 k) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < K_STEPS; i++)
    wgmma_ss<model_t, K_MAJOR>(s, advance(q, i / 4 * (ROWS * 128) + i % 4 * 32), advance(k, i / 4 * PANEL_BYTES + i % 4 * 32), i > 0);
  wgmma_commit();
}
DEVICE void start_sums(float (&o)[OUT_COLUMNS / 2], const u32 (&weights)[KV_TILE / 4], u64 v, bool more) {
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < KV_TILE / 16; i++) wgmma_rs<model_t, MN_MAJOR>(o, weights + 4 * i, advance(v, i * 2048), i > 0 || more);
  wgmma_commit();
}

// Has a softmax's arithmetic done before what follows; the assembler would move the wait for a product above it. The store
// never happens, as sums of weights are not negative, but the assembler cannot know.
DEVICE void settle(const Softmax& softmax) {
  asm volatile("{.reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p st.shared.f32 [%1], %0;}" ::"f"(softmax.rows[0].total + softmax.rows[1].total), "r"(0) : "memory");
}

DEVICE void take_turn(int me) { named_sync(1 + me, 256); }
DEVICE void pass_turn(int me) { named_arrive(1 + (me + 1) % QUERY_GROUPS, 256); }

DEVICE void consume(const PrefillArgs& args, Barriers& bars, const u8* q, const u8* k, u8* v) {
  int me = threadIdx.x / 128 - 1, lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16 - 64 + lane / 4;
  u64 q_desc = matrix_desc<128>(smem_address(q) + me * 8192, 1024);
  u64 k_desc = matrix_desc<128>(smem_address(k), 1024);
  u64 v_desc = matrix_desc<128>(smem_address(v), 1024, PANEL_BYTES);
  Ring<STAGES> k_ring, v_ring;
  Ring<2> item_ring;
  Ring<Q_STAGES> q_ring;
  Softmax softmax(args);
  float s[KV_TILE / 2], o[OUT_COLUMNS / 2], shrink[2];
  u32 weights[KV_TILE / 4];
  auto release = [&](u64* empty) {
    if (lane == 0) mbarrier_arrive(empty);
  };
  if (me == QUERY_GROUPS - 1) pass_turn(me);

  auto next_item = [&] {
    mbarrier_wait(&bars.item_full[item_ring.at], item_ring.phase);
    Item item = bars.items[item_ring.at];
    __syncwarp();
    release(&bars.item_empty[item_ring.at]);
    item_ring.next();
    return item;
  };
  Item item = next_item();
  if (item.from < 0) return;
  mbarrier_wait(&bars.q_full[q_ring.at], q_ring.phase);
  mbarrier_wait(&bars.k_full[k_ring.at], k_ring.phase);
  start_scores(s, q_desc, k_desc);
  wgmma_wait<0>();
  hold(s);
  for (;;) {
    softmax.begin<KV_TILE>(item, first_row);
    int tile = item.to - 1;
    u64 q_tile = advance(q_desc, q_ring.at * Q_BYTES);
    release(&bars.k_empty[k_ring.at]);
    k_ring.next();
    softmax.run(s, tile, shrink);
    pack_weights(weights, s);
    // Values after the sequence's end may be anything; their weight is zero, and NaN times zero is not. (Whole boxes after
    // the end are zeros.)
    if (item.kv_len % 16 != 0 && item.kv_len < item.to * KV_TILE) {
      mbarrier_wait(&bars.v_full[v_ring.at], v_ring.phase);
      int line = item.kv_len - tile * KV_TILE, lines = 16 - item.kv_len % 16;
      for (int i = threadIdx.x - 128; i < lines * V_PANELS * 8; i += QUERY_GROUPS * 128) {
        u8* to = v + v_ring.at * V_BYTES + i / 8 % V_PANELS * PANEL_BYTES + (line + i / 8 / V_PANELS) * 128 + i % 8 * 16;
        *(int4*)to = make_int4(0, 0, 0, 0);
      }
      fence_async_shared();
      named_sync(1 + QUERY_GROUPS, QUERY_GROUPS * 128);
    }
    bool more = false;
    for (tile--; tile >= item.from; tile--) {
      mbarrier_wait(&bars.k_full[k_ring.at], k_ring.phase);
      take_turn(me);
      start_scores(s, q_tile, advance(k_desc, k_ring.at * K_BYTES));
      mbarrier_wait(&bars.v_full[v_ring.at], v_ring.phase);
      start_sums(o, weights, advance(v_desc, v_ring.at * V_BYTES), more);
      more = true;
      pass_turn(me);
      wgmma_wait<1>();
      hold(s);
      release(&bars.k_empty[k_ring.at]);
      k_ring.next();
      softmax.run(s, tile, shrink);
      settle(softmax);
      wgmma_wait<0>();
      hold(o);
      hold(weights);
      release(&bars.v_empty[v_ring.at]);
      v_ring.next();
      if (Softmax::rescales(shrink)) {
#pragma unroll
        for (int i = 0; i < OUT_COLUMNS / 2; i++) o[i] *= shrink[i / 2 % 2];
      }
      pack_weights(weights, s);
    }
    release(&bars.q_empty[q_ring.at]);
    q_ring.next();
    mbarrier_wait(&bars.v_full[v_ring.at], v_ring.phase);
    start_sums(o, weights, advance(v_desc, v_ring.at * V_BYTES), more);
    Item next = next_item();
    if (next.from >= 0) {
      mbarrier_wait(&bars.q_full[q_ring.at], q_ring.phase);
      mbarrier_wait(&bars.k_full[k_ring.at], k_ring.phase);
    }
    // The next item's first product runs while this one's results are written. (After the last it is one of old tiles.)
    start_scores(s, advance(q_desc, q_ring.at * Q_BYTES), advance(k_desc, k_ring.at * K_BYTES));
    wgmma_wait<1>();
    hold(o);
    release(&bars.v_empty[v_ring.at]);
    v_ring.next();
    store_rows(softmax, item, first_row, o);
    wgmma_wait<0>();
    hold(s);
    if (next.from < 0) break;
    item = next;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) prefill_sm90(const __grid_constant__ PrefillSm90Params p) {
  extern __shared__ u8 raw[];
  __shared__ Barriers bars;
  u8* q = (u8*)(((u64)raw + 1023) & ~1023ull);
  u8* k = q + Q_STAGES * Q_BYTES;
  u8* v = k + STAGES * K_BYTES;
  if (threadIdx.x == 0) {
    constexpr int WARPS = 4 * QUERY_GROUPS;
    for (int i = 0; i < Q_STAGES; i++) {
      mbarrier_init(&bars.q_full[i], 1);
      mbarrier_init(&bars.q_empty[i], WARPS);
    }
    for (int i = 0; i < 2; i++) {
      mbarrier_init(&bars.item_full[i], 1);
      mbarrier_init(&bars.item_empty[i], WARPS + 3);
    }
    for (int i = 0; i < STAGES; i++) {
      mbarrier_init(&bars.k_full[i], 2);
      mbarrier_init(&bars.k_empty[i], WARPS);
      mbarrier_init(&bars.v_full[i], 2);
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
    produce(p, bars, q, k, v);
  } else {
    registers_more<CONSUMER_REGISTERS>();
    consume(p.args, bars, q, k, v);
  }
}

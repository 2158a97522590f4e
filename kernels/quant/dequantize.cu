// arch: sm_80+
// variants: MODEL_BF16 QUANT_TYPES=0x3ff; MODEL_F32 QUANT_TYPES=0x280; MODEL_F16 QUANT_TYPES=0x10 OUT_SCALAR
//
// Quantized rows as elements of model_t: the exact f32 value (bit for bit that of the reference), rounded once where model_t
// has 16 bits. Floor: the packed bytes once, the elements once. With -DOUT_SCALAR rows of the output need no alignment;
// otherwise they are 16-byte aligned.
#include "quant/blocks.cuh"

#define SEGMENTS 8

struct QuantRowsSegment {
  const u8* panels;  // of the first row
  u32 type;
  int rows;
  int first_panel;  // panels of the segments ahead of it
  int first_row;    // where its rows go
};
struct QuantRowsParams {
  model_t* out;  // [rows of all segments, k]
  i64 stride;
  int k;
  int stages;  // ceil(k / 256)
  int panels;  // of all segments
  int segment_count;
  QuantRowsSegment segments[SEGMENTS];
};

struct QuantEmbeddingParams {
  const u8* panels;     // [rows, k]
  Rows<const int> ids;  // [count]; those outside the table give the nearest row
  Rows<model_t> out;    // [count, k]
  u32 type;
  int rows;
  int k;
  int stages;  // ceil(k / 256)
  int count;
};

static constexpr int OUT_WORDS = sizeof(model_t) * 2;  // of 8 elements

// Two elements from word 2 `at` (of f32) or `at` on.
template <class T> DEVICE void put_pair(u32 (&w)[OUT_WORDS], int at, float x, float y) {
  if constexpr (sizeof(T) == 4) w[2 * at] = __float_as_uint(x), w[2 * at + 1] = __float_as_uint(y);
  else w[at] = pack2<T>(x, y);
}

// Eight neighbouring elements to `to`, which takes as many as the row has.
DEVICE void put(model_t* to, const u32 (&w)[OUT_WORDS]) {
#if defined(OUT_SCALAR)
#pragma unroll
  for (int i = 0; i < OUT_WORDS; i++) {
    if constexpr (sizeof(model_t) == 4) reinterpret_cast<u32*>(to)[i] = w[i];
    else reinterpret_cast<u16*>(to)[2 * i] = (u16)w[i], reinterpret_cast<u16*>(to)[2 * i + 1] = (u16)(w[i] >> 16);
  }
#else
#pragma unroll
  for (int i = 0; i < OUT_WORDS / 4; i++)
    reinterpret_cast<uint4*>(to)[i] = make_uint4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]);
#endif
}

// Group j of row g + 8h of a stage, all four lanes of the row together: 8 elements a lane to columns
// 32j + 8t .. of `row`, which points to the stage's first column. Every lane of the warp must call it.
template <int TYPE> DEVICE void emit(const Stage<TYPE>& stage, int j, int h, model_t* row, int t, bool there,
                              const Registers& in) {
  typedef Format<TYPE> F;
  u32 w[OUT_WORDS];
#pragma unroll
  for (int s = 0; s < 2; s++) {
    float2 ab = stage.affine(F::SUB == 16 ? 2 * j + s : j, h, in);
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float2 q = unpack2<bf16>(stage.template pair<bf16, true>(j, 4 * s + 2 * r + h, in));
      float x = F::MIN ? fmaf(ab.x, q.x, ab.y) : ab.x * q.x, y = F::MIN ? fmaf(ab.x, q.y, ab.y) : ab.x * q.y;
      put_pair<model_t>(w, 2 * s + r, x, y);
    }
  }
  if constexpr (F::SUB == 16) {
    // Lane t has columns 4t .. of both products of 16. Even lanes take the first product's eight of theirs and their
    // neighbour's, odd lanes the second's.
    constexpr int HALF = OUT_WORDS / 2;
    bool odd = t % 2;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
      u32 got = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[HALF + i], 1);
      if (odd) w[i] = got;
      else w[HALF + i] = got;
    }
    if (there) put(row + 32 * j + 16 * (t % 2) + t / 2 * 8, w);
  } else {
    if (there) put(row + 32 * j + 8 * t, w);
  }
}

struct DequantizeRows {
  const QuantRowsParams& p;
  const QuantRowsSegment& segment;
  int panel, stage;

  template <int TYPE> DEVICE void run() const {
    int lane = threadIdx.x % 32, k = stage * STAGE;
    Stage<TYPE> bits;
    Registers in = registers<bf16, true>(p.k);
    bits.template load<FromGlobal>(stage_at<TYPE>(segment.panels, p.k, panel, stage), stage_chunks<TYPE>(p.k, stage), lane);
    bits.prepare();
    wait_for_previous();
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int row = panel * PANEL + lane / 4 + 8 * h;
      model_t* to = p.out + (segment.first_row + row) * p.stride + k;
#pragma unroll
      for (int j = 0; j < STAGE / 32; j++) emit<TYPE>(bits, j, h, to, lane % 4, row < segment.rows && k + 32 * j < p.k, in);
    }
  }
};

// One warp a panel and stage.
extern "C" __global__ void __launch_bounds__(256) quant_rows(const __grid_constant__ QuantRowsParams p) {
  let_next_start();
  i64 item = (i64)blockIdx.x * 8 + threadIdx.x / 32;
  int panel = (int)(item / p.stages), stage = (int)(item % p.stages), s = 0;
  if (panel >= p.panels) return;
  while (s + 1 < p.segment_count && panel >= p.segments[s + 1].first_panel) s++;
  const QuantRowsSegment& segment = p.segments[s];
  with_type(segment.type, DequantizeRows{p, segment, panel - segment.first_panel, stage});
}

struct EmbeddingRows {
  const QuantEmbeddingParams& p;
  int id, stage;
  model_t* to;  // null past the last row

  template <int TYPE> DEVICE void run() const {
    // The four lanes act as those that hold their row in its panel.
    int t = threadIdx.x % 4, half = id / 8 % 2;
    Stage<TYPE> bits;
    Registers in = registers<bf16, true>(p.k);
    bits.template load<FromGlobal>(stage_at<TYPE>(p.panels, p.k, id / PANEL, stage), stage_chunks<TYPE>(p.k, stage), id % 8 * 4 + t);
    bits.prepare();
#pragma unroll
    for (int j = 0; j < STAGE / 32; j++) {
      bool there = to != nullptr && stage * STAGE + 32 * j < p.k;
      // Both halves by all lanes, because lanes exchange elements.
      emit<TYPE>(bits, j, 0, to, t, there && half == 0, in);
      emit<TYPE>(bits, j, 1, to, t, there && half == 1, in);
    }
  }
};

// One warp takes a stage of eight ids, four lanes each.
extern "C" __global__ void __launch_bounds__(128) quant_embedding(const __grid_constant__ QuantEmbeddingParams p) {
  let_next_start();
  wait_for_previous();
  i64 item = (i64)blockIdx.x * 4 + threadIdx.x / 32;
  int group = (int)(item / p.stages), stage = (int)(item % p.stages);
  if (group * 8 >= p.count) return;
  int row = group * 8 + threadIdx.x % 32 / 4;
  bool there = row < p.count;
  int id = there ? min(max(p.ids.row(row)[0], 0), p.rows - 1) : 0;
  with_type(p.type, EmbeddingRows{p, id, stage, there ? p.out.row(row) + stage * STAGE : nullptr});
}

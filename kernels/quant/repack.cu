// arch: sm_80+
// variants: MODEL_BF16 QUANT_TYPES=0x3ff
//
// GGUF rows to the panels of blocks.cuh, lossless. Runs once a weight, at load; one warp a chunk.
#include "quant/blocks.cuh"

struct QuantRepackParams {
  const u8* rows;  // [row_count, k / BLOCK blocks], as in the file
  u8* panels;      // 16-byte aligned; the panel of the first row
  int row_count;
  int k;
  u32 type;
};

// Element k of a row of blocks: low and high bits as the planes hold them.
template <int TYPE> DEVICE u32 low_bits(const u8* row, int k) {
  const u8* block = row + k / Format<TYPE>::BLOCK * Format<TYPE>::BLOCK_BYTES;
  int i = k % Format<TYPE>::BLOCK;
  if constexpr (TYPE == Q8_0) return block[2 + i];
  else if constexpr (!Format<TYPE>::SUPER) return block[Format<TYPE>::BLOCK_BYTES - 16 + i % 16] >> (i / 16 * 4) & 15;
  else if constexpr (TYPE == Q4_K || TYPE == Q5_K) return block[(TYPE == Q4_K ? 16 : 48) + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15;
  else if constexpr (TYPE == Q6_K) return block[i / 128 * 64 + i / 32 % 2 * 32 + i % 32] >> (i % 128 / 64 * 4) & 15;
  else return block[(TYPE == Q2_K ? 16 : 32) + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}
template <int TYPE> DEVICE u32 high_bits(const u8* row, int k) {
  const u8* block = row + k / Format<TYPE>::BLOCK * Format<TYPE>::BLOCK_BYTES;
  int i = k % Format<TYPE>::BLOCK;
  if constexpr (TYPE == Q5_0 || TYPE == Q5_1) return block[(TYPE == Q5_0 ? 2 : 4) + i / 8] >> (i % 8) & 1;
  else if constexpr (TYPE == Q3_K) return block[i % 32] >> (i / 32) & 1;
  else if constexpr (TYPE == Q5_K) return block[16 + i % 32] >> (i / 32) & 1;
  else return block[128 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
}

struct Repack {
  const QuantRepackParams& p;

  template <int TYPE> DEVICE void run() const {
    typedef Format<TYPE> F;
    int chunks = F::chunks(p.k), lane = threadIdx.x % 32;
    i64 item = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int panel = (int)(item / chunks), chunk = (int)(item % chunks);
    if (panel * PANEL >= p.row_count) return;
    u8* out = p.panels + item * F::CHUNK_BYTES;
    plane<TYPE, F::LOW, false>(out, panel, chunk * F::CHUNK, lane);
    if constexpr (F::HIGH > 0) plane<TYPE, F::HIGH, true>(out + F::LOW_BYTES, panel, chunk * F::CHUNK, lane);
    if (lane < PANEL) scales<TYPE>(out, panel, chunk, lane);
  }

  DEVICE const u8* row_at(int row, i64 bytes) const { return row < p.row_count ? p.rows + row * bytes : nullptr; }

  template <int TYPE, int BITS, bool IS_HIGH> DEVICE void plane(u8* out, int panel, int first, int lane) const {
    typedef Format<TYPE> F;
    constexpr int PAIRS = 16 / BITS, WORDS = F::CHUNK / 32 * 8 / PAIRS, VECTOR = WORDS < 4 ? WORDS : 4;
    i64 row_bytes = (i64)(p.k / F::BLOCK) * F::BLOCK_BYTES;
    for (int i = 0; i < WORDS; i++) {
      u32 word = 0;
      for (int q = 0; q < PAIRS; q++) {
        int pair = i * PAIRS + q, j = pair / 8, s = pair % 8 / 4, r = pair % 4, t = lane % 4;
        const u8* row = row_at(panel * PANEL + lane / 4 + 8 * (r % 2), row_bytes);
        int k = first + 32 * j + (F::SUB == 16 ? 16 * s + 4 * t : 8 * t + 4 * s) + r / 2 * 2;
        if (row == nullptr || k >= p.k) continue;
        u32 a = IS_HIGH ? high_bits<TYPE>(row, k) : low_bits<TYPE>(row, k);
        u32 b = IS_HIGH ? high_bits<TYPE>(row, k + 1) : low_bits<TYPE>(row, k + 1);
        word |= a << (BITS * q) | b << (16 + BITS * q);
      }
      *reinterpret_cast<u32*>(out + i / VECTOR * (128 * VECTOR) + lane * (4 * VECTOR) + i % VECTOR * 4) = word;
    }
  }

  // Row r of the scale planes.
  template <int TYPE> DEVICE void scales(u8* out, int panel, int chunk, int r) const {
    typedef Format<TYPE> F;
    const u8* row = row_at(panel * PANEL + r, (i64)(p.k / F::BLOCK) * F::BLOCK_BYTES);
    constexpr int BLOCKS = F::CHUNK / F::BLOCK;
    const u8* block = row == nullptr ? nullptr : row + (i64)chunk * BLOCKS * F::BLOCK_BYTES;
    auto byte = [&](int b, int i) -> u8 {
      return block == nullptr || chunk * BLOCKS + b >= p.k / F::BLOCK ? (u8)0 : block[b * F::BLOCK_BYTES + i];
    };
    u8* to = out + F::SCALES_AT + r * F::ROW_SCALES;
    if constexpr (!F::SUPER) {
      constexpr int BYTES = F::MIN ? 4 : 2;
      for (int b = 0; b < BLOCKS; b++)
        for (int i = 0; i < BYTES; i++) to[b * BYTES + i] = byte(b, i);
    } else {
      constexpr int FROM = TYPE == Q3_K ? 96 : TYPE == Q6_K ? 192 : 0;
      for (int i = 0; i < F::ROW_SCALES; i++) {
        u8* at = TYPE == Q3_K ? out + F::SCALES_AT + (i / 4 * PANEL + r) * 4 + i % 4 : to + i;
        *at = byte(0, FROM + i);
      }
      for (int i = 0; i < F::ROW_SUPER; i++)
        out[F::SUPER_AT + r * F::ROW_SUPER + i] = byte(0, F::BLOCK_BYTES - F::ROW_SUPER + i);
    }
  }
};

extern "C" __global__ void __launch_bounds__(256) quant_repack(const __grid_constant__ QuantRepackParams p) {
  wait_for_previous();
  with_type(p.type, Repack{p});
}

// GGUF blocks in the order in which tensor cores want them.
//
// A matrix [rows, k] is cut into panels of 16 rows and each panel into chunks of columns (64 for the types of 32-element
// blocks, 256 for the others). A chunk holds the bits of its 16 x CHUNK elements and their scales, no more and no fewer
// than the file does; rows and columns that fill up the last panel and chunk are zero. Chunks lie panel by panel, in column
// order. In a chunk come planes: low bits, high bits, scales, super-block scales.
//
// Bit planes hold, for each lane of a warp (g = lane / 4, t = lane % 4), what that lane feeds to mma m16n8k16 as A. A group
// of 32 columns is two products of 16; product s takes from lane t the columns 8t + 4s .. 8t + 4s + 3 of the group, or
// 16s + 4t .. 16s + 4t + 3 where scales change every 16 columns (the order of columns inside a product is free, as long as
// x comes in the same one). That makes 8 registers of two elements a lane and group: register p = 4s + r holds row
// g + 8 (r % 2), the first two of the four columns for r < 2 and the other two for r >= 2. With b bits an element a 32-bit
// word has 16 / b such pairs, pair q at bits b q (first column) and 16 + b q (second). Words of a lane stand together in
// vectors of up to 16 bytes, the vectors of the 32 lanes side by side.
//
// Every element is a q + b with integer q and f32 a, b of its row and sub-block; q is exact in bf16 and f16, a q is exact in
// f32, so fmaf(a, q, b) has the bits of the reference dequantization.
#pragma once
#include "include/base.cuh"

#define Q4_0 0
#define Q4_1 1
#define Q5_0 2
#define Q5_1 3
#define Q8_0 4
#define Q2_K 5
#define Q3_K 6
#define Q4_K 7
#define Q5_K 8
#define Q6_K 9

// Rows of a panel; columns that a warp takes at a time (a stage: 1 or 4 chunks).
#define PANEL 16
#define STAGE 256

template <int TYPE> struct Format {
  static constexpr bool SUPER = TYPE >= Q2_K;
  // Columns of a block and of a chunk, and those that share a and b.
  static constexpr int BLOCK = SUPER ? 256 : 32;
  static constexpr int CHUNK = SUPER ? 256 : 64;
  static constexpr int SUB = TYPE == Q2_K || TYPE == Q3_K || TYPE == Q6_K ? 16 : 32;
  // Whether there is a b; otherwise q is signed.
  static constexpr bool MIN = TYPE == Q4_1 || TYPE == Q5_1 || TYPE == Q2_K || TYPE == Q4_K || TYPE == Q5_K;
  static constexpr int CENTRE = TYPE == Q4_0 ? 8 : TYPE == Q5_0 ? 16 : TYPE == Q3_K ? 4 : TYPE == Q6_K ? 32 : 0;
  static constexpr int LOW = TYPE == Q8_0 ? 8 : TYPE == Q2_K || TYPE == Q3_K ? 2 : 4;
  static constexpr int HIGH = TYPE == Q6_K ? 2 : TYPE == Q5_0 || TYPE == Q5_1 || TYPE == Q3_K || TYPE == Q5_K ? 1 : 0;
  // Bytes of the planes of a chunk: bits, then (sub-)block scales (and minimums), then super-block scales.
  static constexpr int LOW_BYTES = PANEL * CHUNK * LOW / 8;
  static constexpr int HIGH_BYTES = PANEL * CHUNK * HIGH / 8;
  static constexpr int ROW_SCALES = !SUPER ? (MIN ? 8 : 4) : TYPE == Q3_K ? 12 : 16;
  static constexpr int ROW_SUPER = TYPE == Q2_K ? 4 : TYPE == Q3_K || TYPE == Q6_K ? 2 : 0;
  static constexpr int SCALES_AT = LOW_BYTES + HIGH_BYTES;
  static constexpr int SUPER_AT = SCALES_AT + PANEL * ROW_SCALES;
  static constexpr int CHUNK_BYTES = SUPER_AT + PANEL * ROW_SUPER;
  // Bytes of a block in the file.
  static constexpr int BLOCK_BYTES = CHUNK_BYTES / PANEL / (CHUNK / BLOCK);
  // Chunks of a stage, and vectors and words a lane has of the bits of a stage.
  static constexpr int CHUNKS = STAGE / CHUNK;
  static constexpr int STAGE_BYTES = CHUNKS * CHUNK_BYTES;
  static constexpr int LOW_VECTORS = LOW;
  static constexpr int HIGH_WORDS = HIGH * 4;
  static DEVICE int chunks(int k) { return (k + CHUNK - 1) / CHUNK; }
  static DEVICE i64 panel_bytes(int k) { return (i64)chunks(k) * CHUNK_BYTES; }
};
static_assert(Format<Q4_0>::BLOCK_BYTES == 18 && Format<Q4_1>::BLOCK_BYTES == 20 && Format<Q5_0>::BLOCK_BYTES == 22, "");
static_assert(Format<Q5_1>::BLOCK_BYTES == 24 && Format<Q8_0>::BLOCK_BYTES == 34 && Format<Q2_K>::BLOCK_BYTES == 84, "");
static_assert(Format<Q3_K>::BLOCK_BYTES == 110 && Format<Q4_K>::BLOCK_BYTES == 144, "");
static_assert(Format<Q5_K>::BLOCK_BYTES == 176 && Format<Q6_K>::BLOCK_BYTES == 210, "");

// Where a stage is read from. In global memory weights are read once: they need no place in L1.
struct FromGlobal {
  static DEVICE uint4 read16(const u8* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
  }
  static DEVICE uint2 read8(const u8* p) {
    uint2 v;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
  }
  static DEVICE u32 read4(const u8* p) {
    u32 v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
  }
  static DEVICE u32 read2(const u8* p) {
    u16 v;
    asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
  }
};
struct FromShared {
  static DEVICE uint4 read16(const u8* p) { return *reinterpret_cast<const uint4*>(p); }
  static DEVICE uint2 read8(const u8* p) { return *reinterpret_cast<const uint2*>(p); }
  static DEVICE u32 read4(const u8* p) { return *reinterpret_cast<const u32*>(p); }
  static DEVICE u32 read2(const u8* p) { return *reinterpret_cast<const u16*>(p); }
};

DEVICE u32 word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Constants that shall stay in registers: an instruction takes only one immediate.
struct Registers {
  u32 lift;     // 2^23 as f32
  u32 base;     // a BASE of Lift<T>
  u32 ones[4];  // 1, 1 as T: all of an A fragment
};

#define LIFT 8388608.f
// Byte i of w as 2^23 + byte.
DEVICE float lifted(u32 w, int i, const Registers& in) {
  return __uint_as_float(__byte_perm(w, in.lift, 0x7540 + i));
}

// d times an unsigned byte, exactly: the product inside the fma has all its bits.
DEVICE float scaled(float d, u32 w, int i, const Registers& in) { return fmaf(lifted(w, i, in), d, -LIFT * d); }

// (a & mask) | b as one instruction.
DEVICE u32 masked_or(u32 a, u32 mask, u32 b) {
  u32 y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(a), "r"(mask), "r"(b));
  return y;
}

// Pairs of small integers as T, made by setting low bits of a number that leaves room for them: BASE + q, with q's lowest
// bit at AT. The exact way takes BASE off again; the quick one leaves it, for whoever multiplies to take off the sum.
template <class T> struct Lift;
template <> struct Lift<bf16> {
  static constexpr u32 ONES = 0x3f803f80u, EXACT_BASE = 0x43004300u, QUICK_BASE = EXACT_BASE;  // 128
  static constexpr int QUICK_AT = 0;
  static constexpr float QUICK = 128.f;
  // A pair 128 + q to q - centre.
  static DEVICE u32 lowered(u32 x, int centre) {
    u32 y, by = 0xc300c300u + 0x00010001u * centre;  // -(128 + centre)
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(ONES), "r"(by));
    return y;
  }
  // Signed bytes 0 and 2: seven bits fit; the eighth turns 128 into 256, which is subtracted.
  static DEVICE u32 bytes(u32 w, u32 base) {
    u32 y, low = masked_or(w, 0x007f007fu, base), sign = masked_or(w, 0x00800080u, base);
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(sign), "r"(0xbf80bf80u), "r"(low));
    return y;
  }
};
template <> struct Lift<f16> {
  static constexpr u32 ONES = 0x3c003c00u, EXACT_BASE = 0x64006400u, QUICK_BASE = 0x54005400u;  // 1024, 64
  static constexpr int QUICK_AT = 4;
  static constexpr float QUICK = 64.f;
  static DEVICE u32 lowered(u32 x, int centre) {
    u32 y, by = 0xe400e400u + 0x00010001u * centre;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(by));
    return y;
  }
  static DEVICE u32 bytes(u32 w, u32 base) { return lowered(masked_or(w ^ 0x00800080u, 0x00ff00ffu, base), 128); }
};

// `k` is below 2^26, which the compiler does not know.
template <class T, bool EXACT> DEVICE Registers registers(int k) {
  u32 one = Lift<T>::ONES, base = EXACT ? Lift<T>::EXACT_BASE : Lift<T>::QUICK_BASE;
  return {0x4b000000u + (k >> 26), base + (k >> 27), {one + (k >> 28), one + (k >> 29), one + (k >> 30), one + (k >> 31)}};
}

// Bits [from, from + bits) of both halves of w moved to bit `to`; other bits may be set.
DEVICE u32 moved(u32 w, int from, int to) { return from >= to ? w >> (from - to) : w << (to - from); }

// What a lane holds of a stage of a panel. Indices are known at compile time wherever it is used.
template <int TYPE> struct Stage {
  typedef Format<TYPE> F;
  static constexpr int CHUNKS = F::CHUNKS;
  uint4 low[F::LOW_VECTORS];
  u32 high[F::HIGH_WORDS > 0 ? F::HIGH_WORDS : 1];
  // Of rows g and g + 8: legacy types a word (two words with minimums) a chunk, others all of a row.
  u32 scales[2][F::SUPER ? F::ROW_SCALES / 4 : CHUNKS * F::ROW_SCALES / 4];
  u32 super_scales[2];

  // `chunk` points to the first chunk of the stage, of which `valid` exist (at least one; the others read as zero).
  template <class From> DEVICE void load(const u8* chunk, int valid, int lane) {
    load_bits<From>(chunk, valid, lane);
    load_scales<From>(chunk, valid, lane);
  }

  template <class From> DEVICE void load_bits(const u8* chunk, int valid, int lane) {
    if constexpr (F::SUPER) {
#pragma unroll
      for (int i = 0; i < F::LOW_VECTORS; i++) low[i] = From::read16(chunk + i * 512 + lane * 16);
#pragma unroll
      for (int i = 0; i < F::HIGH_WORDS / 4; i++) {
        uint4 v = From::read16(chunk + F::LOW_BYTES + i * 512 + lane * 16);
        high[4 * i] = v.x, high[4 * i + 1] = v.y, high[4 * i + 2] = v.z, high[4 * i + 3] = v.w;
      }
    } else {
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        const u8* at = chunk + c * F::CHUNK_BYTES;
        bool there = c < valid;
        constexpr int V = F::LOW_VECTORS / CHUNKS;
#pragma unroll
        for (int i = 0; i < V; i++) low[c * V + i] = there ? From::read16(at + i * 512 + lane * 16) : make_uint4(0, 0, 0, 0);
        if constexpr (F::HIGH > 0) high[c] = there ? From::read4(at + F::LOW_BYTES + lane * 4) : 0;
      }
    }
  }

  // Of all sub-blocks.
  template <class From> DEVICE void load_scales(const u8* chunk, int valid, int lane) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int row = lane / 4 + 8 * h;
      if constexpr (TYPE == Q3_K) {
#pragma unroll
        for (int i = 0; i < 3; i++) scales[h][i] = From::read4(chunk + F::SCALES_AT + (i * PANEL + row) * 4);
      } else if constexpr (F::SUPER) {
        uint4 v = From::read16(chunk + F::SCALES_AT + row * 16);
        scales[h][0] = v.x, scales[h][1] = v.y, scales[h][2] = v.z, scales[h][3] = v.w;
      } else {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
          const u8* at = chunk + c * F::CHUNK_BYTES + F::SCALES_AT;
          bool there = c < valid;
          if constexpr (F::MIN) {
            uint2 v = there ? From::read8(at + row * 8) : make_uint2(0, 0);
            scales[h][2 * c] = v.x, scales[h][2 * c + 1] = v.y;
          } else {
            scales[h][c] = there ? From::read4(at + row * 4) : 0;
          }
        }
      }
      if constexpr (F::ROW_SUPER == 4) super_scales[h] = From::read4(chunk + F::SUPER_AT + row * 4);
      if constexpr (F::ROW_SUPER == 2) super_scales[h] = From::read2(chunk + F::SUPER_AT + row * 2);
    }
  }

  // Register p of group j: two integers as T (bf16 or f16): q, or for the quick way q + QUICK + CENTRE.
  template <class T, bool EXACT> DEVICE u32 pair(int j, int p, const Registers& in) const {
    typedef Lift<T> L;
    if constexpr (F::LOW == 8) {
      static_assert(EXACT, "bytes leave no room");
      u32 w = word_of(low[j], p / 2);
      return L::bytes(p % 2 ? w >> 8 : w, in.base);
    } else {
      constexpr int AT = EXACT ? 0 : L::QUICK_AT;
      u32 w = F::LOW == 4 ? moved(word_of(low[j / 2], j % 2 * 2 + p / 4), 4 * (p % 4), AT) : moved(word_of(low[j / 4], j % 4), 2 * p, AT);
      u32 x = masked_or(w, (F::LOW == 4 ? 0x000f000fu : 0x00030003u) << AT, in.base);
      if constexpr (F::HIGH == 1) x = masked_or(moved(high[j / 2], j % 2 * 8 + p, AT + F::LOW), 0x00010001u << (AT + F::LOW), x);
      if constexpr (F::HIGH == 2) x = masked_or(moved(high[j], 2 * p, AT + F::LOW), 0x00030003u << (AT + F::LOW), x);
      return EXACT ? L::lowered(x, F::CENTRE) : x;
    }
  }

  // Turns packed sub-scales into bytes where the type packs them tighter. Once, after `load`.
  DEVICE void prepare() {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      u32* s = scales[h];
      if constexpr (TYPE == Q4_K || TYPE == Q5_K) {
        // Six bits each: bytes 0..3 scales and 4..7 minimums of the first four sub-blocks; of the others bytes 8..11 hold four
        // bits of each and the top bits of bytes 0..7 the rest. Afterwards words 1, 2 are not in order: see `affine`.
        super_scales[h] = s[0];
        u32 a = s[1], b = s[2], c = s[3];
        s[0] = a & 0x3f3f3f3fu;
        s[1] = (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u);
        s[2] = b & 0x3f3f3f3fu;
        s[3] = (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u);
      }
      if constexpr (TYPE == Q6_K) {
#pragma unroll
        for (int i = 0; i < 4; i++) s[i] ^= 0x80808080u;
      }
    }
  }

  // Scale a and offset b of row g + 8h in sub-block `sub` of the stage (its first column divided by SUB).
  DEVICE float2 affine(int sub, int h, const Registers& in) const {
    const u32* s = scales[h];
    if constexpr (TYPE == Q4_K || TYPE == Q5_K) {
      float2 d = unpack2<f16>(super_scales[h]);
      return make_float2(scaled(d.x, s[sub / 4], sub % 4, in), -scaled(d.y, s[2 + sub / 4], sub % 4, in));
    } else if constexpr (TYPE == Q2_K) {
      float2 d = unpack2<f16>(super_scales[h]);
      u32 w = s[sub / 4];
      return make_float2(scaled(d.x, w & 0x0f0f0f0fu, sub % 4, in), -scaled(d.y, w >> 4 & 0x0f0f0f0fu, sub % 4, in));
    } else if constexpr (TYPE == Q3_K) {
      // Four low bits: byte sub % 8, the lower half for the first eight; two high bits: byte 8 + sub % 4, pair sub / 4.
      float d = unpack2<f16>(super_scales[h]).x;
      u32 w = (s[sub / 4 % 2] >> (sub / 8 * 4) & 0x0f0f0f0fu) | (moved(s[2], sub / 4 * 2, 4) & 0x30303030u);
      return make_float2((lifted(w, sub % 4, in) - (LIFT + 32.f)) * d, 0.f);
    } else if constexpr (TYPE == Q6_K) {
      float d = unpack2<f16>(super_scales[h]).x;
      return make_float2((lifted(s[sub / 4], sub % 4, in) - (LIFT + 128.f)) * d, 0.f);
    } else if constexpr (F::MIN) {
      return unpack2<f16>(s[sub]);
    } else {
      float2 d = unpack2<f16>(s[sub / 2]);
      return make_float2(sub % 2 ? d.y : d.x, 0.f);
    }
  }
};

// Scale and offset of one row of a panel (0 .. 15) in any sub-block of a stage that is in shared memory.
template <int TYPE> DEVICE float2 affine_at(const u8* chunk, int row, int sub) {
  typedef Format<TYPE> F;
  if constexpr (!F::SUPER) {
    const u8* at = chunk + sub / 2 * F::CHUNK_BYTES + F::SCALES_AT + row * F::ROW_SCALES + sub % 2 * (F::ROW_SCALES / 2);
    if constexpr (F::MIN) return unpack2<f16>(FromShared::read4(at));
    else return make_float2(unpack2<f16>(FromShared::read2(at)).x, 0.f);
  } else if constexpr (TYPE == Q4_K || TYPE == Q5_K) {
    const u8* at = chunk + F::SCALES_AT + row * 16;
    float2 d = unpack2<f16>(FromShared::read4(at));
    u32 a = at[4 + sub % 4], b = at[8 + sub % 4], c = at[12 + sub % 4];
    u32 scale = sub < 4 ? a & 63 : (c & 15) | (a >> 2 & 48), minimum = sub < 4 ? b & 63 : c >> 4 | (b >> 2 & 48);
    return make_float2(d.x * (float)scale, -(d.y * (float)minimum));
  } else if constexpr (TYPE == Q2_K) {
    float2 d = unpack2<f16>(FromShared::read4(chunk + F::SUPER_AT + row * 4));
    u32 s = chunk[F::SCALES_AT + row * 16 + sub];
    return make_float2(d.x * (float)(s & 15), -(d.y * (float)(s >> 4)));
  } else {
    float d = unpack2<f16>(FromShared::read2(chunk + F::SUPER_AT + row * 2)).x;
    int s;
    if constexpr (TYPE == Q3_K) {
      u32 low = chunk[F::SCALES_AT + (sub / 4 % 2 * PANEL + row) * 4 + sub % 4], high = chunk[F::SCALES_AT + (2 * PANEL + row) * 4 + sub % 4];
      s = (int)((low >> (sub / 8 * 4) & 15) | (high >> (sub / 4 * 2) & 3) << 4) - 32;
    } else {
      s = (signed char)chunk[F::SCALES_AT + row * 16 + sub];
    }
    return make_float2(d * (float)s, 0.f);
  }
}

// A stage's place.
template <int TYPE> DEVICE const u8* stage_at(const u8* matrix, int k, int panel, int stage) {
  typedef Format<TYPE> F;
  return matrix + panel * F::panel_bytes(k) + (i64)stage * F::STAGE_BYTES;
}
template <int TYPE> DEVICE int stage_chunks(int k, int stage) { return Format<TYPE>::chunks(k) - stage * Format<TYPE>::CHUNKS; }

// Calls `f.template run<TYPE>()` for the type at hand, of those in the bit mask QUANT_TYPES.
template <int TYPE = 0, class F> DEVICE void with_type(u32 type, const F& f) {
  if constexpr (TYPE <= Q6_K) {
    if constexpr ((QUANT_TYPES >> TYPE & 1) != 0) {
      if (type == TYPE) return f.template run<TYPE>();
    }
    with_type<TYPE + 1>(type, f);
  }
}

// Loads and stores of N neighbouring elements as f32, in one access where N elements take 4, 8 or 16 bytes.
//
// Kernels are compiled for one N (-DVEC=N): the host takes the largest that every operand's base, stride and width are a
// multiple of, and 1 for odd ones.
#pragma once
#include "include/base.cuh"

// What the operands of an op are: the model's type, or f32 (-DVALUE_F32) where the graph asks for it.
#if defined(VALUE_F32)
typedef float value_t;
#else
typedef model_t value_t;
#endif

// Elements of at most 16 bytes that move together.
template <int SIZE> struct Raw;
template <> struct Raw<16> { typedef uint4 type; };
template <> struct Raw<8> { typedef uint2 type; };
template <> struct Raw<4> { typedef u32 type; };
template <> struct Raw<2> { typedef u16 type; };
template <class T, int N> using raw_t = typename Raw<sizeof(T) * N>::type;

template <class T, int N> DEVICE raw_t<T, N> load_raw(const T* p) { return *reinterpret_cast<const raw_t<T, N>*>(p); }
template <class T, int N> DEVICE void store_raw(T* p, raw_t<T, N> x) { *reinterpret_cast<raw_t<T, N>*>(p) = x; }

// Conversion between the bits of N elements of T and N floats.
template <class T, int N> struct Convert {
  static constexpr int WORDS = sizeof(T) * N / 4;
  union Bits { raw_t<T, N> raw; u32 words[WORDS > 0 ? WORDS : 1]; T one; DEVICE Bits() {} };
  static DEVICE void out(float (&y)[N], raw_t<T, N> x) {
    Bits bits;
    bits.raw = x;
    if constexpr (N == 1) {
      y[0] = to_float(bits.one);
    } else if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < N; i++) y[i] = __uint_as_float(bits.words[i]);
    } else {
#pragma unroll
      for (int i = 0; i < WORDS; i++) {
        float2 two = unpack2<T>(bits.words[i]);
        y[2 * i] = two.x;
        y[2 * i + 1] = two.y;
      }
    }
  }
  static DEVICE raw_t<T, N> in(const float (&x)[N]) {
    Bits bits;
    if constexpr (N == 1) {
      bits.one = from_float<T>(x[0]);
    } else if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < N; i++) bits.words[i] = __float_as_uint(x[i]);
    } else {
#pragma unroll
      for (int i = 0; i < WORDS; i++) bits.words[i] = pack2<T>(x[2 * i], x[2 * i + 1]);
    }
    return bits.raw;
  }
};

// N floats at p, of which T may be wider than 16 bytes would allow (then in several accesses).
template <int N, class T> DEVICE void load(float (&y)[N], const T* p) {
  constexpr int MOST = 16 / sizeof(T);
  if constexpr (N <= MOST) {
    Convert<T, N>::out(y, load_raw<T, N>(p));
  } else {
    raw_t<T, MOST> raw[N / MOST];
#pragma unroll
    for (int i = 0; i < N / MOST; i++) raw[i] = load_raw<T, MOST>(p + i * MOST);
#pragma unroll
    for (int i = 0; i < N / MOST; i++) {
      float part[MOST];
      Convert<T, MOST>::out(part, raw[i]);
#pragma unroll
      for (int j = 0; j < MOST; j++) y[i * MOST + j] = part[j];
    }
  }
}
template <int N, class T> DEVICE void store(T* p, const float (&x)[N]) {
  constexpr int MOST = 16 / sizeof(T);
  if constexpr (N <= MOST) {
    store_raw<T, N>(p, Convert<T, N>::in(x));
  } else {
#pragma unroll
    for (int i = 0; i < N / MOST; i++) {
      float part[MOST];
#pragma unroll
      for (int j = 0; j < MOST; j++) part[j] = x[i * MOST + j];
      store_raw<T, MOST>(p + i * MOST, Convert<T, MOST>::in(part));
    }
  }
}

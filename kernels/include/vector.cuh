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

// One instruction, which a struct's store is not always.
DEVICE void store_words(void* p, u16 x) { *reinterpret_cast<u16*>(p) = x; }
DEVICE void store_words(void* p, u32 x) { *reinterpret_cast<u32*>(p) = x; }
DEVICE void store_words(void* p, uint2 x) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(x.x), "r"(x.y) : "memory");
}
DEVICE void store_words(void* p, uint4 x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
template <class T, int N> DEVICE void store_raw(T* p, raw_t<T, N> x) { store_words(p, x); }

// Words of an access of 4 bytes or more.
DEVICE u32 word(u32 x, int) { return x; }
DEVICE u32 word(uint2 x, int i) { return i == 0 ? x.x : x.y; }
DEVICE u32 word(uint4 x, int i) { return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w; }
DEVICE void from_words(u32& x, const u32 (&w)[1]) { x = w[0]; }
DEVICE void from_words(uint2& x, const u32 (&w)[2]) { x = make_uint2(w[0], w[1]); }
DEVICE void from_words(uint4& x, const u32 (&w)[4]) { x = make_uint4(w[0], w[1], w[2], w[3]); }

// Conversion between the bits of N elements of T, 16 bytes at most, and N floats.
template <class T, int N> DEVICE void unpack(float (&y)[N], raw_t<T, N> x) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < N; i++) y[i] = __uint_as_float(word(x, i));
  } else if constexpr (N == 1) {
    T one;
    one.bits = x;
    y[0] = to_float(one);
  } else {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      float2 two = unpack2<T>(word(x, i));
      y[2 * i] = two.x;
      y[2 * i + 1] = two.y;
    }
  }
}
template <class T, int N> DEVICE raw_t<T, N> pack(const float (&x)[N]) {
  if constexpr (sizeof(T) == 2 && N == 1) {
    return from_float<T>(x[0]).bits;
  } else {
    constexpr int WORDS = sizeof(T) * N / 4;
    u32 words[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
      if constexpr (sizeof(T) == 4) {
        words[i] = __float_as_uint(x[i]);
      } else {
        words[i] = pack2<T>(x[2 * i], x[2 * i + 1]);
      }
    }
    raw_t<T, N> y;
    from_words(y, words);
    return y;
  }
}

// Rounds N floats to T. In pairs, which takes fewer instructions than one by one.
template <class T, int N> DEVICE void round_to(float (&x)[N]) {
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
      float2 two = unpack2<T>(pack2<T>(x[i], x[i + 1]));
      x[i] = two.x;
      x[i + 1] = two.y;
    }
    if constexpr (N % 2 == 1) x[N - 1] = rounded<T>(x[N - 1]);
  }
}

// Row of a block in a grid of (chunks of a row, rows % 65535, rows / 65535).
DEVICE int grid_row() { return blockIdx.z * gridDim.y + blockIdx.y; }

// N floats at p, of which T may be wider than 16 bytes would allow (then in several accesses).
template <int N, class T> DEVICE void load(float (&y)[N], const T* p) {
  constexpr int MOST = 16 / sizeof(T);
  if constexpr (N <= MOST) {
    unpack<T, N>(y, load_raw<T, N>(p));
  } else {
    raw_t<T, MOST> raw[N / MOST];
#pragma unroll
    for (int i = 0; i < N / MOST; i++) raw[i] = load_raw<T, MOST>(p + i * MOST);
#pragma unroll
    for (int i = 0; i < N / MOST; i++) {
      float part[MOST];
      unpack<T, MOST>(part, raw[i]);
#pragma unroll
      for (int j = 0; j < MOST; j++) y[i * MOST + j] = part[j];
    }
  }
}
template <int N, class T> DEVICE void store(T* p, const float (&x)[N]) {
  constexpr int MOST = 16 / sizeof(T);
  if constexpr (N <= MOST) {
    store_raw<T, N>(p, pack<T, N>(x));
  } else {
#pragma unroll
    for (int i = 0; i < N / MOST; i++) {
      float part[MOST];
#pragma unroll
      for (int j = 0; j < MOST; j++) part[j] = x[i * MOST + j];
      store_raw<T, MOST>(p + i * MOST, pack<T, MOST>(part));
    }
  }
}

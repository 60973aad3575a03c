// Elements in registers: as float32, and several at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "deltaworks/dtype.hpp"

namespace deltaworks::cuda {

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(Float16 x) { return __half2float(__ushort_as_half(x.bits)); }
__device__ inline float widen(BFloat16 x) {
  return __uint_as_float(static_cast<std::uint32_t>(x.bits) << 16);
}

// Rounds to nearest, ties to even; a NaN stays one.
template <class T>
__device__ inline T narrow(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, Float16>) {
    return {__half_as_ushort(__float2half_rn(x))};
  } else {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
  }
}

// The value of T nearest to x.
template <class T>
__device__ inline float rounded(float x) {
  return widen(narrow<T>(x));
}

// The two elements of a word, the low one first. Taking it apart and putting it together costs one
// instruction for each element and for two, where single elements cost two.
template <class T>
__device__ inline float2 widen2(std::uint32_t word) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  } else {
    __half2 pair;
    memcpy(&pair, &word, sizeof(pair));
    return __half22float2(pair);
  }
}
template <class T>
__device__ inline std::uint32_t narrow2(float low, float high) {
  std::uint32_t word;
  if constexpr (std::is_same_v<T, BFloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    memcpy(&word, &pair, sizeof(word));
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    memcpy(&word, &pair, sizeof(word));
  }
  return word;
}

// Consecutive elements of a row.
template <class T, int kSize>
struct Pack {
  T at[kSize > 0 ? kSize : 1];
};

template <int kBytes>
using Word = std::conditional_t<
    kBytes % 16 == 0, uint4,
    std::conditional_t<kBytes % 8 == 0, std::uint64_t,
                       std::conditional_t<kBytes % 4 == 0, std::uint32_t, std::uint16_t>>>;

// kSize elements in words of kGrain of them, where each word starts at a multiple of its size: loads and
// stores are as wide as the operands' alignment allows.
template <int kSize, int kGrain = kSize, class T>
__device__ inline Pack<T, kSize> load(const T* from) {
  Pack<T, kSize> pack{};
  if constexpr (kSize > 0) {
    using W = Word<kGrain * sizeof(T)>;
    W words[sizeof(pack) / sizeof(W)];
#pragma unroll
    for (std::size_t i = 0; i < sizeof(pack) / sizeof(W); ++i) {
      words[i] = reinterpret_cast<const W*>(from)[i];
    }
    memcpy(&pack, words, sizeof(pack));
  }
  return pack;
}

template <int kGrain = 0, int kSize, class T>
__device__ inline void store(const Pack<T, kSize>& pack, T* to) {
  if constexpr (kSize > 0) {
    using W = Word<(kGrain == 0 ? kSize : kGrain) * sizeof(T)>;
    W words[sizeof(pack) / sizeof(W)];
    memcpy(words, &pack, sizeof(pack));
#pragma unroll
    for (std::size_t i = 0; i < sizeof(pack) / sizeof(W); ++i) {
      reinterpret_cast<W*>(to)[i] = words[i];
    }
  }
}

// All elements at once, those of 16 bits in pairs.
template <class T, int kSize>
__device__ inline void widen(const Pack<T, kSize>& pack, float (&to)[kSize]) {
  if constexpr (sizeof(T) == 2 && kSize % 2 == 0) {
    std::uint32_t words[kSize / 2];
    memcpy(words, &pack, sizeof(pack));
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) {
      const float2 both = widen2<T>(words[i]);
      to[2 * i] = both.x, to[2 * i + 1] = both.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kSize; ++i) to[i] = widen(pack.at[i]);
  }
}

template <class T, int kSize>
__device__ inline Pack<T, kSize> narrow(const float (&from)[kSize]) {
  Pack<T, kSize> pack;
  if constexpr (sizeof(T) == 2 && kSize % 2 == 0) {
    std::uint32_t words[kSize / 2];
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) words[i] = narrow2<T>(from[2 * i], from[2 * i + 1]);
    memcpy(&pack, words, sizeof(pack));
  } else {
#pragma unroll
    for (int i = 0; i < kSize; ++i) pack.at[i] = narrow<T>(from[i]);
  }
  return pack;
}

}  // namespace deltaworks::cuda

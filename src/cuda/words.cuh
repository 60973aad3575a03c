// Consecutive elements of a row as they lie in memory. Compilers take a Pack of 16-bit elements apart and put
// it together again whenever it is copied; words stay whole.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/pack.cuh"

namespace deltaworks::cuda {

template <class T, int kSize>
struct Words {
  static_assert(kSize * sizeof(T) % sizeof(std::uint32_t) == 0);
  static constexpr int kWords = kSize * sizeof(T) / sizeof(std::uint32_t);
  alignas(kWords % 4 == 0 ? 16 : kWords % 2 == 0 ? 8 : 4) std::uint32_t at[kWords];
};

// kSize elements of a thread that owns kVector channels: words where those are whole ones, which the
// alignment of wide loads goes with.
template <class T, int kSize, int kVector>
using Lanes = std::conditional_t<kVector * sizeof(T) % 4 == 0, Words<T, kSize>, Pack<T, kSize>>;

// Loads of memory that no thread of the kernel writes. They stay where they are written: compilers move an ordinary
// one into the branch that uses it, where it costs a second trip to memory. Words start at a multiple of the
// largest power of two that divides their bytes, as far as 16.
template <class T, int kSize>
__device__ inline void load_lanes(const T* from, Words<T, kSize>& to) {
  constexpr int kWords = Words<T, kSize>::kWords;
  const auto* const words = reinterpret_cast<const std::uint32_t*>(from);
  if constexpr (kWords % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to.at[i]), "=r"(to.at[i + 1]), "=r"(to.at[i + 2]), "=r"(to.at[i + 3])
                   : "l"(words + i));
    }
  } else if constexpr (kWords % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kWords; i += 2) {
      asm volatile("ld.global.nc.v2.b32 {%0, %1}, [%2];"
                   : "=r"(to.at[i]), "=r"(to.at[i + 1])
                   : "l"(words + i));
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(to.at[i]) : "l"(words + i));
    }
  }
}
template <class T, int kSize>
__device__ inline void load_lanes(const T* from, Pack<T, kSize>& to) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    if constexpr (sizeof(T) == 2) {
      asm volatile("ld.global.nc.b16 %0, [%1];" : "=h"(to.at[i].bits) : "l"(from + i));
    } else {
      asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(to.at[i]) : "l"(from + i));
    }
  }
}

template <class T, int kSize>
__device__ inline void store(const Words<T, kSize>& words, T* to) {
  constexpr int kWords = Words<T, kSize>::kWords;
  if constexpr (kWords % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      reinterpret_cast<uint4*>(to)[i / 4] =
          make_uint4(words.at[i], words.at[i + 1], words.at[i + 2], words.at[i + 3]);
    }
  } else if constexpr (kWords % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kWords; i += 2) {
      reinterpret_cast<uint2*>(to)[i / 2] = make_uint2(words.at[i], words.at[i + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) reinterpret_cast<std::uint32_t*>(to)[i] = words.at[i];
  }
}

template <class T, int kSize>
__device__ inline void widen(const Words<T, kSize>& words, float (&to)[kSize]) {
#pragma unroll
  for (int i = 0; i < Words<T, kSize>::kWords; ++i) {
    const std::uint32_t word = words.at[i];
    if constexpr (std::is_same_v<T, float>) {
      to[i] = __uint_as_float(word);
    } else {
      const float2 both = widen2<T>(word);
      to[2 * i] = both.x, to[2 * i + 1] = both.y;
    }
  }
}

template <class T, int kSize>
__device__ inline void narrow_to(const float (&from)[kSize], Words<T, kSize>& to) {
#pragma unroll
  for (int i = 0; i < Words<T, kSize>::kWords; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      to.at[i] = __float_as_uint(from[i]);
    } else {
      to.at[i] = narrow2<T>(from[2 * i], from[2 * i + 1]);
    }
  }
}
template <class T, int kSize>
__device__ inline void narrow_to(const float (&from)[kSize], Pack<T, kSize>& to) {
  to = narrow<T>(from);
}

}  // namespace deltaworks::cuda

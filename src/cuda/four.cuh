// Four neighbours, and loads and stores of what streams through.
#pragma once

#include "cuda/pack.cuh"

namespace deltaworks::cuda {

using Four = Pack<float, 4>;

template <class T>
__device__ inline Four widen(const Pack<T, 4>& pack) {
  Four floats;
  widen(pack, floats.at);
  return floats;
}

// Elements from[0 … 3]. Aligned: `from` starts at a multiple of four elements.
template <bool kAligned, class T>
__device__ inline Four load4(const T* from) {
  if constexpr (kAligned)
    return widen(load<4>(from));
  else
    return {widen(from[0]), widen(from[1]), widen(from[2]), widen(from[3])};
}

// A state streams through the caches: nothing reads it again before the next step.
template <bool kAligned>
__device__ inline Four stream_load4(const float* from) {
  if constexpr (kAligned) {
    const float4 x = __ldcs(reinterpret_cast<const float4*>(from));
    return {x.x, x.y, x.z, x.w};
  } else {
    return {__ldcs(from), __ldcs(from + 1), __ldcs(from + 2), __ldcs(from + 3)};
  }
}

template <bool kAligned>
__device__ inline void stream_store4(const Four& x, float* to) {
  if constexpr (kAligned) {
    __stcs(reinterpret_cast<float4*>(to), make_float4(x.at[0], x.at[1], x.at[2], x.at[3]));
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) __stcs(to + i, x.at[i]);
  }
}

}  // namespace deltaworks::cuda

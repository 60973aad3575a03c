// The state of a convolution, [channels, history], after more samples: the last `history` of
// old ‖ new, copied bit for bit.
#pragma once

#include <cstdint>

#include "cuda/pack.cuh"

namespace deltaworks::cuda {

// A state's rows for kVector channels, in registers.
template <class T, int kVector, int kHistory>
using ConvState = Pack<T, kVector * kHistory>;

// columns[p]: the new sample samples − kHistory + p, where there is one; callers have all of them loading
// before anything is computed.
template <int kVector, int kHistory, class T>
__device__ inline ConvState<T, kVector, kHistory> shifted(
    const ConvState<T, kVector, kHistory>& old, std::int64_t samples,
    const Pack<T, kVector> (&columns)[kHistory + 1]) {
  ConvState<T, kVector, kHistory> next{};
#pragma unroll
  for (int p = 0; p < kHistory; ++p) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      T x = columns[p].at[v];
#pragma unroll
      for (int q = p; q < kHistory; ++q) {  // constant indices keep the state in registers
        if (q == p + samples && samples < kHistory - p) x = old.at[v * kHistory + q];
      }
      next.at[v * kHistory + p] = x;
    }
  }
  return next;
}

// The same for one channel in memory, where sample(i) is the i-th new one; `to` may be `old`, and no
// `old` is zeros.
template <class T, class Sample>
__device__ inline void shift(const T* old, T* to, std::int64_t history, std::int64_t samples,
                             const Sample& sample) {
  for (std::int64_t p = 0; p < history; ++p) {
    const std::int64_t at = samples - history + p;
    to[p] = at >= 0 ? sample(at) : old != nullptr ? old[p + samples] : T{};
  }
}

}  // namespace deltaworks::cuda

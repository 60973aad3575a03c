// The state of a convolution, [channels, history], after more samples: the last `history` of
// old ‖ new, copied bit for bit. sample(i) loads the i-th new one of a thread's channels.
#pragma once

#include <cstdint>

#include "cuda/pack.cuh"

namespace deltaworks::cuda {

// A state's rows for kVector channels, in registers.
template <class T, int kVector, int kHistory>
using ConvState = Pack<T, kVector * kHistory>;

template <int kVector, int kHistory, class T, class Sample>
__device__ inline ConvState<T, kVector, kHistory> shifted(
    const ConvState<T, kVector, kHistory>& old, std::int64_t samples, const Sample& sample) {
  ConvState<T, kVector, kHistory> next{};
#pragma unroll
  for (int p = 0; p < kHistory; ++p) {
    const std::int64_t at = samples - kHistory + p;
    Pack<T, kVector> column{};
    if (at >= 0) {
      column = sample(at);
    } else {
#pragma unroll
      for (int q = p; q < kHistory; ++q) {  // constant indices keep the state in registers
        if (q != p + samples) continue;
#pragma unroll
        for (int v = 0; v < kVector; ++v) column.at[v] = old.at[v * kHistory + q];
      }
    }
#pragma unroll
    for (int v = 0; v < kVector; ++v) next.at[v * kHistory + p] = column.at[v];
  }
  return next;
}

// The same for one channel in memory; `to` may be `old`, and no `old` is zeros.
template <class T, class Sample>
__device__ inline void shift(const T* old, T* to, std::int64_t history, std::int64_t samples,
                             const Sample& sample) {
  for (std::int64_t p = 0; p < history; ++p) {
    const std::int64_t at = samples - history + p;
    to[p] = at >= 0 ? sample(at) : old != nullptr ? old[p + samples] : T{};
  }
}

}  // namespace deltaworks::cuda

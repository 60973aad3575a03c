// The arithmetic of taps whose weights depend on the row: one place, so that dflash2_dynamic_conv and
// the dynamic mode of varlen_causal_conv give equal bits. Nothing is fused.
#pragma once

#include "cuda/pack.cuh"

namespace deltaworks::cuda {

// The result of a step, rounded to T or left in float32.
template <bool kRounds, class T>
__device__ inline float step(float x) {
  if constexpr (kRounds) return rounded<T>(x);
  return x;
}

template <bool kRounds, class T>
__device__ inline float tap_product(float base, float delta, float x) {
  return step<kRounds, T>(step<kRounds, T>(base + delta) * x);
}

}  // namespace deltaworks::cuda

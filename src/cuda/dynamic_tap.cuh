// The arithmetic of taps whose weights depend on the row: one place, so that dflash2_dynamic_conv and
// the dynamic mode of varlen_causal_conv give equal bits. Nothing is fused.
#pragma once

#include "cuda/words.cuh"

namespace deltaworks::cuda {

// The results of a step, rounded to T or left in float32. In pairs: converting one number alone is the
// work of a unit that takes 16 a clock and multiprocessor, a pair has a full-rate instruction.
template <bool kRounds, class T, int kSize>
__device__ inline void round_step(float (&x)[kSize]) {
  if constexpr (kRounds) {
    Lanes<T, kSize, kSize> rounded;
    narrow_to(x, rounded);
    widen(rounded, x);
  }
}

// (base + delta) * x
template <bool kRounds, class T, int kSize>
__device__ inline void tap_products(const float (&base)[kSize], float delta,
                                    const float (&x)[kSize], float (&products)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) products[i] = base[i] + delta;
  round_step<kRounds, T>(products);
#pragma unroll
  for (int i = 0; i < kSize; ++i) products[i] *= x[i];
  round_step<kRounds, T>(products);
}

}  // namespace deltaworks::cuda

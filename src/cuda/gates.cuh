// Log decay and update rate from the raw projections, with the bits of src/cpu/gates-inl.h.
#pragma once

#include <cfloat>

#include "cuda/math.cuh"

namespace deltaworks::cuda {

// An infinity becomes the largest finite number, so that it never meets a zero in a product.
__device__ inline float finite(float x) { return at_least(at_most(x, FLT_MAX), -FLT_MAX); }

// −exp(a_log) · softplus(decay + dt_bias)
__device__ inline float softplus_log_decay(float decay, float a_log, float dt_bias) {
  const float x = finite(decay) + finite(dt_bias);
  return -(finite(exp(a_log)) * finite(softplus(x)));
}

// gate_lower_bound · sigmoid(exp(a_log) · (decay + dt_bias))
__device__ inline float sigmoid_log_decay(float decay, float a_log, float dt_bias,
                                          float gate_lower_bound) {
  const float x = finite(finite(decay) + finite(dt_bias));
  return gate_lower_bound * sigmoid(finite(exp(a_log)) * x);
}

}  // namespace deltaworks::cuda

// The arithmetic of a thread's channels: fixed weights, the dynamic mode, and any width and dilation.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/divisor.hpp"
#include "cuda/dynamic_tap.cuh"
#include "cuda/math.cuh"
#include "cuda/pack.cuh"
#include "cuda/sequences.cuh"
#include "cuda/words.cuh"

namespace deltaworks::cuda {

// What the kernel reads; operands that are left out have no data.
template <class T>
struct ConvCall {
  View<const T, 2> input;
  View<const T, 3> weight;
  Ints cu_seqlens;
  View<const T, 3> initial_state;
  View<T, 2> output;
  View<T, 3> final_state;
  View<const T, 1> bias;
  Pool pool;
  Ints capture_count;
  View<T, 3> state_update;
  View<const T, 3> kernel_delta;
  View<const T, 2> previous_mask;
  std::int32_t* faults;
  std::int64_t tokens, sequences, channels, history, dilation, group_size, delta_offset;
  Divisor channel_blocks;
  int sequences_per_head;
  unsigned heads;  // of all sequences; they come before the bodies, since they wait longest
  bool is_silu;
};

// For 16-bit results two operations of the special function unit, within 2^-20: the exact quotient of
// src/cuda/math.cuh would take longer than the memory. The denominator is infinite below −88.7, and
// its reciprocal a zero.
template <class T>
__device__ float silu_of(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return silu(x);
  } else {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1 + exp2_approx(x * -0x1.715476p0f)));
    return x * reciprocal;
  }
}

// Fixed weights. Widths up to 4 have their samples in registers.
template <class T, int kVector_, int kWidth_, bool kSilu>
struct FixedTaps {
  static constexpr int kVector = kVector_, kWidth = kWidth_;
  using Sample = Lanes<T, kVector, kVector>;
  using Weights = Lanes<T, kVector * kWidth, kVector>;
  float weight[kVector * kWidth], bias[kVector];

  // In two steps, so that nothing waits for the weights before the first samples are on their way.
  __device__ static Weights load_weights(const ConvCall<T>& call, std::int64_t channel) {
    Weights weights;
    load_lanes(call.weight.row(channel), weights);
    return weights;
  }
  __device__ FixedTaps(const ConvCall<T>& call, std::int64_t channel, const Weights& weights) {
    widen(weights, weight);
#pragma unroll
    for (int v = 0; v < kVector; ++v) bias[v] = 0;
    if (call.bias.data() != nullptr) {
      Sample packed;
      load_lanes(call.bias.row(channel), packed);
      widen(packed, bias);
    }
  }

  // The output of packed row `row` from the samples of kWidth rows, its own the last. The i-th sample
  // lies in ring[i % kWidth]; loops are unrolled, so that registers are named and never moved.
  __device__ Sample operator()(std::int64_t, const float (&ring)[kWidth][kVector],
                               int first) const {
    float sums[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      sums[v] = bias[v];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        sums[v] = fmaf(weight[v * kWidth + j], ring[(first + j) % kWidth][v], sums[v]);
      }
    }
    if constexpr (kSilu) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) sums[v] = silu_of<T>(sums[v]);
    }
    Sample result;
    narrow_to(sums, result);
    return result;
  }
};

// The dynamic mode: every step is rounded to T. The channels of a thread share a group.
template <class T, int kVector_>
struct DynamicTaps {
  static constexpr int kVector = kVector_, kWidth = 2;
  using Sample = Lanes<T, kVector, kVector>;
  using Weights = Lanes<T, kVector * kWidth, kVector>;
  View<const T, 3> kernel_delta;
  View<const T, 2> previous_mask;
  std::int64_t offset, groups;
  float before[kVector], now[kVector];

  __device__ static Weights load_weights(const ConvCall<T>& call, std::int64_t channel) {
    Weights weights;
    load_lanes(call.weight.row(channel), weights);
    return weights;
  }
  __device__ DynamicTaps(const ConvCall<T>& call, std::int64_t channel, const Weights& weights)
      : kernel_delta(call.kernel_delta),
        previous_mask(call.previous_mask),
        offset(call.delta_offset * kernel_delta.extent(2) +
               static_cast<std::uint32_t>(channel) / static_cast<std::uint32_t>(call.group_size)),
        groups(kernel_delta.extent(2)) {
    float both[kVector * kWidth];
    widen(weights, both);
#pragma unroll
    for (int v = 0; v < kVector; ++v) before[v] = both[v * kWidth], now[v] = both[v * kWidth + 1];
  }

  __device__ Sample operator()(std::int64_t row, const float (&ring)[kWidth][kVector],
                               int first) const {
    const T* const delta = kernel_delta.row(row) + offset;
    const float delta_now = widen(delta[0]), delta_before = widen(delta[groups]);
    const float mask = widen(*previous_mask.row(row));
    float sums[kVector], own[kVector];
    tap_products<true, T>(before, delta_before, ring[first % kWidth], sums);
    tap_products<true, T>(now, delta_now, ring[(first + 1) % kWidth], own);
#pragma unroll
    for (int v = 0; v < kVector; ++v) sums[v] *= mask;
    round_step<true, T>(sums);
#pragma unroll
    for (int v = 0; v < kVector; ++v) sums[v] = own[v] + sums[v];
    Sample result;
    narrow_to(sums, result);
    return result;
  }
};

// Any width and dilation, a channel for each thread; samples come from memory.
template <class T>
struct MemoryTaps {
  const ConvCall<T>& call;
  std::int64_t channel;

  // `sample(token)` is the one of a token of the sequence, or of its past.
  template <class Sample>
  __device__ T operator()(std::int64_t token, const Sample& sample) const {
    const T* const weight = call.weight.row(channel);
    float sum = call.bias.data() != nullptr ? widen(call.bias(channel)) : 0;
    for (std::int64_t j = 0; j < call.weight.extent(2); ++j) {
      const float x = widen(sample(token - call.history + j * call.dilation));
      sum = fmaf(widen(weight[j]), x, sum);
    }
    return narrow<T>(call.is_silu ? silu_of<T>(sum) : sum);
  }
};

}  // namespace deltaworks::cuda

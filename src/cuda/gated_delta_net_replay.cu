// A thread owns kVector consecutive keys of as many rows of one head's state [value_dim, key_dim], which
// stay in registers over all slots: the state is read and written once, by the same thread. The loads
// of kSlots slots are in flight at once.
#include <cstdint>

#include "cuda/gated_delta_net.hpp"
#include "cuda/launch.hpp"
#include "cuda/pack.cuh"
#include "cuda/sequences.cuh"

namespace deltaworks::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kSlots = 4;

struct ReplayCall {
  View<const float, 4> initial_state;
  View<const float, 2> state_update;
  Ints count;
  View<float, 4> final_state;
  std::int32_t* faults;
  std::int64_t key_heads, capacity, decays;
  unsigned heads_per_key;
  unsigned head_blocks, vectors;  // of one head; of one row of its state
};

// What the slots of one sequence hold for one head.
struct Slots {
  const float *decay, *key, *delta;
  std::int64_t decay_stride, key_stride, delta_stride;
};

__device__ Slots slots_of(const ReplayCall& call, unsigned sequence, unsigned head) {
  const std::int64_t value_heads = call.final_state.extent(1),
                     value_dim = call.final_state.extent(2), key_dim = call.final_state.extent(3);
  const float* const decays = call.state_update.row(sequence);
  const float* const keys = decays + call.capacity * call.decays;
  const float* const deltas = keys + call.capacity * call.key_heads * key_dim;
  const unsigned key_head = head / call.heads_per_key;
  return {decays + head * (call.decays / value_heads),
          keys + key_head * key_dim,
          deltas + head * value_dim,
          call.decays,
          call.key_heads * key_dim,
          value_heads * value_dim};
}

// kSlots slots for a thread's rows and columns, from slot `first` on; behind the last one it is taken again.
template <int kVector>
struct SlotValues {
  Pack<float, kVector> key[kSlots], delta[kSlots], factor[kSlots];

  __device__ void load_from(const ReplayCall& call, const Slots& slots, int first, unsigned column,
                            unsigned row) {
    const bool is_per_key = call.decays != call.final_state.extent(1);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      const std::int64_t slot = min(static_cast<std::int64_t>(first) + i, call.capacity - 1);
      key[i] = load<kVector>(slots.key + slot * slots.key_stride + column);
      delta[i] = load<kVector>(slots.delta + slot * slots.delta_stride + row);
      const float* const decay = slots.decay + slot * slots.decay_stride;
#pragma unroll
      for (int k = 0; k < kVector; ++k) factor[i].at[k] = decay[is_per_key ? column + k : 0];
    }
  }
};

template <int kVector>
__global__ void __launch_bounds__(kThreads, 5)
    replay_kernel(const __grid_constant__ ReplayCall call) {
  const auto value_heads = static_cast<unsigned>(call.final_state.extent(1));
  const std::int64_t value_dim = call.final_state.extent(2), key_dim = call.final_state.extent(3);
  const unsigned unit = blockIdx.x / call.head_blocks;
  const unsigned sequence = unit / value_heads, head = unit % value_heads;
  const unsigned thread = blockIdx.x % call.head_blocks * kThreads + threadIdx.x;
  const unsigned column = thread % call.vectors * kVector, first = thread / call.vectors * kVector;
  if (first >= value_dim) return;
  const std::int64_t at = (head * value_dim + first) * key_dim + column;
  const float* const from = call.initial_state.row(sequence) + at;
  Pack<float, kVector> state[kVector];
#pragma unroll
  for (int row = 0; row < kVector; ++row) state[row] = load<kVector>(from + row * key_dim);
  // Before the count has come: most replays take a few slots, and those that take none read 6 % more.
  const Slots slots = slots_of(call, sequence, head);
  SlotValues<kVector> values;
  values.load_from(call, slots, 0, column, first);

  const std::int64_t wanted = call.count(sequence);
  const auto count = static_cast<int>(clamp(wanted, 0, call.capacity));
  if (count != wanted && head == 0 && thread == 0) report(call.faults, kCudaCounts);
#pragma unroll 1
  for (int base = 0; base < count; base += kSlots) {
    if (base > 0) values.load_from(call, slots, base, column, first);
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
      if (base + i >= count) break;
#pragma unroll
      for (int row = 0; row < kVector; ++row) {
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          float& x = state[row].at[k];
          x = fmaf(values.key[i].at[k], values.delta[i].at[row], values.factor[i].at[k] * x);
        }
      }
    }
  }
  float* const to = call.final_state.row(sequence) + at;
#pragma unroll
  for (int row = 0; row < kVector; ++row) store(state[row], to + row * key_dim);
}

}  // namespace

void replay_gated_delta_state(const Cuda& device, const contract::GatedDeltaNetGeometry& geometry,
                              const ReplayGatedDeltaStateArgs& args) {
  constexpr int kVector = kLoadBytes / sizeof(float);
  // Keys and deltas of a slot start at a multiple of 4 floats when what lies before them fills one.
  const bool is_wide = geometry.key_dim % kVector == 0 && geometry.value_dim % kVector == 0 &&
                       geometry.capacity * geometry.decays() % kVector == 0 &&
                       is_aligned(args.initial_state) && is_aligned(args.final_state) &&
                       is_aligned(args.state_update);
  const std::int64_t vector = is_wide ? kVector : 1, vectors = geometry.key_dim / vector;
  const std::int64_t head_blocks = ceil_div(vectors * (geometry.value_dim / vector), kThreads);
  const ReplayCall call{args.initial_state,
                        args.state_update,
                        args.count,
                        args.final_state,
                        device.faults,
                        args.key_heads,
                        geometry.capacity,
                        geometry.decays(),
                        static_cast<unsigned>(geometry.heads_per_key()),
                        static_cast<unsigned>(head_blocks),
                        static_cast<unsigned>(vectors)};
  const std::int64_t blocks = geometry.sequences * geometry.value_heads * head_blocks;
  launch(device, blocks, kThreads, is_wide ? replay_kernel<kVector> : replay_kernel<1>, call);
}

}  // namespace deltaworks::cuda

// The recurrent engine without shared memory, for whatever the faster kernels do not take: older
// cards, unaligned rows, decay per key, and among steps of one token those that capture, start from
// zeros or have another length after all. Eight lanes own one state row.
#pragma once

#include "cuda/gated_delta_net_call.cuh"
#include "cuda/gated_delta_net_step.cuh"
#include "cuda/heads_grid.hpp"

namespace deltaworks::cuda {

inline constexpr int kRowsThreads = 128;
inline constexpr int kRowsOfBlock = kRowsThreads / kLanes;

// The row of eight lanes; it lies behind the head's last in the spare lanes of a last block.
struct RowPlace {
  std::int32_t b, h, row;
};

// A lane's columns of the decay factors of one token.
template <class T>
__device__ void load_decays(const GatedDeltaNetCall<T>& call, std::int64_t token, std::int32_t h,
                            int lane, Four (&decays)[kPieces]) {
#pragma unroll
  for (int i = 0; i < 4 * kPieces; ++i) {
    decays[i / 4].at[i % 4] = decay_of_key(call, token, h, 4 * (i / 4 * kLanes + lane) + i % 4);
  }
}

// A lane's columns go to the capsule.
__device__ inline void store_columns(const Four (&pieces)[kPieces], int lane, float* to) {
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    stream_store4<false>(pieces[j], to + 4 * (j * kLanes + lane));
  }
}

// What a token brings, not yet normalised and activated.
struct RowInputs {
  KeyQuery kq;
  float value;
  RawGates gates;
};

template <bool kAligned, class T>
__device__ RowInputs load_row_inputs(const GatedDeltaNetCall<T>& call, const RowPlace& at,
                                     std::int64_t token, int lane) {
  RowInputs inputs;
  const std::int32_t first = call.key_column(at.h) + 4 * lane;
  const T* const key = call.key + token * call.key_stride + first;
  const T* const query = call.query + token * call.query_stride + first;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    inputs.kq.key[j] = load4<kAligned>(key + 4 * kLanes * j);
    inputs.kq.query[j] = load4<kAligned>(query + 4 * kLanes * j);
  }
  const std::int32_t row = min(at.row, call.value_dim - 1);
  inputs.value = widen(call.value[token * call.value_stride + call.column(at.h, row)]);
  inputs.gates = load_gates(call, token, at.h);
  return inputs;
}

template <bool kPerKey, class T>
__device__ void row_token(const GatedDeltaNetCall<T>& call, const RowPlace& at,
                          const Sequence& sequence, std::int32_t t, int lane, RowInputs& inputs,
                          StateRows<1>& state) {
  const std::int64_t token = sequence.start + t;
  KeyQuery& kq = inputs.kq;
  normalise(kq, call.epsilon);
  const Gates gates = activate(call, inputs.gates);
  const Capsule<T> capsule{call, at.b, at.h};
  const bool captures = t < sequence.captured, owns_shared = captures && at.row == 0;
  if constexpr (kPerKey) {
    Four decays[kPieces];
    load_decays(call, token, at.h, lane, decays);
#pragma unroll
    for (int i = 0; i < 4 * kPieces; ++i) {
      state.at[0][i / 4].at[i % 4] *= decays[i / 4].at[i % 4];
    }
    if (owns_shared) store_columns(decays, lane, capsule.decays(t));
  } else if (owns_shared && lane == 0) {
    *capsule.decays(t) = gates.decay;
  }
  if (owns_shared && capsule.owns_keys()) store_columns(kq.key, lane, capsule.keys(t));
  const auto result = step<1>(
      state, [&](int j) { return kq.key[j]; }, [&](int j) { return kq.query[j]; }, kq.key_query,
      gates, inputs.value, call.recalls, lane);
  if (at.row >= call.value_dim || !is_output_lane<1>(lane)) return;
  call.output[token * call.output_stride + call.column(at.h, at.row)] =
      narrow<T>(call.scale * result.output);
  if (captures) capsule.deltas(t)[at.row] = result.delta;
}

// All loads that need no offsets are under way before the offsets are looked at: the state, and the
// token that sequence b has in a step of one token each. When it is another one, it is loaded again.
// Not for calls without tokens.
template <bool kPerKey, bool kAligned, class T>
__device__ void rows_block(const GatedDeltaNetCall<T>& call, std::int32_t b, std::int32_t h,
                           std::int32_t first_of_block) {
  const int lane = threadIdx.x % kLanes;
  const RowPlace at{b, h, static_cast<std::int32_t>(first_of_block + threadIdx.x / kLanes)};
  const bool exists = at.row < call.value_dim;
  const Offsets offsets = offsets_at(call, at.b);
  const StateSlots slots = state_slots_at(call, at.b);
  const std::int64_t offset = call.state_row(at.h, at.row) + 4 * lane;
  StateRows<1> state{};
  if (exists && slots.in >= 0 && slots.out >= 0) {
    load_state_rows<kAligned>(call.initial_state + slots.in * call.initial_stride + offset, state);
  }
  std::int32_t loaded = min(at.b, call.tokens - 1);
  auto inputs = load_row_inputs<kAligned>(call, at, loaded, lane);
  const Sequence sequence = without_chunked(call, sequence_at(call, at.b, slots, offsets));
  if (at.h == 0 && at.row == 0 && lane == 0) check_sequence(call, at.b);
  const auto rows_of_block = static_cast<std::int32_t>(blockDim.x / kLanes);
  const std::int32_t block_rows = min(rows_of_block, call.value_dim - first_of_block);
  if (call.capacity > 0) {
    Capsule<T>{call, at.b, at.h}.clear(sequence.captured, first_of_block, block_rows);
  }
  if (sequence.is_skipped()) {
    clear_output(call, sequence, at.h, first_of_block, block_rows);
    return;
  }
#pragma unroll 1
  for (std::int32_t t = 0; t < sequence.length; ++t) {
    if (loaded != sequence.start + t) {
      loaded = sequence.start + t;
      inputs = load_row_inputs<kAligned>(call, at, loaded, lane);
    }
    row_token<kPerKey>(call, at, sequence, t, lane, inputs, state);
  }
  if (!exists) return;
  store_state_rows<kAligned>(state, call.final_state + slots.out * call.final_stride + offset);
}

// Eight blocks on a multiprocessor, for which registers would have to be spilled, were slower than six.
template <bool kPerKey, bool kAligned, class T>
__global__ void __launch_bounds__(kRowsThreads, kPerKey ? 4 : 6)
    rows_kernel(const __grid_constant__ GatedDeltaNetCall<T> call, const HeadsOrigin origin) {
  rows_block<kPerKey, kAligned>(call, static_cast<std::int32_t>(origin.sequence + blockIdx.z),
                                static_cast<std::int32_t>(origin.head + blockIdx.y),
                                static_cast<std::int32_t>(blockIdx.x * kRowsOfBlock));
}

}  // namespace deltaworks::cuda

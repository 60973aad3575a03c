// The recurrent engine for any key_dim: the state stays in memory between tokens.
//
// A block owns 32 rows of a head, eight lanes a row, in the order of sums of the register kernels.
// Key, query and decay factors of a token lie in shared memory; each lane reads and writes only its
// own elements of the state, so that no barrier guards them.
#pragma once

#include "cuda/gated_delta_net_call.cuh"
#include "cuda/gated_delta_net_step.cuh"
#include "cuda/heads_grid.hpp"

namespace deltaworks::cuda {

inline constexpr int kGeneralThreads = 256;
inline constexpr int kGeneralRows = kGeneralThreads / kLanes;

// Calls body(i) for the lane's columns, ascending.
template <class Body>
__device__ void for_columns(std::int32_t key_dim, int lane, const Body& body) {
  for (std::int32_t first = 4 * lane; first < key_dim; first += 4 * kLanes) {
    for (std::int32_t i = first; i < min(first + 4, key_dim); ++i) body(i);
  }
}

// One token of one head in shared memory: key_dim elements each.
struct GeneralToken {
  float *key, *query, *decays;
  float key_query;
};

template <class T>
__device__ void load_general_token(const GatedDeltaNetCall<T>& call, std::int64_t token,
                                   std::int32_t h, int lane, GeneralToken& to) {
  const std::int32_t head = call.key_column(h);
  const T* const key = call.key + token * call.key_stride + head;
  const T* const query = call.query + token * call.query_stride + head;
  float keys = 0, queries = 0, both = 0;
  if (call.epsilon > 0) {
    for_columns(call.key_dim, lane, [&](std::int32_t i) {
      keys = fmaf(widen(key[i]), widen(key[i]), keys);
      queries = fmaf(widen(query[i]), widen(query[i]), queries);
    });
  }
  const bool normalises = call.epsilon > 0;
  const float key_factor = normalises ? rsqrtf(sum_over_lanes(keys) + call.epsilon) : 1;
  const float query_factor = normalises ? rsqrtf(sum_over_lanes(queries) + call.epsilon) : 1;
  __syncthreads();  // the token before has been read
  for (std::int32_t i = threadIdx.x; i < call.key_dim; i += blockDim.x) {
    to.key[i] = widen(key[i]) * key_factor;
    to.query[i] = widen(query[i]) * query_factor;
    to.decays[i] = call.is_per_key ? decay_of_key(call, token, h, i) : 1;
  }
  __syncthreads();
  for_columns(call.key_dim, lane,
              [&](std::int32_t i) { both = fmaf(to.query[i], to.key[i], both); });
  to.key_query = sum_over_lanes(both);
}

template <class T>
__device__ void capture_general(const GatedDeltaNetCall<T>& call, const Capsule<T>& capsule,
                                std::int32_t t, const GeneralToken& token, float factor) {
  for (std::int32_t i = threadIdx.x; i < capsule.columns(); i += blockDim.x) {
    capsule.decays(t)[i] = call.is_per_key ? token.decays[i] : factor;
  }
  if (!capsule.owns_keys()) return;
  for (std::int32_t i = threadIdx.x; i < call.key_dim; i += blockDim.x) {
    capsule.keys(t)[i] = token.key[i];
  }
}

// A row through one token: from `from` (null: zeros) to `to`, which may be the same memory.
__device__ inline StepResult general_row(const float* from, float* to, std::int32_t key_dim,
                                         const GeneralToken& token, Gates gates, float value,
                                         bool recalls, int lane) {
  float recalled = 0, read = 0;
  const auto decayed = [&](std::int32_t i) {
    return (from != nullptr ? from[i] : 0) * token.decays[i];
  };
  for_columns(key_dim, lane, [&](std::int32_t i) {
    recalled = fmaf(decayed(i), token.key[i], recalled);
    read = fmaf(decayed(i), token.query[i], read);
  });
  recalled = sum_over_lanes(recalled);
  read = sum_over_lanes(read);
  const float error = recalls ? fmaf(-gates.decay, recalled, value) : value;
  const float delta = gates.beta * error;
  for_columns(key_dim, lane,
              [&](std::int32_t i) { to[i] = fmaf(token.key[i], delta, gates.decay * decayed(i)); });
  return {fmaf(gates.decay, read, token.key_query * delta), delta};
}

// What happens to a row of a sequence without tokens.
__device__ inline void pass_row(const float* from, float* to, std::int32_t key_dim, int lane) {
  if (from == to) return;
  for_columns(key_dim, lane, [&](std::int32_t i) { to[i] = from ? from[i] : 0; });
}

template <class T>
__device__ void general_block(const GatedDeltaNetCall<T>& call, std::int32_t b, std::int32_t h,
                              std::int32_t first_row, int lane, GeneralToken& token) {
  const std::int32_t rows = min(kGeneralRows, call.value_dim - first_row);
  const std::int32_t row = first_row + threadIdx.x / kLanes;
  const bool exists = row < call.value_dim;
  const Sequence sequence = sequence_at(call, b);
  if (h == 0 && first_row == 0 && threadIdx.x == 0) check_sequence(call, b);
  const Capsule<T> capsule{call, b, h};
  if (call.capacity > 0) capsule.clear(sequence.captured, first_row, rows);
  if (sequence.is_skipped()) {
    clear_output(call, sequence, h, first_row, rows);
    return;
  }
  const std::int64_t offset = call.state_row(h, exists ? row : 0);
  float* const to = call.final_state + sequence.slots.out * call.final_stride + offset;
  const float* from = sequence.starts_from_zero()
                          ? nullptr
                          : call.initial_state + sequence.slots.in * call.initial_stride + offset;
  if (sequence.length == 0 && exists) pass_row(from, to, call.key_dim, lane);
  for (std::int32_t t = 0; t < sequence.length; ++t) {
    const std::int64_t at = sequence.start + t;
    const std::int32_t value = call.column(h, row);
    load_general_token(call, at, h, lane, token);
    const Gates gates = activate(call, load_gates(call, at, h));
    const bool captures = t < sequence.captured;
    if (captures && first_row == 0) capture_general(call, capsule, t, token, gates.decay);
    const float v = exists ? widen(call.value[at * call.value_stride + value]) : 0;
    // Spare lanes take part in the shuffles with no columns of their own.
    const auto result =
        general_row(from, to, exists ? call.key_dim : 0, token, gates, v, call.recalls, lane);
    from = to;
    if (!exists || lane != 0) continue;
    call.output[at * call.output_stride + value] = narrow<T>(call.scale * result.output);
    if (captures) capsule.deltas(t)[row] = result.delta;
  }
}

// A block: kGeneralRows rows of a head of a sequence. Shared memory: three rows of key_dim.
template <class T>
__global__ void __launch_bounds__(kGeneralThreads)
    general_kernel(const __grid_constant__ GatedDeltaNetCall<T> call, const HeadsOrigin origin) {
  extern __shared__ float general_memory[];
  GeneralToken token{general_memory, general_memory + call.key_dim,
                     general_memory + 2 * call.key_dim, 0};
  general_block(call, origin.sequence + blockIdx.z, origin.head + blockIdx.y,
                blockIdx.x * kGeneralRows, threadIdx.x % kLanes, token);
}

}  // namespace deltaworks::cuda

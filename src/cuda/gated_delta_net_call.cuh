// A call of gated_delta_net as its kernels see it, and what they read from operands on the device:
// sequences, gates, capsules.
#pragma once

#include <cstdint>

#include "cuda/gates.cuh"
#include "cuda/pack.cuh"
#include "cuda/sequences.cuh"
#include "deltaworks/gated_delta_net.hpp"

namespace deltaworks::cuda {

// What every step reads comes first: a kernel's first read of each 64 bytes of it costs a miss.
template <class T>
struct GatedDeltaNetCall {
  const float* initial_state;
  std::int64_t initial_stride;
  const T *key, *query, *value;
  std::int64_t key_stride, query_stride, value_stride;
  const void *decay, *decay_per_key, *beta;  // float or T; null: factor 1, rate 1
  std::int64_t decay_stride, beta_stride;    // of either decay
  std::int32_t tokens, value_heads, heads_per_key, key_dim, value_dim, capacity;
  GateActivation gate_activation;
  bool gates_are_float, is_per_key, dt_bias_per_key, has_chunked, recalls, sigmoid_beta, captures;
  float scale, epsilon, gate_lower_bound;  // epsilon 0: no normalisation
  const float *a_log, *dt_bias;
  T* output;
  std::int64_t output_stride;
  float* final_state;
  std::int64_t final_stride;
  Pool pool;
  Ints cu_seqlens;
  float* state_update;
  std::int64_t update_stride;
  Ints capture_count;
  std::int32_t* faults;
  std::int32_t sequences, key_heads;

  // Where a row of a head of a state slot begins.
  __device__ std::int64_t state_row(std::int32_t h, std::int32_t row) const {
    return static_cast<std::int64_t>(h * value_dim + row) * key_dim;
  }
  // Where a row's value and output lie within those of a token.
  __device__ std::int32_t column(std::int32_t h, std::int32_t row) const {
    return h * value_dim + row;
  }
  // Where the key and query of a value head lie within those of a token.
  __device__ std::int32_t key_column(std::int32_t h) const { return h / heads_per_key * key_dim; }
};

// Where the state of a sequence lies. in < 0: it starts from zeros; out < 0: it takes no part.
struct StateSlots {
  std::int32_t in, out;
};

template <class T>
__device__ StateSlots state_slots_at(const GatedDeltaNetCall<T>& call, std::int32_t b) {
  StateSlots slots{b, b};
  if (call.pool.slots_in.data() != nullptr) {
    slots = {call.pool.slots_in(b), call.pool.slots_out(b)};
    const auto least = static_cast<std::int64_t>(min(slots.in, slots.out));
    const auto greatest = static_cast<std::int64_t>(max(slots.in, slots.out));
    if (least < 0 || greatest >= call.pool.slots) slots.out = -1;
  }
  const bool is_fresh = call.pool.fresh.data() != nullptr && call.pool.fresh(b) != 0;
  if (call.initial_state == nullptr || is_fresh) slots.in = -1;
  return slots;
}

// One sequence, with what the device says of it made safe. captured exceeds neither length nor
// capacity.
struct Sequence {
  std::int32_t start, length, captured;
  StateSlots slots;
  __device__ bool starts_from_zero() const { return slots.in < 0; }
  __device__ bool is_skipped() const { return slots.out < 0; }
};

// What cu_seqlens holds for a sequence.
struct Offsets {
  std::int32_t begin, end;
};

template <class T>
__device__ Offsets offsets_at(const GatedDeltaNetCall<T>& call, std::int32_t b) {
  return {call.cu_seqlens(b), call.cu_seqlens(b + 1)};
}

// The longest sequence that the recurrent engine serves beside the chunked one.
inline constexpr int kLongest = 16;

__device__ inline bool is_chunked(const Sequence& sequence) { return sequence.length > kLongest; }

template <class T>
__device__ Sequence sequence_at(const GatedDeltaNetCall<T>& call, std::int32_t b,
                                const StateSlots& slots, const Offsets& offsets) {
  const std::int32_t start = min(max(offsets.begin, 0), call.tokens);
  const std::int32_t length = min(max(offsets.end, start), call.tokens) - start;
  std::int32_t captured = 0;
  if (call.captures && slots.out >= 0) {
    captured = min(max(call.capture_count(b), 0), min(call.capacity, length));
  }
  return {start, length, captured, slots};
}

template <class T>
__device__ Sequence sequence_at(const GatedDeltaNetCall<T>& call, std::int32_t b) {
  return sequence_at(call, b, state_slots_at(call, b), offsets_at(call, b));
}

// For the recurrent engine a sequence of the chunked one is not there: no tokens, no state. One that
// takes no part is its own, whatever its length.
template <class T>
__device__ Sequence without_chunked(const GatedDeltaNetCall<T>& call, const Sequence& sequence) {
  if (!call.has_chunked || sequence.is_skipped() || !is_chunked(sequence)) return sequence;
  return {sequence.start, 0, 0, {-1, -1}};
}

// For one thread a sequence.
template <class T>
__device__ void check_sequence(const GatedDeltaNetCall<T>& call, std::int32_t b) {
  check_span(call.cu_seqlens, b, call.tokens, call.faults);
  check_slot(call.pool, b, call.faults);
}

template <class T>
__device__ float load_gate(const GatedDeltaNetCall<T>& call, const void* gates, std::int64_t i) {
  if (std::is_same_v<T, float> || call.gates_are_float) return static_cast<const float*>(gates)[i];
  return widen(static_cast<const T*>(gates)[i]);
}

// The log decay that `raw` stands for.
template <class Call>
__device__ float log_decay_of(const Call& call, float raw, float a_log, float dt_bias) {
  if (call.gate_activation == GateActivation::kNone) return raw;
  return call.gate_activation == GateActivation::kSoftplus
             ? softplus_log_decay(raw, a_log, dt_bias)
             : sigmoid_log_decay(raw, a_log, dt_bias, call.gate_lower_bound);
}

// The decay factor of column i, with decay per key.
template <class T>
__device__ float decay_of_key(const GatedDeltaNetCall<T>& call, std::int64_t token, std::int32_t h,
                              std::int32_t i) {
  const std::int64_t column = static_cast<std::int64_t>(h) * call.key_dim + i;
  const float raw = load_gate(call, call.decay_per_key, token * call.decay_stride + column);
  if (call.gate_activation == GateActivation::kNone) return exp(raw);
  return exp(
      log_decay_of(call, raw, call.a_log[h], call.dt_bias[call.dt_bias_per_key ? column : h]));
}

// What the gates of one token of a head are made of.
struct RawGates {
  float decay, beta, a_log, dt_bias;
};

template <class T>
__device__ RawGates load_gates(const GatedDeltaNetCall<T>& call, std::int64_t token,
                               std::int32_t h) {
  RawGates raw{0, 1, 0, 0};
  if (call.decay != nullptr) {
    raw.decay = load_gate(call, call.decay, token * call.decay_stride + h);
    if (call.gate_activation != GateActivation::kNone) {
      raw.a_log = call.a_log[h];
      raw.dt_bias = call.dt_bias[h];
    }
  }
  if (call.beta != nullptr) raw.beta = load_gate(call, call.beta, token * call.beta_stride + h);
  return raw;
}

// Decay factor of a head, 1 with decay per key, and update rate.
struct Gates {
  float decay, beta;
};

template <class Call>
__device__ float update_rate_of(const Call& call, float raw) {
  return call.beta != nullptr && call.sigmoid_beta ? sigmoid(raw) : raw;
}

template <class Call>
__device__ Gates activate(const Call& call, const RawGates& raw) {
  const float decay =
      call.decay == nullptr ? 1 : exp(log_decay_of(call, raw.decay, raw.a_log, raw.dt_bias));
  return {decay, update_rate_of(call, raw.beta)};
}

// By a whole block.
template <class T>
__device__ void fill(T* to, std::int64_t size, T value) {
  for (std::int64_t i = threadIdx.x; i < size; i += blockDim.x) to[i] = value;
}

// One head's places in the capsule of sequence b, by slot.
template <class T>
struct Capsule {
  const GatedDeltaNetCall<T>& call;
  std::int32_t b, h;

  __device__ std::int64_t columns() const { return call.is_per_key ? call.key_dim : 1; }
  __device__ float* row() const { return call.state_update + b * call.update_stride; }
  __device__ float* decays(std::int64_t slot) const {
    return row() + (slot * call.value_heads + h) * columns();
  }
  __device__ float* keys(std::int64_t slot) const {
    const std::int64_t decays = call.capacity * columns() * call.value_heads;
    return row() + decays + slot * call.key_heads * call.key_dim + call.key_column(h);
  }
  __device__ float* deltas(std::int64_t slot) const {
    const std::int64_t head = columns() * call.value_heads;
    const std::int64_t keys = static_cast<std::int64_t>(call.key_heads) * call.key_dim;
    return row() + call.capacity * (head + keys) + slot * call.value_heads * call.value_dim +
           call.column(h, 0);
  }
  // The first head of a group writes the keys that the group shares.
  __device__ bool owns_keys() const { return h % call.heads_per_key == 0; }

  // Zeros in the slots from `first_slot` on, by a whole block that owns `rows` rows of deltas; the
  // block that owns row 0 owns keys and decays.
  __device__ void clear(std::int32_t first_slot, std::int32_t first_row, std::int32_t rows) const {
    for (std::int32_t slot = first_slot; slot < call.capacity; ++slot) {
      fill(deltas(slot) + first_row, rows, 0.0f);
      if (first_row > 0) continue;
      fill(decays(slot), columns(), 0.0f);
      if (owns_keys()) fill(keys(slot), call.key_dim, 0.0f);
    }
  }
};

// Zeros as the output of a skipped sequence, by a whole block.
template <class T>
__device__ void clear_output(const GatedDeltaNetCall<T>& call, const Sequence& sequence,
                             std::int32_t h, std::int32_t first_row, std::int32_t rows) {
  for (std::int64_t t = sequence.start; t < sequence.start + sequence.length; ++t) {
    fill(call.output + t * call.output_stride + call.column(h, first_row), rows, narrow<T>(0));
  }
}

}  // namespace deltaworks::cuda

// A step of one token for each sequence: what it waits for is the state on its way from memory.
//
// Eight lanes own a state row. Every warp normalises key and query and activates the gates by itself, in
// the time that the state takes: a barrier would cost more. The order of loads decides how long few
// sequences take: the state first, then what the step needs, and no load waits for another. Sequences that
// turn out to be anything but one token in its place, with a state in reach, take the kernel for all cases.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>

#include "cuda/gated_delta_net_call.cuh"
#include "cuda/gated_delta_net_rows.cuh"
#include "cuda/gated_delta_net_step.cuh"

namespace deltaworks::cuda {

// Two rows a lane halve what a row costs in norms and gates; four were 5 % faster for 8 sequences of 32 heads
// on an H200, and 6 % slower from 64 sequences on.
inline constexpr int kDecodeLaneRows = 2;
inline constexpr int kDecodeThreads = 32;
#if __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 870
inline constexpr int kDecodeBlocks = 16;  // on a multiprocessor, which holds no more
#else
inline constexpr int kDecodeBlocks = 20;  // on a multiprocessor: 96 registers
#endif
inline constexpr int kDecodeRows = kDecodeThreads / kLanes * kDecodeLaneRows;  // of a block

// What a step reads, packed: the first read of each 64 bytes of a kernel's arguments is a miss, and a row's
// address is one multiplication where strides have 32 bits. Strides are in bytes. The order is that of use.
template <class T>
struct DecodeStep {
  const float* initial_state;
  std::uint32_t initial_stride, value_dim;
  const std::int32_t *slots_in, *fresh, *cu_seqlens;
  std::uint32_t cu_seqlens_stride, key_head_factor;  // key head = value head · factor / 2^16
  const T *key, *query, *value;
  std::uint32_t key_stride, query_stride, value_stride, decay_stride, beta_stride;
  bool gates_are_float, recalls, sigmoid_beta;
  GateActivation gate_activation;
  const void *decay, *beta;  // float or T; no decay: factor 1
  const float *a_log, *dt_bias;
  float epsilon, gate_lower_bound, scale;
  std::uint32_t output_stride;
  T* output;
  float* final_state;
  std::uint32_t final_stride;
  std::int32_t slots;
  const std::int32_t* slots_out;
  std::uint32_t slots_in_stride, slots_out_stride, fresh_stride;
};

template <class T>
struct DecodeCall {
  DecodeStep<T> step;
  GatedDeltaNetCall<T> all;
};

// Nothing where an extent does not fit, or the kernel has no use.
template <class T>
std::optional<DecodeStep<T>> decode_step_of(const GatedDeltaNetCall<T>& call) {
  bool fits = call.initial_state != nullptr && call.beta != nullptr && call.capacity == 0 &&
              !call.is_per_key && call.key_dim == kKeyDim && call.value_dim % kDecodeRows == 0 &&
              (call.pool.fresh.data() == nullptr || call.pool.slots_in.data() != nullptr) &&
              call.tokens == call.sequences && call.sequences <= 65535 &&
              call.value_heads * std::int64_t{call.heads_per_key} < 65536;
  const auto stride = [&](std::int64_t elements, std::size_t size) {
    const auto bytes = static_cast<std::uint64_t>(elements) * size;
    fits = fits && elements >= 0 && bytes <= std::numeric_limits<std::uint32_t>::max();
    return static_cast<std::uint32_t>(bytes);
  };
  const std::size_t gate = call.gates_are_float ? sizeof(float) : sizeof(T);
  DecodeStep<T> step{};
  step.initial_state = call.initial_state;
  step.initial_stride = stride(call.initial_stride, sizeof(float));
  step.value_dim = static_cast<std::uint32_t>(call.value_dim);
  step.slots_in = call.pool.slots_in.data();
  step.slots_in_stride = stride(call.pool.slots_in.row_stride(), sizeof(std::int32_t));
  step.slots_out = call.pool.slots_out.data();
  step.slots_out_stride = stride(call.pool.slots_out.row_stride(), sizeof(std::int32_t));
  step.fresh = call.pool.fresh.data();
  step.fresh_stride = stride(call.pool.fresh.row_stride(), sizeof(std::int32_t));
  step.slots = static_cast<std::int32_t>(
      std::min<std::int64_t>(call.pool.slots, std::numeric_limits<std::int32_t>::max()));
  step.cu_seqlens = call.cu_seqlens.data();
  step.cu_seqlens_stride = stride(call.cu_seqlens.row_stride(), sizeof(std::int32_t));
  step.key = call.key, step.query = call.query, step.value = call.value;
  step.key_stride = stride(call.key_stride, sizeof(T));
  step.query_stride = stride(call.query_stride, sizeof(T));
  step.value_stride = stride(call.value_stride, sizeof(T));
  step.key_head_factor =
      static_cast<std::uint32_t>((65536 + call.heads_per_key - 1) / call.heads_per_key);
  step.decay = call.decay, step.beta = call.beta;
  step.decay_stride = stride(call.decay_stride, gate);
  step.beta_stride = stride(call.beta_stride, gate);
  step.a_log = call.a_log, step.dt_bias = call.dt_bias;
  step.gates_are_float = call.gates_are_float, step.recalls = call.recalls;
  step.sigmoid_beta = call.sigmoid_beta, step.gate_activation = call.gate_activation;
  step.epsilon = call.epsilon, step.gate_lower_bound = call.gate_lower_bound;
  step.scale = call.scale;
  step.output = call.output, step.output_stride = stride(call.output_stride, sizeof(T));
  step.final_state = call.final_state;
  step.final_stride = stride(call.final_stride, sizeof(float));
  return fits ? std::optional(step) : std::nullopt;
}

// What Qwen's models ask for. Known at compile time, the gates and the norm have no branches between them,
// and their chains of operations overlap.
template <class T>
bool is_usual(const GatedDeltaNetCall<T>& call) {
  return call.decay != nullptr && call.beta != nullptr && call.sigmoid_beta && call.recalls &&
         call.gate_activation == GateActivation::kSoftplus && call.epsilon > 0;
}

template <class T>
__device__ T* at_row(T* base, std::uint32_t row, std::uint32_t stride_bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return reinterpret_cast<T*>(reinterpret_cast<Byte*>(base) +
                              static_cast<std::uint64_t>(row) * stride_bytes);
}

// Four neighbours as they lie in memory: what is loaded is widened where it is used, not before.
template <class T>
struct RawFour {
  std::conditional_t<sizeof(T) == 4, uint4, uint2> words;

  __device__ Four widened() const {
    Pack<T, 4> pack;
    memcpy(&pack, &words, sizeof(pack));
    return widen(pack);
  }
};

// from: a multiple of four elements.
template <class T>
__device__ RawFour<T> load_raw4(const T* from) {
  return *reinterpret_cast<const RawFour<T>*>(from);
}

// A pair of lanes holds what one value apart would take two loads for: even lanes the first of each.
// Loads whose address is the same in all lanes would go to scalar registers, and wait there.
struct GatePair {
  std::uint32_t bits;  // decay; beta
  float constant;      // a_log; dt_bias
};

template <class T>
struct DecodeInputs {
  RawFour<T> key[kPieces], query[kPieces];
  T value;
  GatePair gates;
};

template <bool kUsual, class T>
__device__ GatePair load_gate_pair(const DecodeStep<T>& step, std::uint32_t token, std::uint32_t h,
                                   bool is_second) {
  GatePair pair{0, 0};
  const void* const gates = is_second ? step.beta : step.decay;
  if (kUsual || gates != nullptr) {
    const void* const row = at_row(static_cast<const char*>(gates), token,
                                   is_second ? step.beta_stride : step.decay_stride);
    pair.bits = sizeof(T) == 4 || step.gates_are_float ? static_cast<const std::uint32_t*>(row)[h]
                                                       : static_cast<const std::uint16_t*>(row)[h];
  }
  const float* const constants = is_second ? step.dt_bias : step.a_log;
  if (kUsual || constants != nullptr) pair.constant = constants[h];
  return pair;
}

template <bool kUsual, class T>
__device__ Gates activate(const DecodeStep<T>& step, const GatePair& pair) {
  const auto gate = [&](int of) {
    const std::uint32_t bits = __shfl_sync(kFullWarp, pair.bits, of, 2);
    if constexpr (sizeof(T) == 2) {
      if (!step.gates_are_float) return widen(T{static_cast<std::uint16_t>(bits)});
    }
    return __uint_as_float(bits);
  };
  const RawGates raw{gate(0), gate(1), __shfl_sync(kFullWarp, pair.constant, 0, 2),
                     __shfl_sync(kFullWarp, pair.constant, 1, 2)};
  if constexpr (kUsual) {
    return {exp(softplus_log_decay(raw.decay, raw.a_log, raw.dt_bias)), sigmoid(raw.beta)};
  } else {
    return activate(step, raw);
  }
}

template <bool kUsual, class T>
__device__ DecodeInputs<T> load_decode_inputs(const DecodeStep<T>& step, std::uint32_t token,
                                              std::uint32_t h, std::uint32_t row, int lane) {
  DecodeInputs<T> inputs;
  inputs.gates = load_gate_pair<kUsual>(step, token, h, lane % 2 == 1);
  const std::uint32_t column = (h * step.key_head_factor >> 16) * kKeyDim + 4 * lane;
  const T* const key = at_row(step.key, token, step.key_stride) + column;
  const T* const query = at_row(step.query, token, step.query_stride) + column;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    inputs.key[j] = load_raw4(key + 4 * kLanes * j);
    inputs.query[j] = load_raw4(query + 4 * kLanes * j);
  }
  inputs.value = at_row(step.value, token, step.value_stride)[h * step.value_dim + row];
  return inputs;
}

// A block of the kernel for all cases, kParts times. Apart, so that its registers do not count here.
template <int kParts, class T>
__device__ __noinline__ void rows_block_apart(const GatedDeltaNetCall<T>& call) {
  for (int part = 0; part < kParts; ++part) {
    rows_block<false, true>(call, blockIdx.z, blockIdx.y,
                            (blockIdx.x * kParts + part) * (blockDim.x / kLanes));
  }
}

// x: row blocks, y: heads, z: sequences.
template <bool kUsual, class T>
__global__ void __launch_bounds__(kDecodeThreads, kDecodeBlocks)
    decode_kernel(const __grid_constant__ DecodeCall<T> call) {
  const DecodeStep<T>& in = call.step;
  const int lane = threadIdx.x % kLanes;
  const bool is_second = lane % 2 == 1;
  const std::uint32_t b = blockIdx.z, h = blockIdx.y;
  const std::uint32_t first_row =
      (blockIdx.x * kDecodeThreads + threadIdx.x) / kLanes * kDecodeLaneRows;
  const std::uint64_t offset =
      static_cast<std::uint64_t>(h * in.value_dim + first_row) * kKeyDim + 4 * lane;
  const bool has_slots = in.slots_in != nullptr;
  StateRows<kDecodeLaneRows> state;
  std::int32_t slot = static_cast<std::int32_t>(b), fresh = 0;
  const std::int32_t bound = *at_row(in.cu_seqlens, b + is_second, in.cu_seqlens_stride);
  if (has_slots) {
    slot = *(is_second ? at_row(in.slots_out, b, in.slots_out_stride)
                       : at_row(in.slots_in, b, in.slots_in_stride));
  } else {
    load_state_rows<true>(at_row(in.initial_state, b, in.initial_stride) + offset, state);
  }
  if (in.fresh != nullptr && is_second) fresh = *at_row(in.fresh, b, in.fresh_stride);
  __syncwarp();  // no load of what follows goes first
  const std::uint32_t row = first_row + row_of_lane<kDecodeLaneRows>(lane);
  const DecodeInputs<T> inputs = load_decode_inputs<kUsual>(in, b, h, row, lane);
  const bool has_state = __all_sync(kFullWarp, slot >= 0 && slot < in.slots && fresh == 0);
  std::uint32_t slot_out = b;
  if (has_slots && has_state) {
    const std::uint32_t slot_in = __shfl_sync(kFullWarp, slot, 0, 2);
    slot_out = __shfl_sync(kFullWarp, slot, 1, 2);
    load_state_rows<true>(at_row(in.initial_state, slot_in, in.initial_stride) + offset, state);
  }
  const bool is_in_place = bound == static_cast<std::int32_t>(b + is_second);
  if (!has_state || !__all_sync(kFullWarp, is_in_place)) {
    rows_block_apart<kDecodeLaneRows>(call.all);
    return;
  }
  KeyQuery kq;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    kq.key[j] = inputs.key[j].widened();
    kq.query[j] = inputs.query[j].widened();
  }
  normalise<kUsual>(kq, in.epsilon);
  const Gates gates = activate<kUsual>(in, inputs.gates);
  const auto result = step<kDecodeLaneRows>(
      state, [&](int j) { return kq.key[j]; }, [&](int j) { return kq.query[j]; }, kq.key_query,
      gates, widen(inputs.value), kUsual || in.recalls, lane);
  if (is_output_lane<kDecodeLaneRows>(lane)) {
    at_row(in.output, b, in.output_stride)[h * in.value_dim + row] =
        narrow<T>(in.scale * result.output);
  }
  store_state_rows<true>(state, at_row(in.final_state, slot_out, in.final_stride) + offset);
}

}  // namespace deltaworks::cuda

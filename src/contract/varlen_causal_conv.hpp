// What is a legal varlen_causal_conv or replay_conv_state. The C++ interface, the ONNX nodes (dims
// possibly unknown) and the command line ask here.
#pragma once

#include <cstdint>
#include <string_view>

#include "contract/tensor.hpp"
#include "deltaworks/varlen_causal_conv.hpp"

namespace deltaworks::contract {

// Named as the fields of VarlenCausalConvArgs. Outputs are absent where the caller makes them from
// the geometry.
struct VarlenCausalConvOperands {
  Tensor input;
  Tensor weight;
  Tensor cu_seqlens;
  Tensor initial_state;
  Operand bias{};
  Operand slots_in{};
  Operand slots_out{};
  Operand fresh{};
  Operand capture_count{};
  Operand output{};
  Operand final_state{};
  Operand state_update{};
  ConvActivation activation = ConvActivation::kNone;
  std::int64_t dilation = 1;
  std::int64_t state_update_capacity = 0;
  Operand kernel_delta{};
  Operand previous_mask{};
  std::int64_t group_size = 1;
  std::int64_t delta_offset = 0;
  Operand prepared_weight{};
};

// Every extent may be kUnknown when no operand tells it.
struct VarlenCausalConvGeometry {
  std::int64_t sequences = kUnknown;
  std::int64_t tokens = kUnknown;
  std::int64_t channels = kUnknown;
  std::int64_t width = kUnknown;
  std::int64_t dilation = 1;
  std::int64_t history = kUnknown;  // (width - 1) * dilation
  std::int64_t capacity = 0;
  std::int64_t slots = kUnknown;  // rows of the states: `sequences` without a pool
};

Outcome<VarlenCausalConvGeometry> varlen_causal_conv(std::string_view op,
                                                     const VarlenCausalConvOperands& operands);

// "none", "silu" or "swish", which is silu.
Outcome<ConvActivation> parse_conv_activation(std::string_view op, std::string_view text);

// Named as the fields of ReplayConvStateArgs.
struct ReplayConvStateOperands {
  Tensor initial_state;
  Tensor state_update;
  Tensor count;
  Operand final_state{};
};

struct ReplayConvStateGeometry {
  std::int64_t sequences = kUnknown;
  std::int64_t channels = kUnknown;
  std::int64_t history = kUnknown;
  std::int64_t capacity = kUnknown;
};

Outcome<ReplayConvStateGeometry> replay_conv_state(std::string_view op,
                                                   const ReplayConvStateOperands& operands);

}  // namespace deltaworks::contract

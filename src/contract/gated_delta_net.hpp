// What gated_delta_net and its replay accept. Asked by the C++ interface, the ONNX nodes and the
// command line.
#pragma once

#include <cstdint>
#include <string_view>

#include "contract/tensor.hpp"
#include "deltaworks/gated_delta_net.hpp"

namespace deltaworks::contract {

inline constexpr std::int64_t kMaxKeyDim = 2048;  // a task keeps its tokens on its stack

struct GatedDeltaNetOperands {
  // [tokens, key_heads, key_dim], or [sequences, length, key_heads, key_dim]; without key and value
  // the packed form [tokens, row] or [sequences, length, row], row = 2 · key_heads · key_dim +
  // value_heads · value_dim.
  Tensor query;
  Operand key{}, value{}, cu_seqlens{}, decay{}, beta{}, initial_state{}, a_log{}, dt_bias{},
      capture_count{}, state_update_active{}, slots_in{}, slots_out{}, fresh{};
  UpdateRule update_rule = UpdateRule::kGatedDelta;
  GateActivation gate_activation = GateActivation::kNone;
  float scale = 0;
  float gate_lower_bound = -5;
  std::int64_t state_update_capacity = 0;
  std::int64_t chunk_size = 64;  // a hint of the ONNX operator, which nothing here takes
};

struct GatedDeltaNetGeometry {
  std::int64_t sequences = kUnknown, tokens = kUnknown;
  std::int64_t key_heads = kUnknown, value_heads = kUnknown;
  std::int64_t key_dim = kUnknown, value_dim = kUnknown;
  std::int64_t length = kUnknown;  // of every sequence, when no cu_seqlens is given
  std::int64_t slots = kUnknown;   // of the state pool; sequences without one
  std::int64_t capacity = 0;
  bool decay_per_key = false, dt_bias_per_key = false;

  std::int64_t heads_per_key() const { return value_heads / key_heads; }
  std::int64_t decays() const { return value_heads * (decay_per_key ? key_dim : 1); }
  // Elements of one sequence's state update.
  std::int64_t state_update_row() const {
    return capacity * (decays() + key_heads * key_dim + value_heads * value_dim);
  }
};

Outcome<GatedDeltaNetGeometry> gated_delta_net(std::string_view op,
                                               const GatedDeltaNetOperands& operands);

struct ReplayGatedDeltaStateOperands {
  Tensor initial_state, state_update, count;
  std::int64_t key_heads = 0;
  std::int64_t state_update_capacity = 0;
};

Outcome<GatedDeltaNetGeometry> replay_gated_delta_state(
    std::string_view op, const ReplayGatedDeltaStateOperands& operands);

// Attribute texts of the ONNX operator.
Outcome<UpdateRule> parse_update_rule(std::string_view op, std::string_view text);
Outcome<GateActivation> parse_gate_activation(std::string_view op, std::string_view text);
Outcome<BetaActivation> parse_beta_activation(std::string_view op, std::string_view text);

}  // namespace deltaworks::contract

// What linear_attention accepts. Asked by the C++ interface, the ONNX node and the command line.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "contract/gated_delta_net.hpp"
#include "contract/tensor.hpp"
#include "deltaworks/linear_attention.hpp"

namespace deltaworks::contract {

// Named as the fields of LinearAttentionArgs. Outputs are absent where the caller makes them from the
// geometry.
struct LinearAttentionOperands {
  Tensor query, key, value;
  Operand past_state{}, decay{}, beta{}, output{}, present_state{};
  std::int64_t q_num_heads = 0, kv_num_heads = 0;
  UpdateRule update_rule = UpdateRule::kGatedDelta;
  float scale = 0;
};

struct LinearAttentionGeometry {
  std::int64_t sequences = kUnknown, length = kUnknown;
  std::int64_t q_num_heads = kUnknown, kv_num_heads = kUnknown, key_heads = kUnknown;
  std::int64_t key_dim = kUnknown, value_dim = kUnknown;
  bool decays = false, recalls = false;  // what the rule needs: decay; the delta rules, beta
  bool decay_per_key = false, beta_per_head = false;

  std::int64_t output_heads() const { return std::max(q_num_heads, kv_num_heads); }
  std::int64_t output_width() const {
    return value_dim == kUnknown ? kUnknown : output_heads() * value_dim;
  }
  // Query heads that read one state head.
  std::int64_t queries_per_head() const {
    return std::max<std::int64_t>(1, q_num_heads / kv_num_heads);
  }
  // The first query head that reads state head h.
  std::int64_t query_head(std::int64_t h) const { return h * q_num_heads / kv_num_heads; }
  std::int64_t key_head(std::int64_t h) const { return h / (kv_num_heads / key_heads); }
};

Outcome<LinearAttentionGeometry> linear_attention(std::string_view op,
                                                  const LinearAttentionOperands& operands);

}  // namespace deltaworks::contract

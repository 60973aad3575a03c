// The specification of linear_attention in float64: plain loops, the formula's names.
#pragma once

#include <vector>

#include "deltaworks/linear_attention.hpp"

namespace deltaworks::reference {

struct LinearAttentionResult {
  std::vector<double> output;  // [sequences, length, max(q_num_heads, kv_num_heads) · value_dim]
  std::vector<double> present_state;  // [sequences, kv_num_heads, key_dim, value_dim]
};

// args.output and args.present_state are not touched.
template <class T, class S>
LinearAttentionResult linear_attention(const LinearAttentionArgs<T, S>& args);

}  // namespace deltaworks::reference

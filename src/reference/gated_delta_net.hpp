// The specification of gated_delta_net in float64: plain loops, the formula's names.
#pragma once

#include <vector>

#include "deltaworks/gated_delta_net.hpp"

namespace deltaworks::reference {

struct GatedDeltaNetResult {
  std::vector<double> output;        // [tokens, value_heads, value_dim]
  std::vector<double> final_state;   // [sequences, value_heads, value_dim, key_dim]
  std::vector<double> state_update;  // as the operator lays it out; empty without capture
};

// State pools are left to the tests' laws: sequence b starts from state b.
template <class T, class G>
GatedDeltaNetResult gated_delta_net(const GatedDeltaNetArgs<T, G>& args);

}  // namespace deltaworks::reference

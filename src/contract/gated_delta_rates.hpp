// What is a legal gated_delta_rates. The C++ interface, the ONNX node (dims possibly unknown) and
// the command line ask here.
#pragma once

#include <cstdint>
#include <string_view>

#include "contract/tensor.hpp"
#include "deltaworks/gated_delta_rates.hpp"

namespace deltaworks::contract {

// Named as the fields of GatedDeltaRatesArgs. The tokens may have any number of dims: [..., value
// heads]. Outputs are absent where the caller makes them from the geometry.
struct GatedDeltaRatesOperands {
  Tensor update_logits;
  Tensor decay_inputs;
  Tensor a_log;
  Tensor dt_bias;
  Operand update_rates{};
  Operand decay_factors{};
};

// Every extent may be kUnknown when no operand tells it.
struct GatedDeltaRatesGeometry {
  std::int64_t tokens = kUnknown;  // of all leading dims
  std::int64_t value_heads = kUnknown;
};

Outcome<GatedDeltaRatesGeometry> gated_delta_rates(std::string_view op,
                                                   const GatedDeltaRatesOperands& operands);

// "float32" or "activation".
Outcome<GatedDeltaRatesArithmetic> parse_gated_delta_rates_arithmetic(std::string_view op,
                                                                      std::string_view text);

}  // namespace deltaworks::contract

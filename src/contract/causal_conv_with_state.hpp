// What causal_conv_with_state accepts. Asked by the C++ interface, the ONNX node and the command
// line.
#pragma once

#include <cstdint>
#include <string_view>

#include "contract/tensor.hpp"
#include "deltaworks/causal_conv_with_state.hpp"

namespace deltaworks::contract {

// Named as the fields of CausalConvWithStateArgs. Outputs are absent where the caller makes them from
// the geometry. In a graph that is channels-last, channels may be spread over several last dims.
struct CausalConvWithStateOperands {
  Tensor input, weight;
  Operand bias{}, past_state{}, output{}, present_state{};
  std::int64_t dilation = 1;
  bool channels_last = false;
};

struct CausalConvWithStateGeometry {
  std::int64_t sequences = kUnknown, length = kUnknown, channels = kUnknown, width = kUnknown;
  std::int64_t dilation = 1;
  std::int64_t history = kUnknown;  // (width - 1) * dilation
};

Outcome<CausalConvWithStateGeometry> causal_conv_with_state(
    std::string_view op, const CausalConvWithStateOperands& operands);

}  // namespace deltaworks::contract

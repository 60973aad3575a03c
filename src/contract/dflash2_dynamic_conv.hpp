// What is a legal dflash2_dynamic_conv. The C++ interface, the ONNX node (dims possibly unknown) and
// the command line ask here.
#pragma once

#include <cstdint>
#include <string_view>

#include "contract/tensor.hpp"
#include "deltaworks/dflash2_dynamic_conv.hpp"

namespace deltaworks::contract {

inline constexpr std::int64_t kMaxTaps = 4;  // the kernel keeps a row's coefficients on its stack

// Named as the fields of DFlash2DynamicConvArgs. The output is absent where the caller makes it from
// the geometry.
struct DFlash2DynamicConvOperands {
  Tensor input;
  Tensor dynamic;
  Tensor base;
  Operand residual{};
  Operand output{};
  DFlash2Stage stage = DFlash2Stage::kPrepare;
  std::int64_t rows_per_lane = 1;
  std::int64_t groups = 1;
};

// Every extent may be kUnknown when no operand tells it.
struct DFlash2DynamicConvGeometry {
  std::int64_t rows = kUnknown;
  std::int64_t channels = kUnknown;
  std::int64_t taps = kUnknown;
  std::int64_t groups = 1;
  std::int64_t rows_per_lane = 1;
};

Outcome<DFlash2DynamicConvGeometry> dflash2_dynamic_conv(
    std::string_view op, const DFlash2DynamicConvOperands& operands);

// "prepare" or "residual".
Outcome<DFlash2Stage> parse_dflash2_stage(std::string_view op, std::string_view text);

// "float32" or "activation".
Outcome<DFlash2Arithmetic> parse_dflash2_arithmetic(std::string_view op, std::string_view text);

}  // namespace deltaworks::contract

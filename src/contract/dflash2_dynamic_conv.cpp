#include "contract/dflash2_dynamic_conv.hpp"

#include <fmt/format.h>

#include <limits>

#include "contract/checker.hpp"

namespace deltaworks::contract {

namespace {

constexpr std::int64_t kStages = 2;

// `tensor` has the activations' type or the one wider or coarser type that may stand beside it.
void check_type(Checker& check, std::string_view argument, const Tensor& tensor, DType element,
                DType other) {
  if (tensor.dtype == element || tensor.dtype == other) return;
  const std::string expected = element == other
                                   ? std::string(name(element))
                                   : fmt::format("{} or {}", name(element), name(other));
  check.fail(fmt::format("{} has type {}, expected {}", argument, name(tensor.dtype), expected));
}

void check_types(Checker& check, const DFlash2DynamicConvOperands& operands) {
  const DType element = operands.input.dtype;
  check.require(element != DType::kInt32,
                "input has type int32, expected float32, float16 or bfloat16");
  check.dtype("dynamic", operands.dynamic, element);
  check_type(check, "base", operands.base, element, DType::kBFloat16);
  if (operands.residual) {
    check_type(check, "residual", *operands.residual, element, DType::kFloat32);
  }
  if (!operands.output) return;
  check_type(check, "output", *operands.output, element, DType::kFloat32);
  if (operands.residual) check.dtype("output", *operands.output, operands.residual->dtype);
}

void check_lanes(Checker& check, const DFlash2DynamicConvOperands& operands,
                 const DFlash2DynamicConvGeometry& shape) {
  check.require(shape.rows_per_lane >= 1, "rows_per_lane is {}, expected at least 1",
                shape.rows_per_lane);
  if (!check.ok() || shape.rows == kUnknown || shape.rows % shape.rows_per_lane == 0) return;
  const bool told = operands.input.dims[0] != kUnknown;
  check.fail(fmt::format("{} has shape {}, expected whole lanes of {} rows",
                         told ? "input" : "dynamic",
                         to_string(told ? operands.input : operands.dynamic), shape.rows_per_lane));
}

void check_groups(Checker& check, const DFlash2DynamicConvOperands& operands,
                  const DFlash2DynamicConvGeometry& shape) {
  check.require(shape.groups >= 1, "groups is {}, expected at least 1", shape.groups);
  check.require(shape.channels <= 0 || shape.groups <= shape.channels,
                "groups is {}, expected at most {}, one for each channel", shape.groups,
                shape.channels);
  if (!check.ok() || shape.channels == kUnknown || shape.channels % shape.groups == 0) return;
  const bool told = operands.input.dims[1] != kUnknown;
  check.fail(fmt::format("{} has shape {}, expected channels in {} equal groups",
                         told ? "input" : "base", to_string(told ? operands.input : operands.base),
                         shape.groups));
}

void check_dynamic(Checker& check, const DFlash2DynamicConvOperands& operands,
                   DFlash2DynamicConvGeometry& shape) {
  if (shape.taps != kUnknown && (shape.taps < 1 || shape.taps > kMaxTaps)) {
    check.fail(fmt::format("base has shape {}, expected 1 to {} taps", to_string(operands.base),
                           kMaxTaps));
  }
  if (!check.ok()) return;
  std::int64_t width = kUnknown;
  if (shape.taps != kUnknown) {
    constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max() / 8;
    check.require(shape.groups <= kLargest, "groups is {}, expected less than 2^60", shape.groups);
    if (!check.ok()) return;
    width = kStages * shape.taps * shape.groups;
  }
  check.shape("dynamic", operands.dynamic, {&shape.rows, &width});
}

}  // namespace

Outcome<DFlash2DynamicConvGeometry> dflash2_dynamic_conv(
    std::string_view op, const DFlash2DynamicConvOperands& operands) {
  Checker check(op);
  DFlash2DynamicConvGeometry shape;
  shape.groups = operands.groups;
  shape.rows_per_lane = operands.rows_per_lane;
  check_types(check, operands);
  check.dims("input", operands.input);
  check.dims("dynamic", operands.dynamic);
  check.dims("base", operands.base);
  if (operands.residual) check.dims("residual", *operands.residual);
  if (operands.output) check.dims("output", *operands.output);
  const bool adds = operands.stage == DFlash2Stage::kResidual;
  check.together("residual", operands.residual.has_value(), adds,
                 adds ? "stage is residual" : "stage is prepare");
  std::int64_t stages = kStages;
  check.shape("input", operands.input, {&shape.rows, &shape.channels});
  check.shape("base", operands.base, {&stages, &shape.taps, &shape.channels});
  check.shape("residual", operands.residual, {&shape.rows, &shape.channels});
  check.shape("output", operands.output, {&shape.rows, &shape.channels});
  check_groups(check, operands, shape);
  check_dynamic(check, operands, shape);
  check_lanes(check, operands, shape);
  check.size("input", {shape.rows, shape.channels});
  if (operands.dynamic.rank == 2) {
    check.size("dynamic", {operands.dynamic.dims[0], operands.dynamic.dims[1]});
  }
  check.size("base", {kStages, shape.taps, shape.channels});
  if (!check.ok()) return check.complaint();
  return shape;
}

Outcome<DFlash2Stage> parse_dflash2_stage(std::string_view op, std::string_view text) {
  if (text == "prepare") return DFlash2Stage::kPrepare;
  if (text == "residual") return DFlash2Stage::kResidual;
  return fmt::format("{}: stage is \"{}\", expected prepare or residual", op, text);
}

Outcome<DFlash2Arithmetic> parse_dflash2_arithmetic(std::string_view op, std::string_view text) {
  if (text == "float32") return DFlash2Arithmetic::kFloat32;
  if (text == "activation") return DFlash2Arithmetic::kActivation;
  return fmt::format("{}: arithmetic is \"{}\", expected float32 or activation", op, text);
}

}  // namespace deltaworks::contract

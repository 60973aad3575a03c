#include "contract/varlen_causal_conv.hpp"

#include <fmt/format.h>

#include <initializer_list>
#include <limits>

#include "contract/checker.hpp"

namespace deltaworks::contract {

namespace {

// An element type that all T operands share.
void check_element(Checker& check, std::string_view argument, const Tensor& tensor) {
  if (tensor.dtype != DType::kInt32) return;
  check.fail(fmt::format("{} has type int32, expected float32, float16 or bfloat16", argument));
}

void shape_of_weight(Checker& check, const VarlenCausalConvOperands& operands,
                     VarlenCausalConvGeometry& shape) {
  std::int64_t one = 1;
  check.shape("weight", operands.weight, {&shape.channels, &one, &shape.width});
  check.require(operands.dilation >= 1, "dilation is {}, expected at least 1", operands.dilation);
  shape.dilation = operands.dilation;
  if (!check.ok() || shape.width == kUnknown) return;
  if (shape.width == 0) {
    check.fail(fmt::format("weight has shape {}, expected a width of at least 1",
                           to_string(operands.weight)));
  } else if (shape.width - 1 > std::numeric_limits<std::int32_t>::max() / shape.dilation) {
    check.fail(fmt::format("dilation is {} with width {}, expected a history of less than 2^31",
                           shape.dilation, shape.width));
  } else {
    shape.history = (shape.width - 1) * shape.dilation;
  }
}

void shape_of_sequences(Checker& check, const VarlenCausalConvOperands& operands,
                        VarlenCausalConvGeometry& shape) {
  std::int64_t offsets = kUnknown;
  check.shape("cu_seqlens", operands.cu_seqlens, {&offsets});
  if (offsets == 0) {
    check.fail("cu_seqlens has shape [0], expected one offset more than there are sequences");
  }
  if (offsets > 0) shape.sequences = offsets - 1;
  check.shape("slots_in", operands.slots_in, {&shape.sequences});
  check.shape("slots_out", operands.slots_out, {&shape.sequences});
  check.shape("fresh", operands.fresh, {&shape.sequences});
  check.shape("capture_count", operands.capture_count, {&shape.sequences});
}

void shape_of_states(Checker& check, const VarlenCausalConvOperands& operands,
                     VarlenCausalConvGeometry& shape) {
  check.together("slots_out", operands.slots_out.has_value(), operands.slots_in.has_value(),
                 operands.slots_in ? "slots_in is given" : "slots_in is missing");
  std::int64_t& rows = operands.slots_in ? shape.slots : shape.sequences;
  check.shape("initial_state", operands.initial_state, {&rows, &shape.channels, &shape.history});
  check.shape("final_state", operands.final_state, {&rows, &shape.channels, &shape.history});
  shape.slots = rows;
}

void shape_of_capture(Checker& check, const VarlenCausalConvOperands& operands,
                      VarlenCausalConvGeometry& shape) {
  shape.capacity = operands.state_update_capacity;
  check.require(shape.capacity >= 0, "state_update_capacity is {}, expected at least 0",
                shape.capacity);
  if (shape.capacity > 0) {
    check.require(operands.capture_count.has_value(),
                  "capture_count is missing, expected it: state_update has room for {} tokens",
                  shape.capacity);
  } else if (!operands.state_update) {
    check.together("capture_count", operands.capture_count.has_value(), false,
                   "there is no state_update to fill");
  }
  check.shape("state_update", operands.state_update,
              {&shape.sequences, &shape.capacity, &shape.channels});
}

// What kernel_delta leaves of the other arguments.
void check_dynamic_rest(Checker& check, const VarlenCausalConvOperands& operands,
                        const VarlenCausalConvGeometry& shape) {
  constexpr std::string_view kReason = "kernel_delta is given";
  check.together("bias", operands.bias.has_value(), false, kReason);
  check.require(operands.activation == ConvActivation::kNone,
                "activation is silu, expected none: {}", kReason);
  check.require(shape.dilation == 1, "dilation is {}, expected 1: {}", shape.dilation, kReason);
  if (shape.width == kUnknown || shape.width == 2) return;
  check.fail(fmt::format("weight has shape {}, expected a width of 2: {}",
                         to_string(operands.weight), kReason));
}

void shape_of_dynamic(Checker& check, const VarlenCausalConvOperands& operands,
                      VarlenCausalConvGeometry& shape) {
  const bool is_dynamic = operands.kernel_delta.has_value();
  check.together("previous_mask", operands.previous_mask.has_value(), is_dynamic,
                 is_dynamic ? "kernel_delta is given" : "kernel_delta is missing");
  check.require(is_dynamic || operands.group_size == 1,
                "group_size is {}, expected 1: kernel_delta is missing", operands.group_size);
  check.require(is_dynamic || operands.delta_offset == 0,
                "delta_offset is {}, expected 0: kernel_delta is missing", operands.delta_offset);
  check.shape("prepared_weight", operands.prepared_weight, {&shape.width, &shape.channels});
  if (!is_dynamic) return;
  check.require(!operands.prepared_weight,
                "prepared_weight is given, expected none: kernel_delta is given");
  check_dynamic_rest(check, operands, shape);
  check.require(operands.group_size >= 1, "group_size is {}, expected at least 1",
                operands.group_size);
  check.require(operands.delta_offset >= 0, "delta_offset is {}, expected at least 0",
                operands.delta_offset);
  if (!check.ok()) return;
  std::int64_t taps = kUnknown, groups = kUnknown, one = 1;
  if (shape.channels != kUnknown) {
    groups = shape.channels / operands.group_size;
    check.require(groups * operands.group_size == shape.channels,
                  "group_size is {}, expected a divisor of {}, the number of channels",
                  operands.group_size, shape.channels);
  }
  check.shape("kernel_delta", operands.kernel_delta, {&shape.tokens, &taps, &groups});
  check.shape("previous_mask", operands.previous_mask, {&shape.tokens, &one});
  if (taps != kUnknown && taps - 2 < operands.delta_offset) {
    check.fail(fmt::format("kernel_delta has shape {}, expected 2 taps from delta_offset {} on",
                           to_string(*operands.kernel_delta), operands.delta_offset));
  }
  check.size("kernel_delta", {shape.tokens, taps, groups});
}

// Types, and extents that no tensor can have.
void check_tensors(Checker& check, const VarlenCausalConvOperands& operands) {
  check_element(check, "input", operands.input);
  const auto each = [&check](DType dtype, std::string_view argument, const Operand& operand) {
    if (!operand) return;
    check.dtype(argument, *operand, dtype);
    check.dims(argument, *operand);
  };
  const DType element = operands.input.dtype;
  each(element, "input", operands.input);
  each(element, "weight", operands.weight);
  each(DType::kInt32, "cu_seqlens", operands.cu_seqlens);
  each(element, "initial_state", operands.initial_state);
  each(element, "bias", operands.bias);
  each(DType::kInt32, "slots_in", operands.slots_in);
  each(DType::kInt32, "slots_out", operands.slots_out);
  each(DType::kInt32, "fresh", operands.fresh);
  each(DType::kInt32, "capture_count", operands.capture_count);
  each(element, "output", operands.output);
  each(element, "final_state", operands.final_state);
  each(element, "state_update", operands.state_update);
  each(element, "kernel_delta", operands.kernel_delta);
  each(element, "previous_mask", operands.previous_mask);
  each(DType::kFloat32, "prepared_weight", operands.prepared_weight);
}

}  // namespace

Outcome<VarlenCausalConvGeometry> varlen_causal_conv(std::string_view op,
                                                     const VarlenCausalConvOperands& operands) {
  Checker check(op);
  VarlenCausalConvGeometry shape;
  check_tensors(check, operands);
  check.shape("input", operands.input, {&shape.tokens, &shape.channels});
  shape_of_weight(check, operands, shape);
  shape_of_dynamic(check, operands, shape);
  shape_of_sequences(check, operands, shape);
  check.shape("bias", operands.bias, {&shape.channels});
  shape_of_states(check, operands, shape);
  shape_of_capture(check, operands, shape);
  check.shape("output", operands.output, {&shape.tokens, &shape.channels});
  check.size("input", {shape.tokens, shape.channels});
  check.size("weight", {shape.channels, 1, shape.width});
  check.size("initial_state", {shape.slots, shape.channels, shape.history});
  check.size("state_update", {shape.sequences, shape.capacity, shape.channels});
  if (!check.ok()) return check.complaint();
  return shape;
}

Outcome<ConvActivation> parse_conv_activation(std::string_view op, std::string_view text) {
  if (text == "none") return ConvActivation::kNone;
  if (text == "silu" || text == "swish") return ConvActivation::kSilu;
  return fmt::format("{}: activation is \"{}\", expected none, silu or swish", op, text);
}

Outcome<ReplayConvStateGeometry> replay_conv_state(std::string_view op,
                                                   const ReplayConvStateOperands& operands) {
  Checker check(op);
  ReplayConvStateGeometry shape;
  check_element(check, "initial_state", operands.initial_state);
  const DType element = operands.initial_state.dtype;
  check.dtype("state_update", operands.state_update, element);
  check.dtype("count", operands.count, DType::kInt32);
  if (operands.final_state) check.dtype("final_state", *operands.final_state, element);
  check.dims("initial_state", operands.initial_state);
  check.dims("state_update", operands.state_update);
  check.dims("count", operands.count);
  if (operands.final_state) check.dims("final_state", *operands.final_state);
  check.shape("initial_state", operands.initial_state,
              {&shape.sequences, &shape.channels, &shape.history});
  check.shape("state_update", operands.state_update,
              {&shape.sequences, &shape.capacity, &shape.channels});
  check.shape("count", operands.count, {&shape.sequences});
  check.shape("final_state", operands.final_state,
              {&shape.sequences, &shape.channels, &shape.history});
  check.size("initial_state", {shape.sequences, shape.channels, shape.history});
  check.size("state_update", {shape.sequences, shape.capacity, shape.channels});
  if (!check.ok()) return check.complaint();
  return shape;
}

}  // namespace deltaworks::contract

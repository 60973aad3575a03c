#include "contract/causal_conv_with_state.hpp"

#include <limits>

#include "contract/checker.hpp"

namespace deltaworks::contract {

namespace {

void check_types(Checker& check, const CausalConvWithStateOperands& in) {
  const DType element = in.input.dtype;
  check.require(element != DType::kInt32,
                "input has type int32, expected float32, float16 or bfloat16");
  check.dtype("weight", in.weight, element);
  for (const auto& [argument, operand] :
       {std::pair{"bias", &in.bias}, std::pair{"past_state", &in.past_state},
        std::pair{"output", &in.output}, std::pair{"present_state", &in.present_state}}) {
    if (*operand) check.dtype(argument, **operand, element);
  }
}

// The same tensor with its last dims, which count channels together, as one.
Tensor flattened(const Tensor& tensor) {
  Tensor flat = tensor;
  for (int dim = 3; dim < tensor.rank; ++dim) {
    const bool known = flat.dims[2] != kUnknown && tensor.dims[dim] != kUnknown;
    flat.dims[2] = known ? flat.dims[2] * tensor.dims[dim] : kUnknown;
  }
  if (flat.rank > 3) flat.rank = 3;
  return flat;
}

// [sequences, channels, positions], or channels last.
void check_layout(Checker& check, std::string_view argument, const Operand& operand,
                  bool channels_last, CausalConvWithStateGeometry& g, std::int64_t& positions) {
  if (!operand) return;
  if (channels_last) {
    check.shape(argument, flattened(*operand), {&g.sequences, &positions, &g.channels});
  } else {
    check.shape(argument, *operand, {&g.sequences, &g.channels, &positions});
  }
}

void check_weight(Checker& check, const CausalConvWithStateOperands& in,
                  CausalConvWithStateGeometry& g) {
  std::int64_t one = 1;
  check.shape("weight", in.weight, {&g.channels, &one, &g.width});
  check.require(in.dilation >= 1, "dilation is {}, expected at least 1", in.dilation);
  g.dilation = in.dilation;
  if (!check.ok() || g.width == kUnknown) return;
  check.require(g.width > 0, "weight has shape {}, expected a width of at least 1",
                to_string(in.weight));
  check.require(g.width - 1 <= std::numeric_limits<std::int32_t>::max() / g.dilation,
                "dilation is {} with width {}, expected a history of less than 2^31", g.dilation,
                g.width);
  if (check.ok()) g.history = (g.width - 1) * g.dilation;
}

}  // namespace

Outcome<CausalConvWithStateGeometry> causal_conv_with_state(std::string_view op,
                                                            const CausalConvWithStateOperands& in) {
  Checker check(op);
  CausalConvWithStateGeometry g;
  check_types(check, in);
  check_layout(check, "input", in.input, in.channels_last, g, g.length);
  check_weight(check, in, g);
  check.shape("bias", in.bias, {&g.channels});
  check_layout(check, "past_state", in.past_state, in.channels_last, g, g.history);
  check_layout(check, "output", in.output, in.channels_last, g, g.length);
  check_layout(check, "present_state", in.present_state, in.channels_last, g, g.history);
  check.size("input", {g.sequences, g.channels, g.length});
  check.size("weight", {g.channels, 1, g.width});
  check.size("present_state", {g.sequences, g.channels, g.history});
  if (!check.ok()) return check.complaint();
  return g;
}

}  // namespace deltaworks::contract

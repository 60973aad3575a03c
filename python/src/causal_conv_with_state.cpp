#include "deltaworks/causal_conv_with_state.hpp"

#include "call.hpp"
#include "contract/causal_conv_with_state.hpp"
#include "contract/varlen_causal_conv.hpp"
#include "module.hpp"

namespace deltaworks::python {

namespace {

constexpr const char* kOp = "causal_conv_with_state";

enum Result { kOutput, kPresentState };

template <class T>
nb::tuple run(Call& call, const contract::CausalConvWithStateGeometry& g,
              ConvActivation activation) {
  const bool channels_last = call.flag("channels_last");
  const auto extents = [&](std::int64_t positions) -> std::array<std::int64_t, 3> {
    if (channels_last) return {g.sequences, positions, g.channels};
    return {g.sequences, g.channels, positions};
  };
  const CausalConvWithStateArgs<T> args{
      .input = call.view<T, 3>("input"),
      .weight = call.view<T, 3>("weight"),
      .output = call.result<T, 3>(kOutput, extents(g.length)),
      .present_state = call.result<T, 3>(kPresentState, extents(g.history)),
      .bias = call.optional_view<T, 1>("bias"),
      .past_state = call.optional_view<T, 3>("past_state"),
      .activation = activation,
      .dilation = g.dilation,
      .channels_last = channels_last};
  return call.run([&](const Cpu& device) { causal_conv_with_state(device, args); });
}

nb::tuple conv(const nb::kwargs& arguments) {
  Call call(kOp, arguments, {"output", "present_state"});
  const auto activation =
      contract::value_or_throw(contract::parse_conv_activation(kOp, call.text("activation")));
  const auto geometry = contract::value_or_throw(
      contract::causal_conv_with_state(kOp, {.input = call.tensor("input"),
                                             .weight = call.tensor("weight"),
                                             .bias = call.operand("bias"),
                                             .past_state = call.operand("past_state"),
                                             .dilation = call.integer("dilation"),
                                             .channels_last = call.flag("channels_last")}));
  return visit_element(call.tensor("input").dtype,
                       [&]<class T>(T) { return run<T>(call, geometry, activation); });
}

}  // namespace

void define_causal_conv_with_state(nb::module_& module) { module.def(kOp, &conv); }

}  // namespace deltaworks::python

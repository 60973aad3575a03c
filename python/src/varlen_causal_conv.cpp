#include "deltaworks/varlen_causal_conv.hpp"

#include "call.hpp"
#include "contract/varlen_causal_conv.hpp"
#include "module.hpp"

namespace deltaworks::python {

namespace {

constexpr const char* kOp = "varlen_causal_conv";
constexpr const char* kReplay = "replay_conv_state";

enum Result { kOutput, kFinalState, kStateUpdate };

using Geometry = contract::VarlenCausalConvGeometry;

Geometry geometry_of(Call& call, ConvActivation activation) {
  // Left out, the states are zeros, which fit.
  contract::Tensor state{call.tensor("input").dtype, 3, {}};
  state.dims.fill(contract::kUnknown);
  if (call.has("slots_in") || call.has("initial_state")) state = call.tensor("initial_state");
  return contract::value_or_throw(contract::varlen_causal_conv(
      kOp, {.input = call.tensor("input"),
            .weight = call.tensor("weight"),
            .cu_seqlens = call.tensor("cu_seqlens"),
            .initial_state = state,
            .bias = call.operand("bias"),
            .slots_in = call.operand("slots_in"),
            .slots_out = call.operand("slots_out"),
            .fresh = call.operand("fresh"),
            .capture_count = call.operand("capture_count"),
            .activation = activation,
            .dilation = call.integer("dilation"),
            .state_update_capacity = call.integer("state_update_capacity"),
            .kernel_delta = call.operand("kernel_delta"),
            .previous_mask = call.operand("previous_mask"),
            .group_size = call.integer("group_size"),
            .delta_offset = call.integer("delta_offset")}));
}

template <class T>
nb::tuple run(Call& call, const Geometry& g, ConvActivation activation) {
  const std::array<std::int64_t, 3> states{g.slots, g.channels, g.history};
  VarlenCausalConvArgs<T> args{
      .input = call.view<T, 2>("input"),
      .weight = call.view<T, 3>("weight"),
      .cu_seqlens = call.view<std::int32_t, 1>("cu_seqlens"),
      .initial_state =
          call.has("initial_state") ? call.view<T, 3>("initial_state") : call.zeros<T, 3>(states),
      .output = call.result<T, 2>(kOutput, {g.tokens, g.channels}),
      .final_state = call.has("slots_in")
                         ? call.result_copied_from<T, 3>(kFinalState, "initial_state")
                         : call.result<T, 3>(kFinalState, states),
      .bias = call.optional_view<T, 1>("bias"),
      .slots_in = call.optional_view<std::int32_t, 1>("slots_in"),
      .slots_out = call.optional_view<std::int32_t, 1>("slots_out"),
      .fresh = call.optional_view<std::int32_t, 1>("fresh"),
      .capture_count = call.optional_view<std::int32_t, 1>("capture_count"),
      .activation = activation,
      .dilation = g.dilation,
      .kernel_delta = call.optional_view<T, 3>("kernel_delta"),
      .previous_mask = call.optional_view<T, 2>("previous_mask"),
      .group_size = call.integer("group_size"),
      .delta_offset = call.integer("delta_offset")};
  if (g.capacity > 0) {
    args.state_update = call.result<T, 3>(kStateUpdate, {g.sequences, g.capacity, g.channels});
  } else {
    call.no_result(kStateUpdate, "state_update_capacity is 0");
  }
  return call.run([&](const Cpu& device) { varlen_causal_conv(device, args); });
}

nb::tuple conv(const nb::kwargs& arguments) {
  Call call(kOp, arguments, {"output", "final_state", "state_update"});
  const auto activation =
      contract::value_or_throw(contract::parse_conv_activation(kOp, call.text("activation")));
  const Geometry geometry = geometry_of(call, activation);
  return visit_element(call.tensor("input").dtype,
                       [&]<class T>(T) { return run<T>(call, geometry, activation); });
}

nb::tuple replay(const nb::kwargs& arguments) {
  Call call(kReplay, arguments, {"state"});
  const auto g = contract::value_or_throw(
      contract::replay_conv_state(kReplay, {.initial_state = call.tensor("state"),
                                            .state_update = call.tensor("state_update"),
                                            .count = call.tensor("count")}));
  return visit_element(call.tensor("state").dtype, [&]<class T>(T) {
    const ReplayConvStateArgs<T> args{
        .initial_state = call.view<T, 3>("state"),
        .state_update = call.view<T, 3>("state_update"),
        .count = call.view<std::int32_t, 1>("count"),
        .final_state = call.result<T, 3>(0, {g.sequences, g.channels, g.history})};
    return call.run([&](const Cpu& device) { replay_conv_state(device, args); });
  });
}

}  // namespace

void define_varlen_causal_conv(nb::module_& module) {
  module.def(kOp, &conv);
  module.def(kReplay, &replay);
}

}  // namespace deltaworks::python

#include "deltaworks/varlen_causal_conv.hpp"

#include <fmt/format.h>

#include "contract/values.hpp"
#include "contract/varlen_causal_conv.hpp"
#include "cpu/target.hpp"
#include "cpu/varlen_causal_conv.hpp"

namespace deltaworks {

namespace {

constexpr std::string_view kOp = "varlen_causal_conv";
constexpr std::string_view kReplayOp = "replay_conv_state";

template <class T>
contract::VarlenCausalConvGeometry geometry_of(const VarlenCausalConvArgs<T>& args) {
  using contract::describe;
  const auto activation = static_cast<int>(args.activation);
  if (args.activation != ConvActivation::kNone && args.activation != ConvActivation::kSilu) {
    throw InvalidArgument(
        fmt::format("{}: activation is {}, expected kNone or kSilu", kOp, activation));
  }
  if (args.capture_count && !args.state_update) {
    throw InvalidArgument(
        fmt::format("{}: state_update is missing, expected it: capture_count is given", kOp));
  }
  return contract::value_or_throw(contract::varlen_causal_conv(
      kOp, {.input = describe(args.input),
            .weight = describe(args.weight),
            .cu_seqlens = describe(args.cu_seqlens),
            .initial_state = describe(args.initial_state),
            .bias = describe(args.bias),
            .slots_in = describe(args.slots_in),
            .slots_out = describe(args.slots_out),
            .fresh = describe(args.fresh),
            .capture_count = describe(args.capture_count),
            .output = describe(args.output),
            .final_state = describe(args.final_state),
            .state_update = describe(args.state_update),
            .dilation = args.dilation,
            .state_update_capacity = args.state_update ? args.state_update->extent(1) : 0}));
}

template <class T>
void check_memory(const VarlenCausalConvArgs<T>& args) {
  using contract::range_of;
  contract::check_memory(kOp, "input", args.input);
  contract::check_memory(kOp, "weight", args.weight);
  contract::check_memory(kOp, "cu_seqlens", args.cu_seqlens);
  contract::check_memory(kOp, "initial_state", args.initial_state);
  contract::check_memory(kOp, "bias", args.bias);
  contract::check_memory(kOp, "slots_in", args.slots_in);
  contract::check_memory(kOp, "slots_out", args.slots_out);
  contract::check_memory(kOp, "fresh", args.fresh);
  contract::check_memory(kOp, "capture_count", args.capture_count);
  contract::check_memory(kOp, "output", args.output);
  contract::check_memory(kOp, "final_state", args.final_state);
  contract::check_memory(kOp, "state_update", args.state_update);
  contract::check_overlap(
      kOp,
      {range_of("input", args.input), range_of("weight", args.weight),
       range_of("cu_seqlens", args.cu_seqlens), range_of("initial_state", args.initial_state),
       range_of("bias", args.bias), range_of("slots_in", args.slots_in),
       range_of("slots_out", args.slots_out), range_of("fresh", args.fresh),
       range_of("capture_count", args.capture_count)},
      {range_of("output", args.output), range_of("final_state", args.final_state),
       range_of("state_update", args.state_update)},
      "initial_state", "final_state");
}

template <class T>
void check_values(const VarlenCausalConvArgs<T>& args,
                  const contract::VarlenCausalConvGeometry& geometry) {
  contract::check_cu_seqlens(kOp, args.cu_seqlens, geometry.tokens);
  if (!args.slots_in) return;
  const bool in_place =
      geometry.history > 0 && args.initial_state.data() == args.final_state.data();
  contract::check_pool(kOp, *args.slots_in, *args.slots_out, args.fresh, geometry.slots, in_place);
}

template <class T>
void run(const Cpu& device, const VarlenCausalConvArgs<T>& args) {
  const contract::VarlenCausalConvGeometry geometry = geometry_of(args);
  check_memory(args);
  check_values(args, geometry);
  cpu::ensure_target();
  cpu::varlen_causal_conv(device, geometry, args);
}

template <class T>
void run(const Cpu& device, const ReplayConvStateArgs<T>& args) {
  using contract::describe;
  using contract::range_of;
  const contract::ReplayConvStateGeometry geometry = contract::value_or_throw(
      contract::replay_conv_state(kReplayOp, {.initial_state = describe(args.initial_state),
                                              .state_update = describe(args.state_update),
                                              .count = describe(args.count),
                                              .final_state = describe(args.final_state)}));
  contract::check_memory(kReplayOp, "initial_state", args.initial_state);
  contract::check_memory(kReplayOp, "state_update", args.state_update);
  contract::check_memory(kReplayOp, "count", args.count);
  contract::check_memory(kReplayOp, "final_state", args.final_state);
  contract::check_overlap(
      kReplayOp,
      {range_of("initial_state", args.initial_state), range_of("state_update", args.state_update),
       range_of("count", args.count)},
      {range_of("final_state", args.final_state)}, "initial_state", "final_state");
  contract::check_range(kReplayOp, "count", args.count, 0, geometry.capacity);
  cpu::ensure_target();
  cpu::replay_conv_state(device, geometry, args);
}

}  // namespace

void varlen_causal_conv(const Cpu& device, const VarlenCausalConvArgs<float>& args) {
  run(device, args);
}
void varlen_causal_conv(const Cpu& device, const VarlenCausalConvArgs<Float16>& args) {
  run(device, args);
}
void varlen_causal_conv(const Cpu& device, const VarlenCausalConvArgs<BFloat16>& args) {
  run(device, args);
}

void replay_conv_state(const Cpu& device, const ReplayConvStateArgs<float>& args) {
  run(device, args);
}
void replay_conv_state(const Cpu& device, const ReplayConvStateArgs<Float16>& args) {
  run(device, args);
}
void replay_conv_state(const Cpu& device, const ReplayConvStateArgs<BFloat16>& args) {
  run(device, args);
}

}  // namespace deltaworks

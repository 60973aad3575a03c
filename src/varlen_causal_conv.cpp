#include "deltaworks/varlen_causal_conv.hpp"

#include <fmt/format.h>

#include "contract/checker.hpp"
#include "contract/memory.hpp"
#include "contract/values.hpp"
#include "contract/varlen_causal_conv.hpp"
#include "cpu/target.hpp"
#include "cpu/varlen_causal_conv.hpp"
#include "cuda/varlen_causal_conv.hpp"
#include "trace.hpp"

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
            .activation = args.activation,
            .dilation = args.dilation,
            .state_update_capacity = args.state_update ? args.state_update->extent(1) : 0,
            .kernel_delta = describe(args.kernel_delta),
            .previous_mask = describe(args.previous_mask),
            .group_size = args.group_size,
            .delta_offset = args.delta_offset,
            .prepared_weight = describe(args.prepared_weight)}));
}

template <class T>
contract::CallMemory memory_of(const VarlenCausalConvArgs<T>& args) {
  contract::CallMemory memory(kOp);
  memory.add("input", args.input).add("weight", args.weight).add("cu_seqlens", args.cu_seqlens);
  memory.add("initial_state", args.initial_state).add("bias", args.bias);
  memory.add("slots_in", args.slots_in).add("slots_out", args.slots_out).add("fresh", args.fresh);
  memory.add("capture_count", args.capture_count).add("kernel_delta", args.kernel_delta);
  memory.add("previous_mask", args.previous_mask).add("prepared_weight", args.prepared_weight);
  memory.add("output", args.output);
  memory.add("final_state", args.final_state).add("state_update", args.state_update);
  memory.check_apart({{"initial_state", "final_state"}});
  return memory;
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
  memory_of(args);
  check_values(args, geometry);
  cpu::ensure_target();
  const Trace trace(kOp, dtype_of<T>(),
                    {{"sequences", geometry.sequences},
                     {"tokens", geometry.tokens},
                     {"channels", geometry.channels},
                     {"width", geometry.width},
                     {"dilation", geometry.dilation},
                     {"capacity", geometry.capacity}},
                    args.kernel_delta ? "dynamic" : "direct");
  cpu::varlen_causal_conv(device, geometry, args);
}

template <class T>
void run(const Cuda& device, const VarlenCausalConvArgs<T>& args) {
  const contract::VarlenCausalConvGeometry geometry = geometry_of(args);
  memory_of(args);
  cuda::varlen_causal_conv(device, geometry, args);
}

template <class T>
void prepare(const View<const T, 3>& weight, const View<float, 2>& prepared) {
  constexpr std::string_view kPrepareOp = "prepare_conv_weight";
  contract::Checker check(kPrepareOp);
  std::int64_t channels = contract::kUnknown, one = 1, width = contract::kUnknown;
  check.shape("weight", contract::describe(weight), {&channels, &one, &width});
  check.shape("prepared", contract::describe(prepared), {&width, &channels});
  if (!check.ok()) throw InvalidArgument(check.complaint());
  contract::CallMemory memory(kPrepareOp);
  memory.add("weight", weight).add("prepared", prepared);
  memory.check_apart({});
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    for (std::int64_t tap = 0; tap < width; ++tap) {
      prepared(tap, channel) = to_float(weight(channel, 0, tap));
    }
  }
}

template <class T>
contract::ReplayConvStateGeometry geometry_of(const ReplayConvStateArgs<T>& args) {
  using contract::describe;
  return contract::value_or_throw(
      contract::replay_conv_state(kReplayOp, {.initial_state = describe(args.initial_state),
                                              .state_update = describe(args.state_update),
                                              .count = describe(args.count),
                                              .final_state = describe(args.final_state)}));
}

template <class T>
contract::CallMemory memory_of(const ReplayConvStateArgs<T>& args) {
  contract::CallMemory memory(kReplayOp);
  memory.add("initial_state", args.initial_state).add("state_update", args.state_update);
  memory.add("count", args.count).add("final_state", args.final_state);
  memory.check_apart({{"initial_state", "final_state"}});
  return memory;
}

template <class T>
void run(const Cpu& device, const ReplayConvStateArgs<T>& args) {
  const contract::ReplayConvStateGeometry geometry = geometry_of(args);
  memory_of(args);
  contract::check_range(kReplayOp, "count", args.count, 0, geometry.capacity);
  cpu::ensure_target();
  const Trace trace(kReplayOp, dtype_of<T>(),
                    {{"sequences", geometry.sequences},
                     {"channels", geometry.channels},
                     {"history", geometry.history},
                     {"capacity", geometry.capacity}},
                    "replay");
  cpu::replay_conv_state(device, geometry, args);
}

template <class T>
void run(const Cuda& device, const ReplayConvStateArgs<T>& args) {
  const contract::ReplayConvStateGeometry geometry = geometry_of(args);
  memory_of(args);
  cuda::replay_conv_state(device, geometry, args);
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
void varlen_causal_conv(const Cuda& device, const VarlenCausalConvArgs<float>& args) {
  run(device, args);
}
void varlen_causal_conv(const Cuda& device, const VarlenCausalConvArgs<Float16>& args) {
  run(device, args);
}
void varlen_causal_conv(const Cuda& device, const VarlenCausalConvArgs<BFloat16>& args) {
  run(device, args);
}

void prepare_conv_weight(const View<const float, 3>& weight, const View<float, 2>& prepared) {
  prepare(weight, prepared);
}
void prepare_conv_weight(const View<const Float16, 3>& weight, const View<float, 2>& prepared) {
  prepare(weight, prepared);
}
void prepare_conv_weight(const View<const BFloat16, 3>& weight, const View<float, 2>& prepared) {
  prepare(weight, prepared);
}

template <class T>
std::vector<AccessRange> access_ranges(const VarlenCausalConvArgs<T>& args) {
  geometry_of(args);
  return memory_of(args).ranges();
}
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const VarlenCausalConvArgs<float>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const VarlenCausalConvArgs<Float16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const VarlenCausalConvArgs<BFloat16>&);

void replay_conv_state(const Cpu& device, const ReplayConvStateArgs<float>& args) {
  run(device, args);
}
void replay_conv_state(const Cpu& device, const ReplayConvStateArgs<Float16>& args) {
  run(device, args);
}
void replay_conv_state(const Cpu& device, const ReplayConvStateArgs<BFloat16>& args) {
  run(device, args);
}
void replay_conv_state(const Cuda& device, const ReplayConvStateArgs<float>& args) {
  run(device, args);
}
void replay_conv_state(const Cuda& device, const ReplayConvStateArgs<Float16>& args) {
  run(device, args);
}
void replay_conv_state(const Cuda& device, const ReplayConvStateArgs<BFloat16>& args) {
  run(device, args);
}

template <class T>
std::vector<AccessRange> access_ranges(const ReplayConvStateArgs<T>& args) {
  geometry_of(args);
  return memory_of(args).ranges();
}
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const ReplayConvStateArgs<float>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const ReplayConvStateArgs<Float16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const ReplayConvStateArgs<BFloat16>&);

}  // namespace deltaworks

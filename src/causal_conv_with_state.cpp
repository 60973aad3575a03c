#include "deltaworks/causal_conv_with_state.hpp"

#include <fmt/format.h>

#include "contract/causal_conv_with_state.hpp"
#include "contract/memory.hpp"
#include "contract/values.hpp"
#include "cpu/causal_conv_with_state.hpp"
#include "cpu/target.hpp"
#include "trace.hpp"

namespace deltaworks {

namespace {

constexpr std::string_view kOp = "causal_conv_with_state";

template <class T>
contract::CausalConvWithStateGeometry geometry_of(const CausalConvWithStateArgs<T>& args) {
  using contract::describe;
  if (args.activation != ConvActivation::kNone && args.activation != ConvActivation::kSilu) {
    throw InvalidArgument(fmt::format("{}: activation is {}, expected kNone or kSilu", kOp,
                                      static_cast<int>(args.activation)));
  }
  return contract::value_or_throw(
      contract::causal_conv_with_state(kOp, {.input = describe(args.input),
                                             .weight = describe(args.weight),
                                             .bias = describe(args.bias),
                                             .past_state = describe(args.past_state),
                                             .output = describe(args.output),
                                             .present_state = describe(args.present_state),
                                             .dilation = args.dilation,
                                             .channels_last = args.channels_last}));
}

template <class T>
contract::CallMemory memory_of(const CausalConvWithStateArgs<T>& args) {
  contract::CallMemory memory(kOp);
  memory.add("input", args.input).add("weight", args.weight).add("bias", args.bias);
  memory.add("past_state", args.past_state).add("output", args.output);
  memory.add("present_state", args.present_state);
  memory.check_apart({{"past_state", "present_state"}});
  return memory;
}

template <class T>
void run(const Cpu& device, const CausalConvWithStateArgs<T>& args) {
  const contract::CausalConvWithStateGeometry geometry = geometry_of(args);
  memory_of(args);
  cpu::ensure_target();
  const Trace trace(kOp, dtype_of<T>(),
                    {{"sequences", geometry.sequences},
                     {"length", geometry.length},
                     {"channels", geometry.channels},
                     {"width", geometry.width},
                     {"dilation", geometry.dilation}},
                    "direct");
  cpu::causal_conv_with_state(device, geometry, args);
}

}  // namespace

void causal_conv_with_state(const Cpu& device, const CausalConvWithStateArgs<float>& args) {
  run(device, args);
}
void causal_conv_with_state(const Cpu& device, const CausalConvWithStateArgs<Float16>& args) {
  run(device, args);
}
void causal_conv_with_state(const Cpu& device, const CausalConvWithStateArgs<BFloat16>& args) {
  run(device, args);
}

template <class T>
std::vector<AccessRange> access_ranges(const CausalConvWithStateArgs<T>& args) {
  geometry_of(args);
  return memory_of(args).ranges();
}
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const CausalConvWithStateArgs<float>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const CausalConvWithStateArgs<Float16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const CausalConvWithStateArgs<BFloat16>&);

}  // namespace deltaworks

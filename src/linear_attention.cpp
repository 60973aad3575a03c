#include "deltaworks/linear_attention.hpp"

#include "contract/linear_attention.hpp"
#include "contract/memory.hpp"
#include "contract/values.hpp"
#include "cpu/linear_attention.hpp"
#include "cpu/target.hpp"
#include "trace.hpp"

namespace deltaworks {

namespace {

constexpr std::string_view kOp = "linear_attention";

template <class T, class S>
contract::LinearAttentionGeometry geometry_of(const LinearAttentionArgs<T, S>& args) {
  using contract::describe;
  return contract::value_or_throw(
      contract::linear_attention(kOp, {.query = describe(args.query),
                                       .key = describe(args.key),
                                       .value = describe(args.value),
                                       .past_state = describe(args.past_state),
                                       .decay = describe(args.decay),
                                       .beta = describe(args.beta),
                                       .output = describe(args.output),
                                       .present_state = describe(args.present_state),
                                       .q_num_heads = args.q_num_heads,
                                       .kv_num_heads = args.kv_num_heads,
                                       .update_rule = args.update_rule,
                                       .scale = args.scale}));
}

// A gate that the rule does not need is not read.
template <class T, class S>
contract::CallMemory memory_of(const LinearAttentionArgs<T, S>& args,
                               const contract::LinearAttentionGeometry& geometry) {
  contract::CallMemory memory(kOp);
  memory.add("query", args.query).add("key", args.key).add("value", args.value);
  memory.add("past_state", args.past_state);
  if (geometry.decays) memory.add("decay", args.decay);
  if (geometry.recalls) memory.add("beta", args.beta);
  memory.add("output", args.output).add("present_state", args.present_state);
  memory.check_apart({{"past_state", "present_state"}});
  return memory;
}

template <class T, class S>
void run(const Cpu& device, const LinearAttentionArgs<T, S>& args) {
  const contract::LinearAttentionGeometry geometry = geometry_of(args);
  memory_of(args, geometry);
  cpu::ensure_target();
  const Trace trace(kOp, dtype_of<T>(),
                    {{"sequences", geometry.sequences},
                     {"length", geometry.length},
                     {"q_num_heads", geometry.q_num_heads},
                     {"kv_num_heads", geometry.kv_num_heads},
                     {"key_heads", geometry.key_heads},
                     {"key_dim", geometry.key_dim},
                     {"value_dim", geometry.value_dim}},
                    "recurrent");
  cpu::linear_attention(device, geometry, args);
}

}  // namespace

void linear_attention(const Cpu& device, const LinearAttentionArgs<float>& args) {
  run(device, args);
}
void linear_attention(const Cpu& device, const LinearAttentionArgs<Float16>& args) {
  run(device, args);
}
void linear_attention(const Cpu& device, const LinearAttentionArgs<BFloat16>& args) {
  run(device, args);
}
void linear_attention(const Cpu& device, const LinearAttentionArgs<Float16, Float16>& args) {
  run(device, args);
}
void linear_attention(const Cpu& device, const LinearAttentionArgs<BFloat16, BFloat16>& args) {
  run(device, args);
}

template <class T, class S>
std::vector<AccessRange> access_ranges(const LinearAttentionArgs<T, S>& args) {
  return memory_of(args, geometry_of(args)).ranges();
}
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const LinearAttentionArgs<float>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const LinearAttentionArgs<Float16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const LinearAttentionArgs<BFloat16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const LinearAttentionArgs<Float16, Float16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const LinearAttentionArgs<BFloat16, BFloat16>&);

}  // namespace deltaworks

#include "deltaworks/gated_delta_rates.hpp"

#include <fmt/format.h>

#include "contract/gated_delta_rates.hpp"
#include "contract/memory.hpp"
#include "contract/values.hpp"
#include "cpu/gated_delta_rates.hpp"
#include "cpu/target.hpp"
#include "cuda/gated_delta_rates.hpp"
#include "trace.hpp"

namespace deltaworks {

namespace {

constexpr std::string_view kOp = "gated_delta_rates";

template <class T>
contract::GatedDeltaRatesGeometry geometry_of(const GatedDeltaRatesArgs<T>& args) {
  using contract::describe;
  if (args.arithmetic != GatedDeltaRatesArithmetic::kFloat32 &&
      args.arithmetic != GatedDeltaRatesArithmetic::kActivation) {
    throw InvalidArgument(fmt::format("{}: arithmetic is {}, expected kFloat32 or kActivation", kOp,
                                      static_cast<int>(args.arithmetic)));
  }
  return contract::value_or_throw(
      contract::gated_delta_rates(kOp, {.update_logits = describe(args.update_logits),
                                        .decay_inputs = describe(args.decay_inputs),
                                        .a_log = describe(args.a_log),
                                        .dt_bias = describe(args.dt_bias),
                                        .update_rates = describe(args.update_rates),
                                        .decay_factors = describe(args.decay_factors)}));
}

template <class T>
contract::CallMemory memory_of(const GatedDeltaRatesArgs<T>& args) {
  contract::CallMemory memory(kOp);
  memory.add("update_logits", args.update_logits).add("decay_inputs", args.decay_inputs);
  memory.add("a_log", args.a_log).add("dt_bias", args.dt_bias);
  memory.add("update_rates", args.update_rates).add("decay_factors", args.decay_factors);
  memory.check_apart();
  return memory;
}

template <class T>
void run(const Cpu& device, const GatedDeltaRatesArgs<T>& args) {
  const contract::GatedDeltaRatesGeometry geometry = geometry_of(args);
  memory_of(args);
  cpu::ensure_target();
  const Trace trace(kOp, dtype_of<T>(),
                    {{"tokens", geometry.tokens}, {"value_heads", geometry.value_heads}}, "direct");
  cpu::gated_delta_rates(device, geometry, args);
}

template <class T>
void run(const Cuda& device, const GatedDeltaRatesArgs<T>& args) {
  const contract::GatedDeltaRatesGeometry geometry = geometry_of(args);
  memory_of(args);
  cuda::gated_delta_rates(device, geometry, args);
}

}  // namespace

void gated_delta_rates(const Cpu& device, const GatedDeltaRatesArgs<float>& args) {
  run(device, args);
}
void gated_delta_rates(const Cpu& device, const GatedDeltaRatesArgs<Float16>& args) {
  run(device, args);
}
void gated_delta_rates(const Cpu& device, const GatedDeltaRatesArgs<BFloat16>& args) {
  run(device, args);
}
void gated_delta_rates(const Cuda& device, const GatedDeltaRatesArgs<float>& args) {
  run(device, args);
}
void gated_delta_rates(const Cuda& device, const GatedDeltaRatesArgs<Float16>& args) {
  run(device, args);
}
void gated_delta_rates(const Cuda& device, const GatedDeltaRatesArgs<BFloat16>& args) {
  run(device, args);
}

template <class T>
std::vector<AccessRange> access_ranges(const GatedDeltaRatesArgs<T>& args) {
  geometry_of(args);
  return memory_of(args).ranges();
}
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const GatedDeltaRatesArgs<float>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const GatedDeltaRatesArgs<Float16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const GatedDeltaRatesArgs<BFloat16>&);

}  // namespace deltaworks

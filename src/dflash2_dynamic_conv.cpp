#include "deltaworks/dflash2_dynamic_conv.hpp"

#include <fmt/format.h>

#include "contract/dflash2_dynamic_conv.hpp"
#include "contract/memory.hpp"
#include "contract/values.hpp"
#include "cpu/dflash2_dynamic_conv.hpp"
#include "cpu/target.hpp"
#include "cuda/dflash2_dynamic_conv.hpp"
#include "trace.hpp"

namespace deltaworks {

namespace {

constexpr std::string_view kOp = "dflash2_dynamic_conv";

template <class T, class R, class Base>
contract::DFlash2DynamicConvGeometry geometry_of(const DFlash2DynamicConvArgs<T, R, Base>& args) {
  using contract::describe;
  if (args.stage != DFlash2Stage::kPrepare && args.stage != DFlash2Stage::kResidual) {
    throw InvalidArgument(fmt::format("{}: stage is {}, expected kPrepare or kResidual", kOp,
                                      static_cast<int>(args.stage)));
  }
  if (args.arithmetic != DFlash2Arithmetic::kFloat32 &&
      args.arithmetic != DFlash2Arithmetic::kActivation) {
    throw InvalidArgument(fmt::format("{}: arithmetic is {}, expected kFloat32 or kActivation", kOp,
                                      static_cast<int>(args.arithmetic)));
  }
  return contract::value_or_throw(
      contract::dflash2_dynamic_conv(kOp, {.input = describe(args.input),
                                           .dynamic = describe(args.dynamic),
                                           .base = describe(args.base),
                                           .residual = describe(args.residual),
                                           .output = describe(args.output),
                                           .stage = args.stage,
                                           .rows_per_lane = args.rows_per_lane,
                                           .groups = args.groups}));
}

template <class T, class R, class Base>
contract::CallMemory memory_of(const DFlash2DynamicConvArgs<T, R, Base>& args) {
  contract::CallMemory memory(kOp);
  memory.add("input", args.input).add("dynamic", args.dynamic).add("base", args.base);
  memory.add("residual", args.residual).add("output", args.output);
  memory.check_apart();
  return memory;
}

template <class T, class R, class Base>
void run(const Cpu& device, const DFlash2DynamicConvArgs<T, R, Base>& args) {
  const contract::DFlash2DynamicConvGeometry geometry = geometry_of(args);
  memory_of(args);
  cpu::ensure_target();
  const Trace trace(kOp, dtype_of<T>(),
                    {{"rows", geometry.rows},
                     {"channels", geometry.channels},
                     {"taps", geometry.taps},
                     {"groups", geometry.groups},
                     {"rows_per_lane", geometry.rows_per_lane}},
                    "direct");
  cpu::dflash2_dynamic_conv(device, geometry, args);
}

template <class T, class R, class Base>
void run(const Cuda& device, const DFlash2DynamicConvArgs<T, R, Base>& args) {
  const contract::DFlash2DynamicConvGeometry geometry = geometry_of(args);
  memory_of(args);
  cuda::dflash2_dynamic_conv(device, geometry, args);
}

}  // namespace

void dflash2_dynamic_conv(const Cpu& device, const DFlash2DynamicConvArgs<float>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cpu& device,
                          const DFlash2DynamicConvArgs<float, float, BFloat16>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cpu& device, const DFlash2DynamicConvArgs<Float16>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cpu& device,
                          const DFlash2DynamicConvArgs<Float16, Float16, BFloat16>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cpu& device,
                          const DFlash2DynamicConvArgs<Float16, float, Float16>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cpu& device,
                          const DFlash2DynamicConvArgs<Float16, float, BFloat16>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cpu& device, const DFlash2DynamicConvArgs<BFloat16>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cpu& device,
                          const DFlash2DynamicConvArgs<BFloat16, float, BFloat16>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cuda& device, const DFlash2DynamicConvArgs<float>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cuda& device,
                          const DFlash2DynamicConvArgs<float, float, BFloat16>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cuda& device, const DFlash2DynamicConvArgs<Float16>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cuda& device,
                          const DFlash2DynamicConvArgs<Float16, Float16, BFloat16>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cuda& device,
                          const DFlash2DynamicConvArgs<Float16, float, Float16>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cuda& device,
                          const DFlash2DynamicConvArgs<Float16, float, BFloat16>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cuda& device, const DFlash2DynamicConvArgs<BFloat16>& args) {
  run(device, args);
}
void dflash2_dynamic_conv(const Cuda& device,
                          const DFlash2DynamicConvArgs<BFloat16, float, BFloat16>& args) {
  run(device, args);
}

template <class T, class R, class Base>
std::vector<AccessRange> access_ranges(const DFlash2DynamicConvArgs<T, R, Base>& args) {
  geometry_of(args);
  return memory_of(args).ranges();
}
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const DFlash2DynamicConvArgs<float>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const DFlash2DynamicConvArgs<float, float, BFloat16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const DFlash2DynamicConvArgs<Float16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const DFlash2DynamicConvArgs<Float16, Float16, BFloat16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const DFlash2DynamicConvArgs<Float16, float, Float16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const DFlash2DynamicConvArgs<Float16, float, BFloat16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const DFlash2DynamicConvArgs<BFloat16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const DFlash2DynamicConvArgs<BFloat16, float, BFloat16>&);

}  // namespace deltaworks

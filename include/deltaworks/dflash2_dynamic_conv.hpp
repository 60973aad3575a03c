/// Grouped dynamic convolution of block drafters (DFlash2): taps that depend on the row.
#pragma once

#include <cstdint>
#include <vector>

#include "deltaworks/access.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/dtype.hpp"
#include "deltaworks/export.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks {

/// Which half of `dynamic` and `base` a call uses: in front of a sublayer, or behind it.
enum class DFlash2Stage : std::uint8_t { kPrepare, kResidual };

/// Where float32 results are rounded to T: once, at the end, or after every step.
enum class DFlash2Arithmetic : std::uint8_t { kFloat32, kActivation };

/// One call. Lanes lie one after another in `input`, each of rows_per_lane rows. T is the type of
/// the activations, R that of residual and output (T or float), Base that of base (T or BFloat16).
template <class T, class R = T, class Base = T>
struct DFlash2DynamicConvArgs {
  View<const T, 2> input;  ///< [rows, channels], rows = lanes · rows_per_lane
  View<const T, 2>
      dynamic;  ///< [rows, 2 · taps · groups]: stage, tap, group; channels % groups = 0
  View<const Base, 3> base;  ///< [2, taps, channels], taps 1 … 4; tap 0 is the row itself
  View<R, 2> output;         ///< [rows, channels]
  OptionalView<const R, 2> residual{};  ///< [rows, channels], exactly in stage kResidual
  DFlash2Stage stage = DFlash2Stage::kPrepare;
  std::int64_t rows_per_lane = 1;
  std::int64_t groups = 1;
  DFlash2Arithmetic arithmetic = DFlash2Arithmetic::kFloat32;
};

/// For row r, channel c of group g = c / (channels / groups), with s = 0 in stage kPrepare, else 1:
///   sum = Σ (base[s, j, c] + dynamic[r, (s · taps + j) · groups + g]) · input[r − j, c]
///         for j = 0 … taps − 1 ascending, as far as row r − j lies in the lane of row r
///   output = sum, in stage kResidual sum + residual[r, c]
/// Taps before the lane are left out, not multiplied by 0: nothing crosses lanes, a NaN neither.
/// kFloat32: every operation is one of float32 and the result is rounded to R once. kActivation:
/// each coefficient, each product and each sum of products is rounded to T as well; the residual is
/// added in float32 and rounded to R. In T = float they are the same. No product and sum are fused:
/// all instruction sets and CUDA give equal bits. Rows depend on their lane alone; the order of lanes and
/// the threads change no bit. `output` must not overlap an input.
/// Throws InvalidArgument when an argument breaks this contract; nothing is written then.
/// Source: the DFlash2 drafter's `attention_conv` and `mlp_conv` (docs/ops/dflash2_dynamic_conv.md).
DELTAWORKS_EXPORT void dflash2_dynamic_conv(const Cpu& device,
                                            const DFlash2DynamicConvArgs<float>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(
    const Cpu& device, const DFlash2DynamicConvArgs<float, float, BFloat16>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(const Cpu& device,
                                            const DFlash2DynamicConvArgs<Float16>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(
    const Cpu& device, const DFlash2DynamicConvArgs<Float16, Float16, BFloat16>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(
    const Cpu& device, const DFlash2DynamicConvArgs<Float16, float, Float16>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(
    const Cpu& device, const DFlash2DynamicConvArgs<Float16, float, BFloat16>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(const Cpu& device,
                                            const DFlash2DynamicConvArgs<BFloat16>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(
    const Cpu& device, const DFlash2DynamicConvArgs<BFloat16, float, BFloat16>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(const Cuda& device,
                                            const DFlash2DynamicConvArgs<float>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(
    const Cuda& device, const DFlash2DynamicConvArgs<float, float, BFloat16>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(const Cuda& device,
                                            const DFlash2DynamicConvArgs<Float16>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(
    const Cuda& device, const DFlash2DynamicConvArgs<Float16, Float16, BFloat16>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(
    const Cuda& device, const DFlash2DynamicConvArgs<Float16, float, Float16>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(
    const Cuda& device, const DFlash2DynamicConvArgs<Float16, float, BFloat16>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(const Cuda& device,
                                            const DFlash2DynamicConvArgs<BFloat16>& args);
DELTAWORKS_EXPORT void dflash2_dynamic_conv(
    const Cuda& device, const DFlash2DynamicConvArgs<BFloat16, float, BFloat16>& args);

/// The memory that such a call would read and write (deltaworks/access.hpp).
template <class T, class R, class Base>
DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const DFlash2DynamicConvArgs<T, R, Base>& args);

}  // namespace deltaworks

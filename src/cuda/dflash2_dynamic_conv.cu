// A thread owns kVector consecutive channels, of one group, of one row. All its loads are in flight at
// once; the rows before its own come from the cache, which other threads have filled.
#include "cuda/dflash2_dynamic_conv.hpp"

#include <algorithm>
#include <cstdint>

#include "cuda/dynamic_tap.cuh"
#include "cuda/launch.hpp"
#include "cuda/pack.cuh"
#include "cuda/sequences.cuh"

namespace deltaworks::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kMaxTaps = static_cast<int>(contract::kMaxTaps);

template <class T, class R, class Base>
struct DFlash2Call {
  View<const T, 2> input, dynamic;
  const Base* base;  // of the stage
  View<R, 2> output;
  View<const R, 2> residual;  // no data in stage kPrepare
  std::int64_t first_coefficient, groups;
  unsigned rows_per_lane, group_size, taps, channel_blocks;
};

// kRounds: the arithmetic kActivation.
template <int kVector, bool kRounds, class T, class R, class Base>
__global__ void __launch_bounds__(kThreads)
    dflash2_kernel(const __grid_constant__ DFlash2Call<T, R, Base> call) {
  // Divisions of 32 bits: those of 64 take longer than the rest.
  const unsigned row = blockIdx.x / call.channel_blocks, part = blockIdx.x % call.channel_blocks;
  const unsigned channel = (part * kThreads + threadIdx.x) * kVector;
  const std::int64_t channels = call.output.extent(1);
  if (channel >= channels) return;
  const unsigned position = row % call.rows_per_lane;
  const int taps =
      position < call.taps ? static_cast<int>(position) + 1 : static_cast<int>(call.taps);
  const T* const dynamic =
      call.dynamic.row(row) + call.first_coefficient + channel / call.group_size;
  Pack<T, kVector> x[kMaxTaps];
  Pack<Base, kVector> base[kMaxTaps];
  float delta[kMaxTaps];
#pragma unroll
  for (int tap = 0; tap < kMaxTaps; ++tap) {
    if (tap >= taps) continue;
    x[tap] = load<kVector>(call.input.row(static_cast<std::int64_t>(row) - tap) + channel);
    base[tap] = load<kVector>(call.base + tap * channels + channel);
    delta[tap] = widen(dynamic[tap * call.groups]);
  }
  Pack<R, kVector> residual{};
  const bool has_residual = call.residual.data() != nullptr;
  if (has_residual) residual = load<kVector>(call.residual.row(row) + channel);
  float sums[kVector]{};
#pragma unroll
  for (int tap = 0; tap < kMaxTaps; ++tap) {
    if (tap >= taps) continue;
    float inputs[kVector], weights[kVector];
    widen(x[tap], inputs);
    widen(base[tap], weights);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const float product = tap_product<kRounds, T>(weights[v], delta[tap], inputs[v]);
      sums[v] = tap == 0 ? product : step<kRounds, T>(sums[v] + product);
    }
  }
  if (has_residual) {
    float addends[kVector];
    widen(residual, addends);
#pragma unroll
    for (int v = 0; v < kVector; ++v) sums[v] = sums[v] + addends[v];
  }
  store(narrow<R>(sums), call.output.row(row) + channel);
}

template <int kVector, class T, class R, class Base>
void launch_dflash2(const Cuda& device, DFlash2Call<T, R, Base> call, bool rounds) {
  call.channel_blocks =
      static_cast<unsigned>(ceil_div(call.output.extent(1), std::int64_t{kThreads} * kVector));
  launch(device, call.output.extent(0) * call.channel_blocks, kThreads,
         rounds ? dflash2_kernel<kVector, true, T, R, Base>
                : dflash2_kernel<kVector, false, T, R, Base>,
         call);
}

}  // namespace

template <class T, class R, class Base>
void dflash2_dynamic_conv(const Cuda& device, const contract::DFlash2DynamicConvGeometry& geometry,
                          const DFlash2DynamicConvArgs<T, R, Base>& args) {
  if (geometry.rows == 0 || geometry.channels == 0) return;
  const std::int64_t stage = args.stage == DFlash2Stage::kPrepare ? 0 : 1;
  const DFlash2Call<T, R, Base> call{
      .input = args.input,
      .dynamic = args.dynamic,
      .base = args.base.row(stage),
      .output = args.output,
      .residual = or_null(args.residual),
      .first_coefficient = stage * geometry.taps * geometry.groups,
      .groups = geometry.groups,
      .rows_per_lane = static_cast<unsigned>(std::min(geometry.rows_per_lane, geometry.rows)),
      .group_size = static_cast<unsigned>(geometry.channels / geometry.groups),
      .taps = static_cast<unsigned>(geometry.taps),
      .channel_blocks = 0,
  };
  const bool rounds = args.arithmetic == DFlash2Arithmetic::kActivation;
  constexpr int kVector = kLoadBytes / sizeof(T);
  const bool is_wide = call.group_size % kVector == 0 && is_aligned(args.input) &&
                       is_aligned(args.base) && is_aligned(args.output) &&
                       is_aligned(call.residual);
  if (is_wide) {
    launch_dflash2<kVector>(device, call, rounds);
  } else {
    launch_dflash2<1>(device, call, rounds);
  }
}

#define DELTAWORKS_CUDA_DFLASH2(...)                                                           \
  template void dflash2_dynamic_conv(const Cuda&, const contract::DFlash2DynamicConvGeometry&, \
                                     const DFlash2DynamicConvArgs<__VA_ARGS__>&)
DELTAWORKS_CUDA_DFLASH2(float, float, float);
DELTAWORKS_CUDA_DFLASH2(float, float, BFloat16);
DELTAWORKS_CUDA_DFLASH2(Float16, Float16, Float16);
DELTAWORKS_CUDA_DFLASH2(Float16, Float16, BFloat16);
DELTAWORKS_CUDA_DFLASH2(Float16, float, Float16);
DELTAWORKS_CUDA_DFLASH2(Float16, float, BFloat16);
DELTAWORKS_CUDA_DFLASH2(BFloat16, BFloat16, BFloat16);
DELTAWORKS_CUDA_DFLASH2(BFloat16, float, BFloat16);
#undef DELTAWORKS_CUDA_DFLASH2

}  // namespace deltaworks::cuda

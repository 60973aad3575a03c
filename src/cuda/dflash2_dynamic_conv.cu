// A thread owns kVector consecutive channels, of one group, of kRows rows. All its loads are in flight at
// once; rows before its own come from the cache, which other threads have filled.
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
// From so many blocks on a thread has several rows: base is read once for them, and more is in flight.
constexpr std::int64_t kManyBlocks = 4096;
constexpr int kManyRows = 4;

template <class T, class R, class Base>
struct DFlash2Call {
  View<const T, 2> input, dynamic;
  const Base* base;  // of the stage
  View<R, 2> output;
  View<const R, 2> residual;  // no data in stage kPrepare
  std::int64_t first_coefficient, groups;
  unsigned rows_per_lane, group_size, taps, channel_blocks;
};

// Up to kTaps taps. kRounds: the arithmetic kActivation.
template <int kTaps, int kRows, int kVector, bool kRounds, class T, class R, class Base>
__global__ void __launch_bounds__(kThreads)
    dflash2_kernel(const __grid_constant__ DFlash2Call<T, R, Base> call) {
  // Divisions of 32 bits: those of 64 take longer than the rest.
  const unsigned first = blockIdx.x / call.channel_blocks * kRows,
                 part = blockIdx.x % call.channel_blocks;
  const unsigned channel = (part * kThreads + threadIdx.x) * kVector;
  const std::int64_t rows = call.output.extent(0), channels = call.output.extent(1);
  if (channel >= channels) return;
  const std::int64_t coefficient = call.first_coefficient + channel / call.group_size;
  Pack<Base, kVector> base[kTaps];
  Pack<T, kVector>
      x[kRows + kTaps - 1];  // from row first − (kTaps − 1) on; rows that are none: others
  Pack<R, kVector> residual[kRows];
  T delta[kRows][kTaps];
  const bool has_residual = call.residual.data() != nullptr;
#pragma unroll
  for (int i = 0; i < kRows + kTaps - 1; ++i) {
    const std::int64_t row = static_cast<std::int64_t>(first) + i - (kTaps - 1);
    x[i] = load<kVector>(call.input.row(clamp(row, 0, rows - 1)) + channel);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = min(static_cast<std::int64_t>(first) + i, rows - 1);
    const T* const dynamic = call.dynamic.row(row) + coefficient;
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      delta[i][tap] = dynamic[min(static_cast<unsigned>(tap), call.taps - 1) * call.groups];
    }
    if (has_residual) residual[i] = load<kVector>(call.residual.row(row) + channel);
  }
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    const unsigned of_base = min(static_cast<unsigned>(tap), call.taps - 1);
    base[tap] = load<kVector>(call.base + of_base * channels + channel);
  }
  unsigned position = first % call.rows_per_lane;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float sums[kVector]{};
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      if (tap >= call.taps || tap > position) continue;
      float inputs[kVector], weights[kVector];
      widen(x[i + kTaps - 1 - tap], inputs);
      widen(base[tap], weights);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const float product = tap_product<kRounds, T>(weights[v], widen(delta[i][tap]), inputs[v]);
        sums[v] = tap == 0 ? product : step<kRounds, T>(sums[v] + product);
      }
    }
    if (has_residual) {
      float addends[kVector];
      widen(residual[i], addends);
#pragma unroll
      for (int v = 0; v < kVector; ++v) sums[v] = sums[v] + addends[v];
    }
    if (first + i < rows) store(narrow<R>(sums), call.output.row(first + i) + channel);
    position = position + 1 == call.rows_per_lane ? 0 : position + 1;
  }
}

template <int kTaps, int kRows, int kVector, class T, class R, class Base>
void launch_dflash2(const Cuda& device, DFlash2Call<T, R, Base> call, bool rounds) {
  call.channel_blocks =
      static_cast<unsigned>(ceil_div(call.output.extent(1), std::int64_t{kThreads} * kVector));
  launch(device, ceil_div(call.output.extent(0), kRows) * call.channel_blocks, kThreads,
         rounds ? dflash2_kernel<kTaps, kRows, kVector, true, T, R, Base>
                : dflash2_kernel<kTaps, kRows, kVector, false, T, R, Base>,
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
  if (!is_wide) return launch_dflash2<kMaxTaps, 1, 1>(device, call, rounds);
  if (geometry.taps != 2) return launch_dflash2<kMaxTaps, 1, kVector>(device, call, rounds);
  // Two taps, as all drafters have.
  const std::int64_t blocks = geometry.rows * ceil_div(geometry.channels, kThreads * kVector);
  if (blocks < kManyBlocks) return launch_dflash2<2, 1, kVector>(device, call, rounds);
  launch_dflash2<2, kManyRows, kVector>(device, call, rounds);
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

// A thread owns kVector consecutive channels, of one group, of kRows rows. All its loads are in flight at
// once; rows before its own come from the cache, which other threads have filled.
#include "cuda/dflash2_dynamic_conv.hpp"

#include <algorithm>
#include <cstdint>

#include "cuda/divisor.hpp"
#include "cuda/dynamic_tap.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/pack.cuh"
#include "cuda/sequences.cuh"

namespace deltaworks::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kMaxTaps = static_cast<int>(contract::kMaxTaps);
// From so many blocks on a thread has several rows: base is read once for them, and more is in flight.
constexpr std::int64_t kManyBlocks = 256;
constexpr int kManyRows = 4;

// As small as it gets: what a kernel reads of its parameters first, it waits for.
template <class T, class R, class Base>
struct DFlash2Call {
  const T *input, *dynamic;  // dynamic: of the stage
  const Base* base;          // of the stage
  const R* residual;         // nullptr in stage kPrepare
  R* output;
  std::int64_t input_stride, dynamic_stride, residual_stride, output_stride;
  std::uint32_t rows, channels, groups, taps;
  Divisor group_size, rows_per_lane;
};

// Up to kTaps taps, or exactly so many. kRounds: the arithmetic kActivation.
template <int kTaps, bool kExact, int kRows, int kVector, bool kRounds, class T, class R,
          class Base>
__global__ void __launch_bounds__(kThreads)
    dflash2_kernel(const __grid_constant__ DFlash2Call<T, R, Base> call) {
  const std::uint32_t channel = (blockIdx.x * kThreads + threadIdx.x) * kVector;
  const std::uint32_t first = (blockIdx.z * gridDim.y + blockIdx.y) * kRows;
  wait_for_stream();
  if (channel >= call.channels || first >= call.rows) return;
  const std::uint32_t taps = kExact ? kTaps : call.taps, last_row = call.rows - 1;
  Lanes<Base, kVector, kVector> base[kTaps];
  // From row first − (kTaps − 1) on; rows that are none: others.
  Lanes<T, kVector, kVector> x[kRows + kTaps - 1];
  Lanes<R, kVector, kVector> residual[kRows];
  Pack<T, 1> delta[kRows][kTaps];
  const T* const dynamic = call.dynamic + call.group_size.quotient(channel);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const T* const of_row = dynamic + min(first + i, last_row) * call.dynamic_stride;
#pragma unroll
    for (std::uint32_t tap = 0; tap < kTaps; ++tap) {
      load_lanes(of_row + std::int64_t{min(tap, taps - 1)} * call.groups, delta[i][tap]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows + kTaps - 1; ++i) {
    const std::uint32_t ahead = first + i;
    const std::uint32_t row = ahead < kTaps - 1 ? 0 : min(ahead - (kTaps - 1), last_row);
    load_lanes(call.input + row * call.input_stride + channel, x[i]);
  }
#pragma unroll
  for (std::uint32_t tap = 0; tap < kTaps; ++tap) {
    load_lanes(call.base + std::int64_t{min(tap, taps - 1)} * call.channels + channel, base[tap]);
  }
  if (call.residual != nullptr) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      load_lanes(call.residual + min(first + i, last_row) * call.residual_stride + channel,
                 residual[i]);
    }
  }
  std::uint32_t position = call.rows_per_lane.remainder(first);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    float sums[kVector];
#pragma unroll
    for (std::uint32_t tap = 0; tap < kTaps; ++tap) {
      if (tap > 0 && (tap >= taps || tap > position)) continue;
      float inputs[kVector], weights[kVector], products[kVector];
      widen(x[i + kTaps - 1 - tap], inputs);
      widen(base[tap], weights);
      tap_products<kRounds, T>(weights, widen(delta[i][tap].at[0]), inputs, products);
#pragma unroll
      for (int v = 0; v < kVector; ++v) sums[v] = tap == 0 ? products[v] : sums[v] + products[v];
      if (tap > 0) round_step<kRounds, T>(sums);
    }
    if (call.residual != nullptr) {
      float addends[kVector];
      widen(residual[i], addends);
#pragma unroll
      for (int v = 0; v < kVector; ++v) sums[v] = sums[v] + addends[v];
    }
    Lanes<R, kVector, kVector> result;
    narrow_to(sums, result);
    if (first + i < call.rows)
      store(result, call.output + (first + i) * call.output_stride + channel);
    position = position + 1 == call.rows_per_lane.divisor ? 0 : position + 1;
  }
}

template <int kTaps, bool kExact, int kRows, int kVector, class T, class R, class Base>
void launch_dflash2(const Cuda& device, const DFlash2Call<T, R, Base>& call, bool rounds) {
  constexpr std::uint32_t kMostInY = 65535;
  const auto across = static_cast<std::uint32_t>(ceil_div(call.channels, kThreads * kVector)),
             down = static_cast<std::uint32_t>(ceil_div(call.rows, kRows));
  const dim3 grid(across, std::min(down, kMostInY),
                  static_cast<std::uint32_t>(ceil_div(down, kMostInY)));
  launch_early(device, grid, kThreads,
               rounds ? dflash2_kernel<kTaps, kExact, kRows, kVector, true, T, R, Base>
                      : dflash2_kernel<kTaps, kExact, kRows, kVector, false, T, R, Base>,
               call);
}

}  // namespace

template <class T, class R, class Base>
void dflash2_dynamic_conv(const Cuda& device, const contract::DFlash2DynamicConvGeometry& geometry,
                          const DFlash2DynamicConvArgs<T, R, Base>& args) {
  if (geometry.rows == 0 || geometry.channels == 0) return;
  const std::int64_t stage = args.stage == DFlash2Stage::kPrepare ? 0 : 1;
  const View<const R, 2> residual = or_null(args.residual);
  const DFlash2Call<T, R, Base> call{
      .input = args.input.data(),
      .dynamic = args.dynamic.data() + stage * geometry.taps * geometry.groups,
      .base = args.base.row(stage),
      .residual = residual.data(),
      .output = args.output.data(),
      .input_stride = args.input.row_stride(),
      .dynamic_stride = args.dynamic.row_stride(),
      .residual_stride = residual.row_stride(),
      .output_stride = args.output.row_stride(),
      .rows = index32(geometry.rows),
      .channels = index32(geometry.channels),
      .groups = index32(geometry.groups),
      .taps = index32(geometry.taps),
      .group_size = Divisor(index32(geometry.channels / geometry.groups)),
      .rows_per_lane = Divisor(index32(std::min(geometry.rows_per_lane, geometry.rows))),
  };
  const bool rounds = args.arithmetic == DFlash2Arithmetic::kActivation;
  constexpr int kVector = kLoadBytes / sizeof(T);
  const bool is_wide = call.group_size.divisor % kVector == 0 && is_aligned(args.input) &&
                       is_aligned(args.base) && is_aligned(args.output) && is_aligned(residual);
  if (!is_wide) return launch_dflash2<kMaxTaps, false, 1, 1>(device, call, rounds);
  if (geometry.taps != 2) return launch_dflash2<kMaxTaps, false, 1, kVector>(device, call, rounds);
  // Two taps, as all drafters have.
  const std::int64_t blocks = geometry.rows * ceil_div(geometry.channels, kThreads * kVector);
  if (blocks < kManyBlocks) return launch_dflash2<2, true, 1, kVector>(device, call, rounds);
  launch_dflash2<2, true, kManyRows, kVector>(device, call, rounds);
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

// The drafter of Qwen3.8-27B: hidden 5120, 320 groups of 16 channels, two taps, blocks of 8 rows.
#include "deltaworks/dflash2_dynamic_conv.hpp"

#include <fmt/format.h>

#include "cuda/bench.hpp"

namespace deltaworks::bench {

namespace {

constexpr std::int64_t kChannels = 5120, kGroups = 320, kTaps = 2, kBlock = 8;

template <class R>
void bench_stage(Bench& bench, DFlash2Stage stage, std::int64_t batch) {
  using T = BFloat16;
  const std::int64_t rows = batch * kBlock, size = rows * kChannels;
  const std::int64_t width = 2 * kTaps * kGroups, base_size = 2 * kTaps * kChannels;
  const bool has_residual = stage == DFlash2Stage::kResidual;
  const auto bytes = static_cast<std::size_t>(size + rows * width / 2 + base_size / 2) * sizeof(T) +
                     static_cast<std::size_t>(size) * sizeof(R) * (has_residual ? 2 : 1);
  const std::int64_t sets = Bench::sets_of(bytes);
  const Memory input(static_cast<std::size_t>(sets * size) * sizeof(T)),
      dynamic(static_cast<std::size_t>(sets * rows * width) * sizeof(T)),
      base(static_cast<std::size_t>(base_size) * sizeof(T)),
      residual(static_cast<std::size_t>(sets * size) * sizeof(R)),
      output(static_cast<std::size_t>(sets * size) * sizeof(R));
  bench.fill(input.as<T>(), sets * size);
  bench.fill(dynamic.as<T>(), sets * rows * width, 0.3);
  bench.fill(base.as<T>(), base_size, 0.5);
  bench.fill(residual.as<R>(), sets * size);
  const auto shape = fmt::format("{}x{} {} to {}", batch, kBlock,
                                 has_residual ? "residual" : "prepare", name(dtype_of<R>()));
  bench.measure(
      "dflash2_dynamic_conv", shape, bytes, sets, [&](const Cuda& device, std::int64_t set) {
        DFlash2DynamicConvArgs<T, R, BFloat16> args{
            .input = {input.as<T>() + set * size, {rows, kChannels}},
            .dynamic = {dynamic.as<T>() + set * rows * width, {rows, width}},
            .base = {base.as<T>(), {2, kTaps, kChannels}},
            .output = {output.as<R>() + set * size, {rows, kChannels}},
            .stage = stage,
            .rows_per_lane = kBlock,
            .groups = kGroups};
        if (has_residual) {
          args.residual = View<const R, 2>(residual.as<R>() + set * size, {rows, kChannels});
        }
        dflash2_dynamic_conv(device, args);
      });
}

}  // namespace

void bench_dflash2_dynamic_conv(Bench& bench) {
  for (const std::int64_t batch : {1, 8, 32, 128, 256}) {
    bench_stage<BFloat16>(bench, DFlash2Stage::kPrepare, batch);
  }
  for (const std::int64_t batch : {1, 8, 128, 256}) {
    bench_stage<float>(bench, DFlash2Stage::kResidual, batch);
  }
}

}  // namespace deltaworks::bench

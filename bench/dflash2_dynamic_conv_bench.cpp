// The dynamic convolution of two DFlash2 drafters (2 taps, groups of 16 channels), one thread: a
// batch of 64 blocks at 5120 channels, and one block of 16 rows at 6656. Every call is compared with
// the reference before it is timed; the ceiling is a copy of as many bytes as the call must move.
// `times_copy` is the mean call's time over the copy's, `fastest` that of the fastest call: arithmetic
// takes up to twice as long while another thread runs on the same core, a copy does not.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <vector>

#include "ceilings.hpp"
#include "deltaworks/dflash2_dynamic_conv.hpp"
#include "reference/dflash2_dynamic_conv.hpp"
#include "reference/tolerance.hpp"
#include "support/random.hpp"

namespace deltaworks::bench {
namespace {

constexpr std::int64_t kTaps = 2, kGroupSize = 16;

template <class T, class R>
struct Call {
  Call(std::int64_t all_rows, std::int64_t hidden)
      : rows(all_rows),
        channels(hidden),
        groups(hidden / kGroupSize),
        input(random.normal<T>(rows * channels)),
        dynamic(random.normal<T>(rows * 2 * kTaps * groups)),
        base(random.normal<BFloat16>(2 * kTaps * channels)),
        residual(random.normal<R>(rows * channels)),
        output(residual.size()) {}

  DFlash2DynamicConvArgs<T, R, BFloat16> args(DFlash2Stage stage) {
    DFlash2DynamicConvArgs<T, R, BFloat16> args{
        .input = {input.data(), {rows, channels}},
        .dynamic = {dynamic.data(), {rows, 2 * kTaps * groups}},
        .base = {base.data(), {2, kTaps, channels}},
        .output = {output.data(), {rows, channels}},
        .stage = stage,
        .rows_per_lane = rows == 16 ? 16 : 8,
        .groups = groups};
    if (stage == DFlash2Stage::kResidual) args.residual = {residual.data(), {rows, channels}};
    return args;
  }
  // One stage reads half of `dynamic` and of `base`.
  std::size_t bytes(DFlash2Stage stage) const {
    const std::size_t results = stage == DFlash2Stage::kResidual ? 2 : 1;
    return (input.size() + dynamic.size() / 2) * sizeof(T) + results * output.size() * sizeof(R) +
           base.size() / 2 * sizeof(BFloat16);
  }

  testing::Random random{1};
  std::int64_t rows, channels, groups;
  std::vector<T> input, dynamic;
  std::vector<BFloat16> base;
  std::vector<R> residual, output;
};

// In the activation mode each of a few steps may be off by half a unit in the last place.
template <class T, class R>
bool is_right(Call<T, R>& call, const DFlash2DynamicConvArgs<T, R, BFloat16>& args) {
  std::vector<double> wanted(call.output.size());
  dflash2_dynamic_conv(Cpu{}, args);
  reference::dflash2_dynamic_conv(args, View<double, 2>(wanted.data(), {call.rows, call.channels}));
  double largest = 0, error = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double difference = std::abs(static_cast<double>(to_float(call.output[i])) - wanted[i]);
    if (!(difference <= error)) error = difference;  // a NaN stays
    largest = std::max(largest, std::abs(wanted[i]));
  }
  const bool once = args.arithmetic == DFlash2Arithmetic::kFloat32;
  return error <= (once ? reference::tolerance<R>() : 4 * reference::tolerance<T>()) * largest;
}

template <class T, class R, DFlash2Stage kStage,
          DFlash2Arithmetic kArithmetic = DFlash2Arithmetic::kFloat32>
void conv(benchmark::State& bench) {
  Call<T, R> call(bench.range(0), bench.range(1));
  auto args = call.args(kStage);
  args.arithmetic = kArithmetic;
  if (!is_right(call, args)) return bench.SkipWithError("differs from the reference");
  double fastest = std::numeric_limits<double>::infinity();
  for (auto _ : bench) {
    const auto start = std::chrono::steady_clock::now();
    dflash2_dynamic_conv(Cpu{}, args);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    fastest = std::min(fastest, seconds.count());
  }
  const auto bytes = static_cast<double>(call.bytes(kStage));
  const double copy = copy_bandwidth(call.bytes(kStage));
  using benchmark::Counter;
  bench.counters["bytes/s"] = Counter(bytes, Counter::kIsIterationInvariantRate);
  bench.counters["times_copy"] =
      Counter(bytes / copy, Counter::Flags(Counter::kIsIterationInvariantRate | Counter::kInvert));
  bench.counters["fastest"] = fastest * copy / bytes;
  bench.counters["copy_bytes/s"] = copy;
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->Unit(benchmark::kMicrosecond)->Repetitions(5)->DisplayAggregatesOnly();
  bench->Args({512, 5120})->Args({16, 6656});
}

constexpr auto kPrepare = DFlash2Stage::kPrepare, kResidual = DFlash2Stage::kResidual;
constexpr auto kActivation = DFlash2Arithmetic::kActivation;
BENCHMARK_TEMPLATE(conv, float, float, kPrepare)->Apply(shapes);
BENCHMARK_TEMPLATE(conv, float, float, kResidual)->Apply(shapes);
BENCHMARK_TEMPLATE(conv, Float16, Float16, kPrepare)->Apply(shapes);
BENCHMARK_TEMPLATE(conv, BFloat16, BFloat16, kPrepare)->Apply(shapes);
BENCHMARK_TEMPLATE(conv, Float16, Float16, kResidual)->Apply(shapes);
BENCHMARK_TEMPLATE(conv, BFloat16, BFloat16, kResidual)->Apply(shapes);
BENCHMARK_TEMPLATE(conv, BFloat16, float, kResidual)->Apply(shapes);
BENCHMARK_TEMPLATE(conv, Float16, Float16, kPrepare, kActivation)->Apply(shapes);
BENCHMARK_TEMPLATE(conv, BFloat16, BFloat16, kPrepare, kActivation)->Apply(shapes);

}  // namespace
}  // namespace deltaworks::bench

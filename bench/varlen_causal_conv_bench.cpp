// The convolution of a 27B hybrid model's layer (10240 channels, width 4, silu), one sequence, one
// thread, state updated in place. Every call is compared with the reference before it is timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "ceilings.hpp"
#include "deltaworks/varlen_causal_conv.hpp"
#include "reference/varlen_causal_conv.hpp"

namespace deltaworks::bench {
namespace {

constexpr std::int64_t kChannels = 10240, kWidth = 4, kHistory = kWidth - 1;

template <class T>
std::vector<T> normal(std::int64_t size, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> draw;
  std::vector<T> values(static_cast<std::size_t>(size));
  for (T& value : values) value = from_float<T>(draw(engine));
  return values;
}

template <class T>
struct Call {
  explicit Call(std::int64_t tokens)
      : offsets{0, static_cast<std::int32_t>(tokens)},
        input(normal<T>(tokens * kChannels, 1)),
        weight(normal<T>(kChannels * kWidth, 2)),
        state(normal<T>(kChannels * kHistory, 3)),
        output(input.size()) {}

  VarlenCausalConvArgs<T> args(const View<T, 3>& final_state) {
    const std::int64_t tokens = offsets[1];
    return {.input = {input.data(), {tokens, kChannels}},
            .weight = {weight.data(), {kChannels, 1, kWidth}},
            .cu_seqlens = {offsets.data(), {2}},
            .initial_state = view(state),
            .output = {output.data(), {tokens, kChannels}},
            .final_state = final_state,
            .activation = ConvActivation::kSilu};
  }
  static View<T, 3> view(std::vector<T>& states) {
    return {states.data(), {1, kChannels, kHistory}};
  }
  std::size_t bytes() const {
    return (2 * input.size() + weight.size() + 2 * state.size()) * sizeof(T);
  }

  std::vector<std::int32_t> offsets;
  std::vector<T> input, weight, state, output;
};

// Half a unit in the last place of T beside the error of float32 sums.
template <class T>
double tolerance() {
  if constexpr (std::is_same_v<T, Float16>) return 0x1p-11 + 2e-6;
  if constexpr (std::is_same_v<T, BFloat16>) return 0x1p-8 + 2e-6;
  return 2e-6;
}

template <class T>
bool is_right(Call<T>& call) {
  const std::int64_t tokens = call.offsets[1];
  std::vector<T> final_state(call.state.size()), wanted_state(call.state.size());
  std::vector<double> wanted(call.output.size());
  varlen_causal_conv(Cpu{}, call.args(call.view(final_state)));
  reference::varlen_causal_conv(call.args(call.view(wanted_state)),
                                View<double, 2>(wanted.data(), {tokens, kChannels}));
  double largest = 0, error = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double difference = std::abs(static_cast<double>(to_float(call.output[i])) - wanted[i]);
    if (!(difference <= error)) error = difference;  // a NaN stays
    largest = std::max(largest, std::abs(wanted[i]));
  }
  return error <= tolerance<T>() * largest && final_state == wanted_state;
}

template <class T>
void conv(benchmark::State& bench) {
  Call<T> call(bench.range(0));
  if (!is_right(call)) return bench.SkipWithError("differs from the reference");
  const auto args = call.args(call.view(call.state));
  for (auto _ : bench) varlen_causal_conv(Cpu{}, args);
  const auto bytes = static_cast<double>(call.bytes());
  const double copy = copy_bandwidth(call.bytes());
  using benchmark::Counter;
  bench.counters["bytes/s"] = Counter(bytes, Counter::kIsIterationInvariantRate);
  bench.counters["of_copy"] = Counter(bytes / copy, Counter::kIsIterationInvariantRate);
  bench.counters["copy_bytes/s"] = copy;
  bench.counters["tokens/s"] =
      Counter(static_cast<double>(bench.range(0)), Counter::kIsIterationInvariantRate);
}

// As in a session whose weights are constants.
template <class T>
void conv_prepared(benchmark::State& bench) {
  Call<T> call(bench.range(0));
  std::vector<float> prepared(call.weight.size());
  const View<float, 2> taps(prepared.data(), {kWidth, kChannels});
  auto args = call.args(call.view(call.state));
  prepare_conv_weight(args.weight, taps);
  args.prepared_weight = taps;
  for (auto _ : bench) varlen_causal_conv(Cpu{}, args);
}

template <class T>
void replay(benchmark::State& bench) {
  Call<T> call(1);
  const auto update = normal<T>(8 * kChannels, 4);
  const std::int32_t count = static_cast<std::int32_t>(bench.range(0));
  const ReplayConvStateArgs<T> args{.initial_state = call.view(call.state),
                                    .state_update = {update.data(), {1, 8, kChannels}},
                                    .count = {&count, {1}},
                                    .final_state = call.view(call.state)};
  for (auto _ : bench) replay_conv_state(Cpu{}, args);
}

void settings(benchmark::internal::Benchmark* bench) {
  bench->Unit(benchmark::kMicrosecond)->Repetitions(5)->DisplayAggregatesOnly();
}

void tokens(benchmark::internal::Benchmark* bench) {
  settings(bench);
  for (const std::int64_t count : {1, 8, 64, 1024}) bench->Arg(count);
}

BENCHMARK_TEMPLATE(conv, float)->Apply(tokens);
BENCHMARK_TEMPLATE(conv, Float16)->Apply(tokens);
BENCHMARK_TEMPLATE(conv, BFloat16)->Apply(tokens);
BENCHMARK_TEMPLATE(conv_prepared, float)->Apply(tokens);
BENCHMARK_TEMPLATE(conv_prepared, Float16)->Apply(tokens);
BENCHMARK_TEMPLATE(conv_prepared, BFloat16)->Apply(tokens);
BENCHMARK_TEMPLATE(replay, float)->Apply(settings)->Arg(2);
BENCHMARK_TEMPLATE(replay, BFloat16)->Apply(settings)->Arg(2);

}  // namespace
}  // namespace deltaworks::bench

// The convolution of a 27B hybrid model's layer (10240 channels, width 4, silu), one sequence, one
// thread, state updated in place. Every call is compared with the reference before it is timed.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cache_line.hpp"
#include "ceilings.hpp"
#include "deltaworks/varlen_causal_conv.hpp"
#include "reference/tolerance.hpp"
#include "reference/varlen_causal_conv.hpp"
#include "support/random.hpp"

namespace deltaworks::bench {
namespace {

constexpr std::int64_t kChannels = 10240, kWidth = 4, kHistory = kWidth - 1;

template <class T>
using Array = CacheLineVector<T>;

template <class T>
Array<T> normal(testing::Random& random, std::int64_t size) {
  const std::vector<T> values = random.normal<T>(size);
  return {values.begin(), values.end()};
}

template <class T>
struct Call {
  explicit Call(std::int64_t tokens)
      : offsets{0, static_cast<std::int32_t>(tokens)},
        input(normal<T>(random, tokens * kChannels)),
        weight(normal<T>(random, kChannels * kWidth)),
        state(normal<T>(random, kChannels * kHistory)),
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
  static View<T, 3> view(Array<T>& states) { return {states.data(), {1, kChannels, kHistory}}; }
  std::size_t bytes() const {
    return (2 * input.size() + weight.size() + 2 * state.size()) * sizeof(T);
  }

  testing::Random random{1};
  std::vector<std::int32_t> offsets;
  Array<T> input, weight, state, output;
};

template <class T>
bool is_right(Call<T>& call) {
  const std::int64_t tokens = call.offsets[1];
  Array<T> final_state(call.state.size()), wanted_state(call.state.size());
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
  return error <= reference::tolerance<T>() * largest && final_state == wanted_state;
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
  const Array<T> update = normal<T>(call.random, 8 * kChannels);
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

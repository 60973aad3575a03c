// The convolution of a dense hybrid model's layer (8192 channels, width 4, silu), one sequence, one
// thread, state updated in place. Every call is compared with the reference before it is timed.
#include <benchmark/benchmark.h>

#include <vector>

#include "ceilings.hpp"
#include "support/causal_conv_with_state_case.hpp"

namespace deltaworks::bench {
namespace {

template <class T>
testing::DenseConvCase<T> case_of(std::int64_t tokens, bool channels_last) {
  testing::Random random(1);
  testing::DenseConvCase<T> c{
      .channels = 8192, .length = tokens, .width = 4, .channels_last = channels_last};
  c.fill(random);
  c.bias = random.normal<T>(c.channels);
  c.past_state = random.normal<T>(c.state_size());
  c.activation = ConvActivation::kSilu;
  return c;
}

template <class T>
bool is_right(const testing::DenseConvCase<T>& c) {
  std::vector<T> state;
  const auto expected = c.reference(state);
  const auto actual = c.run();
  return testing::near(actual.output, expected, 1.01) &&
         testing::same_bits(actual.present_state, state);
}

// Arguments: tokens, channels_last.
template <class T>
void conv(benchmark::State& bench) {
  const auto c = case_of<T>(bench.range(0), bench.range(1) != 0);
  if (!is_right(c)) return bench.SkipWithError("differs from the reference");
  std::vector<T> output(c.input.size()), state(c.past_state);
  auto args = c.args(output.data(), state.data());
  args.past_state = args.present_state;
  for (auto _ : bench) causal_conv_with_state(Cpu{}, args);
  const std::size_t bytes =
      (2 * c.input.size() + c.weight.size() + 2 * c.past_state.size()) * sizeof(T);
  using benchmark::Counter;
  const auto rate = Counter::kIsIterationInvariantRate;
  bench.counters["bytes/s"] = Counter(static_cast<double>(bytes), rate);
  bench.counters["of_copy"] = Counter(static_cast<double>(bytes) / copy_bandwidth(bytes), rate);
  bench.counters["tokens/s"] = Counter(static_cast<double>(bench.range(0)), rate);
}

void calls(benchmark::internal::Benchmark* bench) {
  bench->Unit(benchmark::kMicrosecond)->ArgNames({"tokens", "channels_last"});
  for (const std::int64_t tokens : {1, 2, 4, 16, 1024}) {
    for (const std::int64_t channels_last : {0, 1}) bench->Args({tokens, channels_last});
  }
}

BENCHMARK_TEMPLATE(conv, float)->Apply(calls);
BENCHMARK_TEMPLATE(conv, Float16)->Apply(calls);
BENCHMARK_TEMPLATE(conv, BFloat16)->Apply(calls);

}  // namespace
}  // namespace deltaworks::bench

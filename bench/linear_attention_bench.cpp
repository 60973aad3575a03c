// linear_attention on one thread, as a share of this machine's ceilings measured in the same run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <vector>

#include "ceilings.hpp"
#include "deltaworks/linear_attention.hpp"
#include "reference/linear_attention.hpp"
#include "shapes.hpp"
#include "support/compare.hpp"
#include "support/linear_attention_problem.hpp"

namespace deltaworks {
namespace {

using testing::LinearAttentionProblem;

template <class T, class S>
LinearAttentionProblem<T, S> problem_of(const bench::GatedDeltaNetShape& shape,
                                        std::int64_t tokens) {
  testing::Random random(1);
  return {random,
          {.length = tokens,
           .q_num_heads = shape.key_heads,
           .kv_num_heads = shape.value_heads,
           .key_heads = shape.key_heads,
           .key_dim = shape.key_dim,
           .value_dim = shape.value_dim}};
}

// A figure of a wrong result is worth nothing: every benchmark compares first, on fewer tokens.
template <class T, class S>
bool is_right(const bench::GatedDeltaNetShape& shape, std::int64_t tokens) {
  const auto problem = problem_of<T, S>(shape, std::min<std::int64_t>(tokens, 20));
  const auto expected = reference::linear_attention(problem.args());
  const auto actual = problem.run();
  return testing::near(actual.output, expected.output, 4) &&
         testing::near(actual.present_state, expected.present_state, 4);
}

// Arguments: tokens, bytes of state to rotate through (0: one state, hot).
template <class T, class S = float>
void run(benchmark::State& bench, const bench::GatedDeltaNetShape& shape) {
  const std::int64_t tokens = bench.range(0);
  if (!is_right<T, S>(shape, tokens)) {
    bench.SkipWithError("differs from the reference");
    return;
  }
  const auto problem = problem_of<T, S>(shape, tokens);
  const std::int64_t size = problem.state_size();
  const auto state_bytes = size * static_cast<std::int64_t>(sizeof(S));
  const std::int64_t states = std::max<std::int64_t>(1, bench.range(1) / state_bytes);
  std::vector<S> state(static_cast<std::size_t>(states * size), from_float<S>(0.01f));
  std::vector<T> output(static_cast<std::size_t>(tokens * problem.output_width()));
  auto args = problem.args();
  args.output = {output.data(), {1, tokens, problem.output_width()}};
  std::int64_t turn = 0;
  for (auto _ : bench) {
    args.present_state = {state.data() + turn * size, problem.state_extents()};
    args.past_state = args.present_state;
    linear_attention(Cpu{}, args);
    turn = (turn + 1) % states;
  }
  const double flops = 6 * static_cast<double>(size) * static_cast<double>(tokens);
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  bench.counters["tokens/s"] = benchmark::Counter(static_cast<double>(tokens), rate);
  bench.counters["GFLOP/s"] = benchmark::Counter(flops / 1e9, rate);
  bench.counters["of_fma_peak"] = benchmark::Counter(flops / bench::fma_peak(), rate);
  const double stream = bench::in_place_bandwidth(static_cast<std::size_t>(states * state_bytes));
  bench.counters["of_state_stream"] =
      benchmark::Counter(2 * static_cast<double>(state_bytes) / stream, rate);
}

void register_all() {
  constexpr std::int64_t kCold = 256 << 20;  // more than any cache of a desktop
  for (const auto& shape : bench::kGatedDeltaNetShapes) {
    const auto add = [&](const char* type, auto function) {
      const std::string name = std::string("linear_attention/") + shape.name + "/" + type;
      benchmark::RegisterBenchmark(name.c_str(), function, shape)
          ->ArgNames({"tokens", "rotate"})
          ->Args({1, 0})
          ->Args({1, kCold})
          ->Args({16, 0})
          ->Args({1024, 0})
          ->Unit(benchmark::kMicrosecond);
    };
    add("float32", run<float>);
    add("float16", run<Float16>);
    add("bfloat16", run<BFloat16>);
    add("float16, state float16", run<Float16, Float16>);
  }
}

[[maybe_unused]] const bool kRegistered = (register_all(), true);

}  // namespace
}  // namespace deltaworks

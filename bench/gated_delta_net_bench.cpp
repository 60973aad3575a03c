// gated_delta_net on one thread, as a share of this machine's ceilings measured in the same run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ceilings.hpp"
#include "deltaworks/gated_delta_net.hpp"
#include "reference/gated_delta_net.hpp"
#include "shapes.hpp"
#include "support/compare.hpp"
#include "support/gated_delta_net_problem.hpp"

namespace deltaworks {
namespace {

using testing::GatedDeltaNetProblem;

template <class T>
GatedDeltaNetProblem<T> problem_of(const bench::GatedDeltaNetShape& shape, std::int64_t tokens,
                                   std::int64_t capacity, Engine engine) {
  testing::Random random(1);
  return {random,
          {.cu_seqlens = {0, static_cast<std::int32_t>(tokens)},
           .key_heads = shape.key_heads,
           .heads_per_key = shape.value_heads / shape.key_heads,
           .key_dim = shape.key_dim,
           .value_dim = shape.value_dim,
           .capacity = capacity,
           .gate_activation = GateActivation::kSoftplus,
           .beta_activation = BetaActivation::kSigmoid,
           .engine = engine}};
}

// A figure of a wrong result is worth nothing: every benchmark compares first, on fewer tokens, but more than
// the 96 after which a kernel of one block begins another.
template <class T>
bool is_right(const bench::GatedDeltaNetShape& shape, std::int64_t tokens, std::int64_t capacity,
              Engine engine) {
  const auto problem = problem_of<T>(shape, std::min<std::int64_t>(tokens, 100), capacity, engine);
  const auto expected = reference::gated_delta_net(problem.args());
  const auto actual = problem.run();
  return testing::near(actual.output, expected.output, 4) &&
         testing::near(actual.final_state, expected.final_state, 4);
}

// Arguments: tokens, capture capacity, bytes of state to rotate through (0: one state, hot).
template <class T, Engine kEngine = Engine::kRecurrent>
void run(benchmark::State& bench, const bench::GatedDeltaNetShape& shape) {
  const std::int64_t tokens = bench.range(0), capacity = bench.range(1);
  if (!is_right<T>(shape, tokens, capacity, kEngine)) {
    bench.SkipWithError("differs from the reference");
    return;
  }
  auto problem = problem_of<T>(shape, tokens, capacity, kEngine);
  problem.capture_count = {static_cast<std::int32_t>(capacity)};
  const std::int64_t state_bytes = problem.state_size() * 4;
  const std::int64_t states = std::max<std::int64_t>(1, bench.range(2) / state_bytes);
  std::vector<float> state(static_cast<std::size_t>(states * problem.state_size()), 0.01f);
  std::vector<T> output(static_cast<std::size_t>(tokens * shape.value_heads * shape.value_dim));
  std::vector<float> update(static_cast<std::size_t>(problem.update_row()));
  auto args = problem.args();
  args.output = {output.data(), {tokens, shape.value_heads, shape.value_dim}};
  if (capacity > 0) args.state_update = View<float, 2>{update.data(), {1, problem.update_row()}};
  std::int64_t turn = 0;
  for (auto _ : bench) {
    args.final_state = {state.data() + turn * problem.state_size(),
                        {1, shape.value_heads, shape.value_dim, shape.key_dim}};
    args.initial_state = args.final_state;
    gated_delta_net(Cpu{}, args);
    turn = (turn + 1) % states;
  }
  const double state_elements = static_cast<double>(problem.state_size());
  const double flops = 6 * state_elements * static_cast<double>(tokens);
  const double bytes = 2 * static_cast<double>(state_bytes);
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  bench.counters["tokens/s"] = benchmark::Counter(static_cast<double>(tokens), rate);
  bench.counters["GFLOP/s"] = benchmark::Counter(flops / 1e9, rate);
  bench.counters["of_fma_peak"] = benchmark::Counter(flops / bench::fma_peak(), rate);
  const double stream = bench::in_place_bandwidth(static_cast<std::size_t>(states * state_bytes));
  bench.counters["of_state_stream"] = benchmark::Counter(bytes / stream, rate);
}

void register_all() {
  constexpr std::int64_t kCold = 256 << 20;  // more than any cache of a desktop
  for (const auto& shape : bench::kGatedDeltaNetShapes) {
    const auto add = [&](const char* type, auto function) {
      const std::string name = std::string("gated_delta_net/") + shape.name + "/" + type;
      benchmark::RegisterBenchmark(name.c_str(), function, shape)
          ->ArgNames({"tokens", "capture", "rotate"})
          ->Args({1, 0, 0})
          ->Args({1, 0, kCold})
          ->Args({8, 7, 0})
          ->Args({64, 0, 0})
          ->Args({1024, 0, 0})
          ->Unit(benchmark::kMicrosecond);
    };
    const auto add_chunked = [&](const char* type, auto function) {
      const std::string name = std::string("gated_delta_net/") + shape.name + "/" + type;
      benchmark::RegisterBenchmark(name.c_str(), function, shape)
          ->ArgNames({"tokens", "capture", "rotate"})
          ->Args({64, 0, 0})
          ->Args({1024, 0, 0})
          ->Unit(benchmark::kMicrosecond);
    };
    add("float32", run<float>);
    add("float16", run<Float16>);
    add("bfloat16", run<BFloat16>);
    add_chunked("float32/chunked", run<float, Engine::kChunked>);
    add_chunked("float16/chunked", run<Float16, Engine::kChunked>);
    add_chunked("bfloat16/chunked", run<BFloat16, Engine::kChunked>);
  }
}

[[maybe_unused]] const bool kRegistered = (register_all(), true);

}  // namespace
}  // namespace deltaworks

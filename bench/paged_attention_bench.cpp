// paged_attention on one thread. Decode and verification are a stream of the cache, prefill is two
// matrix products: shares of this machine's ceilings, measured in the same run.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ceilings.hpp"
#include "reference/paged_attention.hpp"
#include "support/compare.hpp"
#include "support/paged_problem.hpp"

namespace deltaworks {
namespace {

struct Heads {
  std::int64_t heads, kv_heads, head_dim;
};

constexpr std::int64_t kBlockSize = 16;

template <class T>
testing::PagedProblem<T> problem_of(const Heads& shape, std::int64_t past, std::int64_t tokens) {
  testing::Random random(1);
  testing::PagedOptions options;
  options.kv_heads = shape.kv_heads;
  options.group = shape.heads / shape.kv_heads;
  options.head_dim = shape.head_dim;
  options.block_size = kBlockSize;
  return {options, {static_cast<std::int32_t>(past)}, {static_cast<std::int32_t>(tokens)}, random};
}

// A figure of a wrong result is worth nothing: every benchmark compares first, on a shorter cache.
template <class T>
bool is_right(const Heads& shape, std::int64_t past, std::int64_t tokens) {
  auto problem =
      problem_of<T>(shape, std::min<std::int64_t>(past, 300), std::min<std::int64_t>(tokens, 40));
  auto twin = problem;
  testing::Buffer<T> unused(problem.tokens() * shape.heads * shape.head_dim);
  const auto expected = reference::paged_attention(twin.args(unused));
  return static_cast<bool>(testing::near(problem.run(), expected, 4));
}

// Arguments: cached positions, new tokens, bytes of caches to rotate through (0: one, hot).
template <class T>
void run(benchmark::State& bench, const Heads& shape) {
  const std::int64_t past = bench.range(0), tokens = bench.range(1);
  if (!is_right<T>(shape, past, tokens)) {
    bench.SkipWithError("differs from the reference");
    return;
  }
  auto problem = problem_of<T>(shape, past, tokens);
  testing::Buffer<T> output(tokens * shape.heads * shape.head_dim);
  auto args = problem.args(output);
  const std::int64_t row_bytes = 2 * shape.kv_heads * shape.head_dim * std::int64_t{sizeof(T)};
  const std::int64_t cache_bytes = (past + tokens) * row_bytes;
  const std::int64_t layers = std::max<std::int64_t>(1, bench.range(2) / cache_bytes);
  std::vector<testing::PagedProblem<T>> caches(static_cast<std::size_t>(layers), problem);
  std::size_t turn = 0;
  for (auto _ : bench) {
    const auto extents = args.key_cache.extents();
    args.key_cache = {caches[turn].key_cache.data(), extents};
    args.value_cache = {caches[turn].value_cache.data(), extents};
    paged_attention(Cpu{}, args);
    turn = (turn + 1) % caches.size();
  }
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  const double seen = static_cast<double>(tokens * past) +
                      0.5 * static_cast<double>(tokens * (tokens + 1));  // by all tokens together
  const double flops = 4 * seen * static_cast<double>(shape.heads * shape.head_dim);
  bench.counters["tokens/s"] = benchmark::Counter(static_cast<double>(tokens), rate);
  bench.counters["GFLOP/s"] = benchmark::Counter(flops / 1e9, rate);
  bench.counters["of_fma_peak"] = benchmark::Counter(flops / bench::fma_peak(), rate);
  if (past == 0) return;
  const auto bytes = static_cast<double>(cache_bytes);
  bench.counters["GB/s"] = benchmark::Counter(bytes / 1e9, rate);
  const double stream = bench::read_bandwidth(static_cast<std::size_t>(layers * cache_bytes));
  bench.counters["of_stream"] = benchmark::Counter(bytes / stream, rate);
}

void cases(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"past", "tokens", "pool"})->Unit(benchmark::kMicrosecond);
  bench->Args({4095, 1, 0});          // decode, the cache in the last level
  bench->Args({4095, 1, 600 << 20});  // decode as in a model: other layers have evicted it
  bench->Args({4088, 8, 600 << 20});  // verification of 7 drafts
  bench->Args({0, 512, 0});           // prefill
}

template <class T>
void add(const char* type, const Heads& shape) {
  const std::string name = std::string(type) + "/heads:" + std::to_string(shape.heads) +
                           "/kv:" + std::to_string(shape.kv_heads) +
                           "/dim:" + std::to_string(shape.head_dim);
  cases(benchmark::RegisterBenchmark(name.c_str(),
                                     [shape](benchmark::State& bench) { run<T>(bench, shape); }));
}

const bool added = [] {
  for (const Heads& shape : {Heads{16, 2, 128}, Heads{32, 8, 128}, Heads{4, 2, 64}}) {
    add<float>("float32", shape);
    add<Float16>("float16", shape);
    add<BFloat16>("bfloat16", shape);
  }
  return true;
}();

}  // namespace
}  // namespace deltaworks

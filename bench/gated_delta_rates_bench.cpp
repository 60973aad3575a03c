// Update rates and decays at 48 value heads, one thread: 64 and 4096 tokens. Three forms take turns:
// the operator; the separate passes whose bits it has, on the same vectors and elementary functions;
// and the same passes in plain loops over libm, as a framework's fallback kernels run them. The
// ceiling is a copy of as many bytes as the call must move.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cache_line.hpp"
#include "ceilings.hpp"
#include "deltaworks/gated_delta_rates.hpp"
#include "reference/gated_delta_rates.hpp"
#include "reference/gated_delta_rates_composed.hpp"
#include "reference/tolerance.hpp"
#include "support/random.hpp"

namespace deltaworks::bench {
namespace {

template <class T>
using Array = CacheLineVector<T>;

template <class T>
Array<T> normal(std::int64_t size, std::uint64_t stream, double deviation) {
  const std::vector<T> values = testing::Random(stream).normal<T>(size, deviation);
  return {values.begin(), values.end()};
}

template <class T>
struct Call {
  Call(std::int64_t all_tokens, std::int64_t value_heads)
      : tokens(all_tokens),
        heads(value_heads),
        update_logits(normal<T>(tokens * heads, 1, 2)),
        decay_inputs(normal<T>(tokens * heads, 2, 2)),
        a_log(normal<float>(heads, 3, 1)),
        dt_bias(normal<float>(heads, 4, 2)),
        update_rates(update_logits.size()),
        decay_factors(update_logits.size()) {}

  GatedDeltaRatesArgs<T> args() {
    return {.update_logits = {update_logits.data(), {tokens, heads}},
            .decay_inputs = {decay_inputs.data(), {tokens, heads}},
            .a_log = {a_log.data(), {heads}},
            .dt_bias = {dt_bias.data(), {heads}},
            .update_rates = {update_rates.data(), {tokens, heads}},
            .decay_factors = {decay_factors.data(), {tokens, heads}}};
  }
  std::size_t bytes() const { return update_logits.size() * (3 * sizeof(T) + sizeof(float)); }

  std::int64_t tokens, heads;
  Array<T> update_logits, decay_inputs;
  Array<float> a_log, dt_bias;
  Array<T> update_rates;
  Array<float> decay_factors;
};

// Separate passes over arrays, each element by itself.
template <class T>
class LibmPasses {
 public:
  void run(const GatedDeltaRatesArgs<T>& args) {
    const std::int64_t tokens = args.update_logits.extent(0), heads = args.a_log.extent(0);
    const auto size = static_cast<std::size_t>(tokens * heads);
    for (auto* array : {&sum_, &softplus_, &product_, &negated_}) array->resize(size);
    scale_.resize(static_cast<std::size_t>(heads));
    const T* const logits = args.update_logits.data();
    const T* const inputs = args.decay_inputs.data();
    for (std::size_t i = 0; i < size; ++i) {
      args.update_rates.data()[i] = from_float<T>(1 / (1 + std::exp(-to_float(logits[i]))));
    }
    for (std::size_t i = 0; i < size; ++i) {
      sum_[i] = to_float(inputs[i]) + args.dt_bias.data()[i % scale_.size()];
    }
    for (std::size_t i = 0; i < size; ++i) {
      softplus_[i] = std::max(sum_[i], 0.0f) + std::log1p(std::exp(-std::abs(sum_[i])));
    }
    for (std::size_t h = 0; h < scale_.size(); ++h) scale_[h] = std::exp(args.a_log.data()[h]);
    for (std::size_t i = 0; i < size; ++i) product_[i] = softplus_[i] * scale_[i % scale_.size()];
    for (std::size_t i = 0; i < size; ++i) negated_[i] = -product_[i];
    for (std::size_t i = 0; i < size; ++i) args.decay_factors.data()[i] = std::exp(negated_[i]);
  }

 private:
  std::vector<float> sum_, softplus_, scale_, product_, negated_;
};

template <class T>
double largest_error(const Array<T>& actual, const std::vector<double>& expected) {
  double error = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double off = std::abs(static_cast<double>(to_float(actual[i])) - expected[i]);
    if (!(off <= error)) error = off;  // a NaN stays
  }
  return error;
}

// What `run` left in the call's outputs; both results lie in 0 … 1. In the activation mode two steps
// round to T.
template <class T>
bool is_right(const Call<T>& call, const GatedDeltaRatesArgs<T>& args) {
  std::vector<double> rates(call.update_rates.size()), factors(rates.size());
  reference::gated_delta_rates(args, {rates.data(), {call.tokens, call.heads}},
                               {factors.data(), {call.tokens, call.heads}});
  const bool once = args.arithmetic == GatedDeltaRatesArithmetic::kFloat32;
  const double allowed = once ? reference::tolerance<float>() : 2 * reference::tolerance<T>();
  return largest_error(call.update_rates, rates) <= reference::tolerance<T>() &&
         largest_error(call.decay_factors, factors) <= allowed;
}

template <class T, class Run>
void time_of(benchmark::State& bench, GatedDeltaRatesArithmetic arithmetic, const Run& run) {
  Call<T> call(bench.range(0), bench.range(1));
  auto args = call.args();
  args.arithmetic = arithmetic;
  run(args);
  if (!is_right(call, args)) return bench.SkipWithError("differs from the reference");
  for (auto _ : bench) run(args);
  const auto bytes = static_cast<double>(call.bytes());
  const double copy = copy_bandwidth(call.bytes());
  using benchmark::Counter;
  bench.counters["bytes/s"] = Counter(bytes, Counter::kIsIterationInvariantRate);
  bench.counters["of_copy"] = Counter(bytes / copy, Counter::kIsIterationInvariantRate);
  bench.counters["copy_bytes/s"] = copy;
}

constexpr auto kFloat32 = GatedDeltaRatesArithmetic::kFloat32;
constexpr auto kActivation = GatedDeltaRatesArithmetic::kActivation;

template <class T, GatedDeltaRatesArithmetic kArithmetic = kFloat32>
void rates(benchmark::State& bench) {
  time_of<T>(bench, kArithmetic, [](const auto& args) { gated_delta_rates(Cpu{}, args); });
}

template <class T, GatedDeltaRatesArithmetic kArithmetic = kFloat32>
void composed(benchmark::State& bench) {
  reference::ComposedRatesArrays<T> arrays;
  time_of<T>(bench, kArithmetic,
             [&arrays](const auto& args) { reference::gated_delta_rates_composed(args, arrays); });
}

template <class T>
void composed_libm(benchmark::State& bench) {
  LibmPasses<T> passes;
  time_of<T>(bench, kFloat32, [&passes](const auto& args) { passes.run(args); });
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->Unit(benchmark::kMicrosecond)->Repetitions(5)->DisplayAggregatesOnly();
  bench->MinTime(0.1)->Args({64, 48})->Args({4096, 48});
}

BENCHMARK_TEMPLATE(rates, float)->Apply(shapes);
BENCHMARK_TEMPLATE(composed, float)->Apply(shapes);
BENCHMARK_TEMPLATE(composed_libm, float)->Apply(shapes);
BENCHMARK_TEMPLATE(rates, Float16)->Apply(shapes);
BENCHMARK_TEMPLATE(rates, BFloat16)->Apply(shapes);
BENCHMARK_TEMPLATE(composed, BFloat16)->Apply(shapes);
BENCHMARK_TEMPLATE(composed_libm, BFloat16)->Apply(shapes);
BENCHMARK_TEMPLATE(rates, BFloat16, kActivation)->Apply(shapes);
BENCHMARK_TEMPLATE(composed, BFloat16, kActivation)->Apply(shapes);

}  // namespace
}  // namespace deltaworks::bench

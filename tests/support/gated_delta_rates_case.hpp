// One call of gated_delta_rates with memory of its own, and what came out of it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "deltaworks/gated_delta_rates.hpp"
#include "reference/gated_delta_rates.hpp"
#include "reference/gated_delta_rates_composed.hpp"
#include "support/buffer.hpp"
#include "support/compare.hpp"
#include "support/cuda.hpp"
#include "support/random.hpp"

namespace deltaworks::testing {

template <class T, class F = float>
struct RatesOutputs {
  std::vector<T> update_rates;
  std::vector<F> decay_factors;
};

template <class T_>
struct RatesCase {
  using T = T_;
  using Args = GatedDeltaRatesArgs<T>;

  std::int64_t tokens = 1, heads = 1;
  GatedDeltaRatesArithmetic arithmetic = GatedDeltaRatesArithmetic::kFloat32;
  bool log_decay = false;
  std::vector<T> update_logits{}, decay_inputs{};
  std::vector<float> a_log{}, dt_bias{};

  std::int64_t size() const { return tokens * heads; }

  void fill(Random& random) {
    update_logits = random.normal<T>(size(), 3);
    decay_inputs = random.normal<T>(size(), 3);
    a_log = random.normal<float>(heads, 1.5);
    dt_bias = random.normal<float>(heads, 2);
  }

  Args args(T* update_rates, float* decay_factors) const {
    return {.update_logits = view_of<2>(update_logits, {tokens, heads}),
            .decay_inputs = view_of<2>(decay_inputs, {tokens, heads}),
            .a_log = view_of<1>(a_log, {heads}),
            .dt_bias = view_of<1>(dt_bias, {heads}),
            .update_rates = {update_rates, {tokens, heads}},
            .decay_factors = {decay_factors, {tokens, heads}},
            .arithmetic = arithmetic,
            .log_decay = log_decay};
  }

  // On the backend that is tested.
  static void call(const Cpu& cpu, const Args& args) {
    run_on(cpu, args, [](const auto& device, const Args& to) { gated_delta_rates(device, to); });
  }
  RatesOutputs<T> run(const Cpu& cpu = {}) const {
    Buffer<T> update_rates(size());
    Buffer<float> decay_factors(size());
    call(cpu, args(update_rates.data(), decay_factors.data()));
    return {update_rates.values(), decay_factors.values()};
  }
  RatesOutputs<T> composed() const {
    Buffer<T> update_rates(size());
    Buffer<float> decay_factors(size());
    reference::ComposedRatesArrays<T> arrays;
    reference::gated_delta_rates_composed(args(update_rates.data(), decay_factors.data()), arrays);
    return {update_rates.values(), decay_factors.values()};
  }
  RatesOutputs<double, double> reference() const {
    const auto count = static_cast<std::size_t>(size());
    RatesOutputs<double, double> outputs{std::vector<double>(count), std::vector<double>(count)};
    reference::gated_delta_rates(args(nullptr, nullptr),
                                 {outputs.update_rates.data(), {tokens, heads}},
                                 {outputs.decay_factors.data(), {tokens, heads}});
    return outputs;
  }
  // Tokens [begin, end) as a call of their own.
  RatesCase part(std::int64_t begin, std::int64_t end) const {
    RatesCase other = *this;
    other.tokens = end - begin;
    other.update_logits = rows_of(update_logits, begin, end);
    other.decay_inputs = rows_of(decay_inputs, begin, end);
    return other;
  }
  template <class E>
  std::vector<E> rows_of(const std::vector<E>& values, std::int64_t begin, std::int64_t end) const {
    return {values.begin() + begin * heads, values.begin() + end * heads};
  }
};

// Calls body with an empty case of each type.
template <class Body>
void for_each_rates_type(const Body& body) {
  const auto named = [&](const char* name, auto problem) {
    SCOPED_TRACE(name);
    body(problem);
  };
  named("float32", RatesCase<float>());
  named("float16", RatesCase<Float16>());
  named("bfloat16", RatesCase<BFloat16>());
}

// A small call of any geometry, arithmetic and form of the decay.
template <class Case>
Case any_rates(Random& random, Case c) {
  constexpr std::int64_t kHeads[] = {1, 2, 3, 4, 7, 16, 17, 31, 32, 48, 64, 100, 1024, 1030, 2500};
  c.heads = kHeads[random.integer(0, std::ssize(kHeads) - 1)];
  c.tokens = random.integer(0, 1 + 4000 / c.heads);
  c.arithmetic = random.integer(0, 1) ? GatedDeltaRatesArithmetic::kActivation
                                      : GatedDeltaRatesArithmetic::kFloat32;
  c.log_decay = random.integer(0, 1) != 0;
  c.fill(random);
  return c;
}

// Equal bits, except that any NaN equals any other: which payload an operation on two NaNs keeps is
// the processor's choice of operand.
template <class T>
::testing::AssertionResult same_numbers(const std::vector<T>& actual,
                                        const std::vector<T>& expected) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure() << "has " << actual.size() << " elements";
  }
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const float is = to_float(actual[i]), wanted = to_float(expected[i]);
    const bool same =
        wanted != wanted ? is != is : std::memcmp(&actual[i], &expected[i], sizeof(T)) == 0;
    if (same) continue;
    return ::testing::AssertionFailure()
           << "element " << i << " is " << is << ", expected the bits of " << wanted;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace deltaworks::testing

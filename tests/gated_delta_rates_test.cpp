// Values and laws of gated_delta_rates on every backend and type.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "deltaworks/gated_delta_net.hpp"
#include "support/gated_delta_net_problem.hpp"
#include "support/gated_delta_rates_case.hpp"
#include "support/targets.hpp"

namespace deltaworks::testing {
namespace {

using GatedDeltaRates = OnBackend;
INSTANTIATE_TEST_SUITE_P(Targets, GatedDeltaRates, every_backend(), target_name);

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_P(GatedDeltaRates, KnownValues) {
  // exp(a_log) is 1 and 3; 2^−1 = exp(−softplus(0)), and softplus(±100) is 100 and 0.
  RatesCase<float> c{.tokens = 3, .heads = 2};
  c.update_logits = {0, -0.0f, 200, -200, kInfinity, -kInfinity};
  c.decay_inputs = {0, -2, 98, 98, -102, -102};
  c.a_log = {0, 1.0986122886681098f};
  c.dt_bias = {0, 2};
  const auto factors = c.run();
  EXPECT_EQ(factors.update_rates, (std::vector<float>{0.5, 0.5, 1, 0, 1, 0}));
  EXPECT_TRUE(near(factors.decay_factors, {0.5, 0.125, 2.7e-43, 0, 1, 1}));
  c.log_decay = true;
  const auto logs = c.run();
  EXPECT_TRUE(same_bits(logs.update_rates, factors.update_rates));
  EXPECT_TRUE(
      near(logs.decay_factors, {-0.69314718055994531, -2.0794415416798357, -98, -300, 0, 0}));
}

TEST_P(GatedDeltaRates, MatchesTheReference) {
  Random random(1);
  for_each_rates_type([&](auto type) {
    for (int round = 0; round < 40; ++round) {
      const auto c = any_rates(random, type);
      const auto actual = c.run();
      const auto expected = c.reference();
      ASSERT_TRUE(near(actual.update_rates, expected.update_rates)) << c.heads << " heads";
      // The activation mode's two steps are off by half a unit of T each, the sum's error grows by its
      // magnitude in the log decay's, and a factor takes at most 1 / e of that.
      using T = typename decltype(c)::T;
      const bool once = c.arithmetic == GatedDeltaRatesArithmetic::kFloat32;
      const double factor = once ? 1 : 2 * tolerance<T>() / tolerance<float>();
      ASSERT_TRUE(near(actual.decay_factors, expected.decay_factors, factor));
    }
  });
}

TEST_P(GatedDeltaRates, TheFactorIsTheExponentialOfTheLogDecay) {
  Random random(3);
  RatesCase<float> c{};
  for (int round = 0; round < 20; ++round) {
    c = any_rates(random, c);
    c.log_decay = false;
    const auto factors = c.run();
    c.log_decay = true;
    const auto logs = c.run();
    std::vector<double> expected;
    for (const float log_decay : logs.decay_factors) expected.push_back(std::exp(log_decay));
    ASSERT_TRUE(near(factors.decay_factors, expected));
    ASSERT_TRUE(same_bits(factors.update_rates, logs.update_rates));
  }
}

// gated_delta_net with its gates on raw inputs, and on the rates and log decays computed first.
template <class T, class G>
void expect_the_same_delta_net(Random& random) {
  auto options = random_options(random);
  options.update_rule = UpdateRule::kGatedDelta;
  options.decay_per_key = options.dt_bias_per_key = false;
  options.gate_activation = GateActivation::kSoftplus;
  options.beta_activation = BetaActivation::kSigmoid;
  const GatedDeltaNetProblem<T, G> raw(random, options);
  RatesCase<float> rates{.tokens = raw.tokens(), .heads = raw.value_heads(), .log_decay = true};
  for (const G x : raw.beta) rates.update_logits.push_back(to_float(x));
  for (const G x : raw.decay) rates.decay_inputs.push_back(to_float(x));
  rates.a_log = raw.a_log, rates.dt_bias = raw.dt_bias;
  const auto computed = rates.run();

  GatedDeltaNetProblem<T, float> given;
  given.o = options;
  given.o.gate_activation = GateActivation::kNone;
  given.o.beta_activation = BetaActivation::kNone;
  given.query = raw.query, given.key = raw.key, given.value = raw.value;
  given.decay = computed.decay_factors, given.beta = computed.update_rates;
  given.initial_state = raw.initial_state, given.capture_count = raw.capture_count;
  const auto actual = given.run();
  const auto expected = raw.run();
  ASSERT_TRUE(same_bits(actual.output, expected.output));
  ASSERT_TRUE(same_bits(actual.final_state, expected.final_state));
  ASSERT_TRUE(same_bits(actual.state_update, expected.state_update));
}

TEST_P(GatedDeltaRates, GatedDeltaNetComputesTheSameBits) {
  Random random(4);
  for (int round = 0; round < 30; ++round) {
    ASSERT_NO_FATAL_FAILURE((expect_the_same_delta_net<float, float>(random)));
    ASSERT_NO_FATAL_FAILURE((expect_the_same_delta_net<BFloat16, float>(random)));
    ASSERT_NO_FATAL_FAILURE((expect_the_same_delta_net<Float16, Float16>(random)));
    ASSERT_NO_FATAL_FAILURE((expect_the_same_delta_net<BFloat16, BFloat16>(random)));
  }
}

TEST_P(GatedDeltaRates, SplitsAndThreadsChangeNoBit) {
  Random random(5);
  Threads threads(4);
  for_each_rates_type([&](auto type) {
    for (int round = 0; round < 12; ++round) {
      auto c = any_rates(random, type);
      const auto whole = c.run();
      const std::int64_t cut = random.integer(0, c.tokens);
      for (const auto& [begin, end] : {std::pair{std::int64_t{0}, cut}, std::pair{cut, c.tokens}}) {
        const auto part = c.part(begin, end).run();
        ASSERT_TRUE(same_bits(part.update_rates, c.rows_of(whole.update_rates, begin, end)));
        ASSERT_TRUE(same_bits(part.decay_factors, c.rows_of(whole.decay_factors, begin, end)));
      }
    }
    auto c = type;
    c.tokens = 1500, c.heads = 48;
    c.fill(random);
    const auto one = c.run(), many = c.run(threads.cpu());
    ASSERT_TRUE(same_bits(many.update_rates, one.update_rates));
    ASSERT_TRUE(same_bits(many.decay_factors, one.decay_factors));
  });
}

TEST_P(GatedDeltaRates, NanStaysInItsElement) {
  Random random(6);
  for_each_rates_type([&](auto type) {
    using T = typename decltype(type)::T;
    auto c = type;
    c.tokens = 9, c.heads = 37;
    c.fill(random);
    const auto clean = c.run();
    for (std::size_t i = 0; i < c.update_logits.size(); i += 2) c.update_logits[i] = poison<T>();
    for (std::size_t i = 0; i < c.decay_inputs.size(); i += 3) c.decay_inputs[i] = poison<T>();
    const auto dirty = c.run();
    for (std::size_t i = 0; i < c.update_logits.size(); ++i) {
      const float rate = to_float(dirty.update_rates[i]), decay = dirty.decay_factors[i];
      ASSERT_EQ(rate != rate, i % 2 == 0) << i;
      ASSERT_EQ(decay != decay, i % 3 == 0) << i;
      ASSERT_TRUE(i % 2 == 0 || rate == to_float(clean.update_rates[i])) << i;
      ASSERT_TRUE(i % 3 == 0 || decay == clean.decay_factors[i]) << i;
    }
  });
}

// Rows may be further apart than they are long; what lies between is neither read nor written.
TEST_P(GatedDeltaRates, PitchedRowsGiveTheSameBits) {
  Random random(7);
  for_each_rates_type([&](auto type) {
    using T = typename decltype(type)::T;
    for (const std::int64_t heads : {5, 48, 1100}) {
      auto c = type;
      c.tokens = 6, c.heads = heads;
      c.fill(random);
      const auto pitched = [&](const auto& values, std::int64_t rows, std::int64_t gap) {
        auto wide = values;
        using E = std::decay_t<decltype(values[0])>;
        const std::int64_t size = std::ssize(values) / rows;
        wide.assign(values.size() + static_cast<std::size_t>(rows * gap), poison<E>());
        for (std::int64_t r = 0; r < rows; ++r) {
          std::copy_n(values.begin() + r * size, size, wide.begin() + r * (size + gap));
        }
        return wide;
      };
      // Both inputs from one projection, the parameters from a table.
      std::vector<T> projection(static_cast<std::size_t>(2 * c.size()));
      for (std::int64_t r = 0; r < c.tokens; ++r) {
        std::copy_n(c.update_logits.begin() + r * heads, heads, projection.begin() + 2 * r * heads);
        std::copy_n(c.decay_inputs.begin() + r * heads, heads,
                    projection.begin() + (2 * r + 1) * heads);
      }
      const auto a_log = pitched(c.a_log, heads, 1), dt_bias = pitched(c.dt_bias, heads, 2);
      Buffer<T> update_rates(c.tokens * (heads + 3));
      Buffer<float> decay_factors(c.tokens * (heads + 4));
      auto args = c.args(nullptr, nullptr);
      args.update_logits = {projection.data(), {c.tokens, heads}, 2 * heads};
      args.decay_inputs = {projection.data() + heads, {c.tokens, heads}, 2 * heads};
      args.a_log = {a_log.data(), {heads}, 2};
      args.dt_bias = {dt_bias.data(), {heads}, 3};
      args.update_rates = {update_rates.data(), {c.tokens, heads}, heads + 3};
      args.decay_factors = {decay_factors.data(), {c.tokens, heads}, heads + 4};
      c.call(Cpu{}, args);
      const auto dense = c.run();
      EXPECT_TRUE(same_bits(update_rates.values(), pitched(dense.update_rates, c.tokens, 3)));
      EXPECT_TRUE(same_bits(decay_factors.values(), pitched(dense.decay_factors, c.tokens, 4)));
    }
  });
}

TEST_P(GatedDeltaRates, ASmallCallIsOneTask) {
  if (is_on_cuda()) GTEST_SKIP() << "tasks are the CPU's";
  int calls = 0;
  const ParallelFor counting{
      .run =
          [](void* pool, std::int64_t tasks, ParallelFor::Task task, void* data) {
            ++*static_cast<int*>(pool);
            for (std::int64_t i = 0; i < tasks; ++i) task(data, i);
          },
      .pool = &calls};
  Random random(8);
  RatesCase<float> c{.tokens = 64, .heads = 48};
  c.fill(random);
  c.run(Cpu{counting});
  EXPECT_EQ(calls, 0);
  c.tokens = 4096;
  c.fill(random);
  c.run(Cpu{counting});
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace deltaworks::testing

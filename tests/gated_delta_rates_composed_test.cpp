// gated_delta_rates has the bits of its composed twin, on usual and on extreme numbers.
#include <gtest/gtest.h>

#include <bit>
#include <limits>

#include "support/gated_delta_rates_case.hpp"
#include "support/targets.hpp"

namespace deltaworks::testing {
namespace {

using GatedDeltaRatesBits = OnBackend;
INSTANTIATE_TEST_SUITE_P(Targets, GatedDeltaRatesBits, every_backend(), target_name);

constexpr GatedDeltaRatesArithmetic kModes[] = {GatedDeltaRatesArithmetic::kFloat32,
                                                GatedDeltaRatesArithmetic::kActivation};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Parameters of heads: usual ones, and every pair of extreme ones.
void set_parameters(std::vector<float>& a_log, std::vector<float>& dt_bias) {
  constexpr float kEdges[] = {0.0f,    -0.0f, 1.0f,   -2.5f,    0x1p-149f, -0x1p-127f, 88.7f, 89.0f,
                              -104.0f, 1e30f, -1e30f, kLargest, kInfinity, -kInfinity, kNan};
  a_log = {0.7f, -1.3f, 2.1f};
  dt_bias = {-3.7f, 0.4f, 1.9f};
  for (const float a : kEdges) {
    for (const float b : kEdges) a_log.push_back(a), dt_bias.push_back(b);
  }
}

template <class Case>
void expect_composed(Case c, const char* what) {
  for (const auto mode : kModes) {
    for (const bool log_decay : {false, true}) {
      c.arithmetic = mode, c.log_decay = log_decay;
      const auto actual = c.run(), expected = c.composed();
      ASSERT_TRUE(same_numbers(actual.update_rates, expected.update_rates)) << what;
      ASSERT_TRUE(same_numbers(actual.decay_factors, expected.decay_factors)) << what;
    }
  }
}

// Every pattern of a 16-bit type as a logit and as the decay input of heads with usual parameters,
// and of some with extreme ones; each run draws others.
template <class T>
void expect_composed_on_every_pattern() {
  Random random(9);
  RatesCase<T> c{};
  std::vector<float> a_log, dt_bias;
  set_parameters(a_log, dt_bias);
  c.tokens = 1 << 16, c.heads = 8;
  for (std::size_t head = 0; head < 8; ++head) {
    const auto at =
        head < 3 ? head : static_cast<std::size_t>(random.integer(3, std::ssize(a_log) - 1));
    c.a_log.push_back(a_log[at]), c.dt_bias.push_back(dt_bias[at]);
  }
  for (std::int64_t pattern = 0; pattern < c.tokens; ++pattern) {
    c.update_logits.insert(c.update_logits.end(), 8, T{static_cast<std::uint16_t>(pattern)});
  }
  c.decay_inputs = c.update_logits;
  expect_composed(c, "every pattern");
}

TEST_P(GatedDeltaRatesBits, EqualsItsComposedTwinOnEveryBFloat16) {
  expect_composed_on_every_pattern<BFloat16>();
}
TEST_P(GatedDeltaRatesBits, EqualsItsComposedTwinOnEveryFloat16) {
  expect_composed_on_every_pattern<Float16>();
}

TEST_P(GatedDeltaRatesBits, EqualsItsComposedTwinOnFloat32) {
  Random random(2);
  RatesCase<float> c{};
  set_parameters(c.a_log, c.dt_bias);
  c.heads = std::ssize(c.a_log), c.tokens = 64;
  constexpr float kEdges[] = {0.0f,     -0.0f,     0x1p-149f, -0x1p-149f, 0x1p-127f, -0x1p-126f,
                              1e-8f,    -0.5f,     15.9f,     -16.6f,     87.3f,     -87.4f,
                              88.72f,   88.73f,    -103.97f,  -104.1f,    1e30f,     -1e30f,
                              kLargest, -kLargest, kInfinity, -kInfinity, kNan,      -kNan};
  for (std::int64_t i = 0; i < c.size(); ++i) {
    const auto any = static_cast<std::uint32_t>(random.integer(0, 0xffffffff));
    const float edge = kEdges[i / c.heads % std::ssize(kEdges)];
    c.decay_inputs.push_back(i / c.heads < 48 ? edge : std::bit_cast<float>(any));
    c.update_logits.push_back(c.decay_inputs.back());
  }
  expect_composed(c, "edges");
  for (int round = 0; round < 20; ++round) expect_composed(any_rates(random, c), "usual numbers");
}

TEST_P(GatedDeltaRatesBits, NumbersNeverGiveNan) {
  RatesCase<float> c{};
  set_parameters(c.a_log, c.dt_bias);
  c.heads = std::ssize(c.a_log);
  constexpr float kInputs[] = {0,        -0.0f,     0x1p-149f, 100,       -100,
                               kLargest, -kLargest, kInfinity, -kInfinity};
  c.tokens = std::ssize(kInputs);
  for (const float x : kInputs) {
    c.decay_inputs.insert(c.decay_inputs.end(), c.a_log.size(), x);
  }
  c.update_logits = c.decay_inputs;
  for (const bool log_decay : {false, true}) {
    c.log_decay = log_decay;
    const auto outputs = c.run();
    for (std::int64_t i = 0; i < c.size(); ++i) {
      const auto at = static_cast<std::size_t>(i), head = static_cast<std::size_t>(i % c.heads);
      const float rate = outputs.update_rates[at], decay = outputs.decay_factors[at];
      ASSERT_TRUE(rate >= 0 && rate <= 1) << c.update_logits[at];
      if (c.a_log[head] != c.a_log[head] || c.dt_bias[head] != c.dt_bias[head]) {
        ASSERT_TRUE(decay != decay);
      } else {
        ASSERT_TRUE(log_decay ? decay <= 0 : decay >= 0 && decay <= 1)
            << decay << " of " << c.decay_inputs[at] << ", " << c.a_log[head] << ", "
            << c.dt_bias[head];
      }
    }
  }
}

}  // namespace
}  // namespace deltaworks::testing

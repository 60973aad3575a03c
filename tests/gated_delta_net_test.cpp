// gated_delta_net and its replay: values against the float64 reference, golden ones, extreme ones.
#include "deltaworks/gated_delta_net.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "deltaworks/error.hpp"
#include "reference/gated_delta_net.hpp"
#include "support/compare.hpp"
#include "support/gated_delta_net_problem.hpp"
#include "support/targets.hpp"

namespace deltaworks {
namespace {

using reference::tolerance;
using testing::Buffer;
using testing::call_replay;
using testing::GatedDeltaNetOptions;
using testing::GatedDeltaNetProblem;
using testing::near;
using testing::Random;
using testing::random_options;
using testing::view_of;

constexpr int kRounds = 40;

class GatedDeltaNetTest : public testing::OnBackend {};

// Of fewer rows than four, all sums can cancel (a lone state: one call in a hundred): the errors of
// their terms stay, and no scale to compare them with.
GatedDeltaNetOptions some_rows(Random& random) {
  GatedDeltaNetOptions o;
  do {
    o = random_options(random);
  } while (o.key_heads * o.heads_per_key * o.value_dim < 4);
  return o;
}

double largest(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

// How much larger than the output the terms of its sums are, products of a query and a state: a lone
// token's outputs are all multiples of query · key, and small when that cancels; their errors are not.
double cancellation(const GatedDeltaNetOptions& o, const reference::GatedDeltaNetResult& expected) {
  const double unit = 1 / std::sqrt(static_cast<double>(o.key_dim));
  const double factors = (o.scale != 0 ? o.scale : unit) * (o.qk_l2_norm ? unit : 1);
  const double term = factors * largest(expected.final_state);
  return std::max(1.0, term / std::max(1e-3, largest(expected.output)));
}

template <class T, class G>
void expect_like_reference(std::uint64_t stream) {
  Random random(stream);
  const GatedDeltaNetProblem<T, G> problem(random, some_rows(random));
  SCOPED_TRACE(problem.description());
  const auto expected = reference::gated_delta_net(problem.args());
  const auto actual = problem.run();
  // A recurrence of n tokens adds the errors of n tokens.
  const double factor = 1 + 0.1 * static_cast<double>(problem.tokens());
  // What cancels adds to a float32 sum's error, not to its rounding to 16 bits.
  const double sums = factor * (cancellation(problem.o, expected) - 1);
  ASSERT_TRUE(near(actual.output, expected.output,
                   (sizeof(T) == 2 ? 1.01 : factor) + sums * tolerance<float>() / tolerance<T>()))
      << "output";
  ASSERT_TRUE(near(actual.final_state, expected.final_state, factor)) << "final_state";
  ASSERT_TRUE(near(actual.state_update, expected.state_update, factor)) << "state_update";
}

TEST_P(GatedDeltaNetTest, MatchesTheReference) {
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    ASSERT_NO_FATAL_FAILURE((expect_like_reference<float, float>(100 + round)));
    ASSERT_NO_FATAL_FAILURE((expect_like_reference<Float16, float>(200 + round)));
    ASSERT_NO_FATAL_FAILURE((expect_like_reference<BFloat16, float>(300 + round)));
    ASSERT_NO_FATAL_FAILURE((expect_like_reference<Float16, Float16>(400 + round)));
    ASSERT_NO_FATAL_FAILURE((expect_like_reference<BFloat16, BFloat16>(500 + round)));
  }
}

// The widest keys that fit a task's stack, and one that does not.
TEST_P(GatedDeltaNetTest, ServesTheWidestKeys) {
  for (const bool per_key : {false, true}) {
    for (const std::int64_t key_dim : {256, 2047, 2048}) {
      Random random(700 + key_dim);
      const GatedDeltaNetProblem<float> problem(
          random,
          {.cu_seqlens = {0, 3}, .key_dim = key_dim, .value_dim = 11, .decay_per_key = per_key});
      const auto expected = reference::gated_delta_net(problem.args());
      const auto actual = problem.run();
      EXPECT_TRUE(near(actual.output, expected.output)) << key_dim;
      EXPECT_TRUE(near(actual.final_state, expected.final_state)) << key_dim;
    }
  }
  Random random(700);
  const GatedDeltaNetProblem<float> wide(random, {.cu_seqlens = {0, 1}, .key_dim = 2049});
  EXPECT_THROW(wide.run(), InvalidArgument);
}

TEST_P(GatedDeltaNetTest, GoldenValues) {
  GatedDeltaNetProblem<float> problem;
  problem.o = {.cu_seqlens = {0, 1}, .key_dim = 2, .value_dim = 2, .qk_l2_norm = false, .scale = 1};
  problem.query = {0, 1};
  problem.key = {1, 0};
  problem.value = {5, 6};
  problem.decay = {std::log(0.5f)};
  problem.beta = {1};
  problem.initial_state = {1, 2, 3, 4};
  const auto result = problem.run();
  EXPECT_EQ(result.final_state, (std::vector<float>{5, 1, 6, 2}));
  EXPECT_EQ(result.output, (std::vector<float>{1, 2}));
}

// In the kernel of each shape: one token for each sequence, several, other extents.
TEST_P(GatedDeltaNetTest, AbsentBetaIsOne) {
  using Offsets = std::vector<std::int32_t>;
  for (const std::int64_t key_dim : {20, 128}) {
    for (const Offsets& offsets : {Offsets{0, 1, 2}, Offsets{0, 3, 20}}) {
      Random random(800);
      GatedDeltaNetProblem<BFloat16> problem(
          random, {.cu_seqlens = offsets, .key_dim = key_dim, .value_dim = 64});
      SCOPED_TRACE(problem.description());
      std::fill(problem.beta.begin(), problem.beta.end(), 1.0f);
      const auto expected = problem.run();
      problem.beta.clear();
      EXPECT_EQ(problem.run(), expected);
    }
  }
}

// The capsule's golden vector of ONNX Runtime's own replay.
TEST_P(GatedDeltaNetTest, ReplayGoldenValues) {
  const std::vector<float> state(8, 4.0f);
  const std::vector<float> update{0.5f,         0.25f, 1, 0.5f, 1, 1, /*keys*/ 2, 3, 4, 5, 1, 1,
                                  /*deltas*/ 1, 2,     3, 4,    5, 6, 7,          8, 0, 0, 0, 0};
  const std::vector<std::int32_t> count{2};
  Buffer<float> result(8);
  call_replay(Cpu{}, {.initial_state = view_of<4>(state, {1, 2, 2, 2}),
                      .state_update = view_of<2>(update, {1, 24}),
                      .count = view_of<1>(count, {1}),
                      .final_state = result.view<4>({1, 2, 2, 2}),
                      .key_heads = 1,
                      .state_update_capacity = 3});
  EXPECT_EQ(result.values(), (std::vector<float>{24, 30, 30, 38, 31.5f, 40, 36.5f, 46.5f}));
}

// Extreme gates: factors of 0 and 1, never NaN.
TEST_P(GatedDeltaNetTest, ExtremeGatesGiveNoNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> extremes{-kInfinity, -3e38f, -1000, -1e-40f,  0,
                                    1e-40f,     1000,   3e38f, kInfinity};
  Random random(9100);
  for (const auto gate : {GateActivation::kSoftplus, GateActivation::kSigmoid}) {
    for (const float a_log : extremes) {
      for (const float dt_bias : extremes) {
        GatedDeltaNetProblem<float> problem(random, {.cu_seqlens = {0, 9},
                                                     .gate_activation = gate,
                                                     .beta_activation = BetaActivation::kSigmoid});
        problem.decay = problem.beta = extremes;
        problem.a_log = {a_log};
        problem.dt_bias = {dt_bias};
        for (const float x : problem.run().final_state)
          ASSERT_TRUE(std::isfinite(x)) << a_log << " " << dt_bias;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, GatedDeltaNetTest, testing::every_backend(),
                         testing::target_name);

}  // namespace
}  // namespace deltaworks

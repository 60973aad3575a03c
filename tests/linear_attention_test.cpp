// linear_attention: values against the float64 reference, golden ones, the widest keys, its memory.
#include "deltaworks/linear_attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "deltaworks/error.hpp"
#include "reference/linear_attention.hpp"
#include "support/compare.hpp"
#include "support/linear_attention_problem.hpp"
#include "support/targets.hpp"

namespace deltaworks {
namespace {

using testing::Buffer;
using testing::LinearAttentionOptions;
using testing::LinearAttentionProblem;
using testing::near;
using testing::Random;
using testing::random_linear_attention;
using testing::same_bits;

constexpr int kRounds = 40;

class LinearAttentionTest : public testing::OnTarget {};

template <class T, class S>
void expect_like_reference(std::uint64_t stream) {
  Random random(stream);
  LinearAttentionOptions options = random_linear_attention(random);
  // The allowance is relative to the largest output: a few of them may all cancel to next to nothing.
  if (options.sequences * options.length * options.value_dim < 16) options.value_dim += 16;
  const LinearAttentionProblem<T, S> problem(random, options);
  const auto expected = reference::linear_attention(problem.args());
  const auto actual = problem.run();
  // A recurrence of n tokens adds the errors of n tokens.
  const double factor = 1 + 0.1 * static_cast<double>(problem.o.length);
  ASSERT_TRUE(near(actual.output, expected.output, sizeof(T) == 2 ? 1.01 : factor)) << "output";
  ASSERT_TRUE(near(actual.present_state, expected.present_state, sizeof(S) == 2 ? 1.01 : factor))
      << "present_state";
}

TEST_P(LinearAttentionTest, MatchesTheReference) {
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
TEST_P(LinearAttentionTest, ServesTheWidestKeys) {
  for (const bool per_key : {false, true}) {
    for (const std::int64_t key_dim : {256, 513, 1025, 2047, 2048}) {
      Random random(700 + key_dim);
      // One token passes 256 columns at a time.
      const bool alone = key_dim == 513;
      const LinearAttentionProblem<float> problem(random, {.length = alone ? 1 : 9,
                                                           .q_num_heads = 2,
                                                           .key_dim = key_dim,
                                                           .value_dim = alone ? 300 : 11,
                                                           .decay_per_key = per_key});
      const auto expected = reference::linear_attention(problem.args());
      const auto actual = problem.run();
      EXPECT_TRUE(near(actual.output, expected.output, 2)) << key_dim;
      EXPECT_TRUE(near(actual.present_state, expected.present_state, 2)) << key_dim;
    }
    Random random(800);
    const LinearAttentionProblem<float> panels(
        random, {.length = 3, .key_dim = 600, .value_dim = 40, .decay_per_key = per_key});
    EXPECT_TRUE(near(panels.run().output, reference::linear_attention(panels.args()).output, 2));
  }
  Random random(700);
  const LinearAttentionProblem<float> wide(random, {.key_dim = 2049});
  EXPECT_THROW(wide.run(), InvalidArgument);
}

// By hand: the transpose of gated_delta_net's golden values.
TEST_P(LinearAttentionTest, GoldenValues) {
  LinearAttentionProblem<float> problem;
  problem.o = {.length = 1, .key_dim = 2, .value_dim = 2, .scale = 1};
  problem.query = {0, 1};
  problem.key = {1, 0};
  problem.value = {5, 6};
  problem.decay = {std::log(0.5f)};
  problem.beta = {1};
  problem.past_state = {1, 3, 2, 4};
  const auto result = problem.run();
  EXPECT_EQ(result.present_state, (std::vector<float>{5, 6, 1, 2}));
  EXPECT_EQ(result.output, (std::vector<float>{1, 2}));
}

// Four query heads on two states, then two query heads on four states, of one dimension each:
// output = q · (state + k v).
TEST_P(LinearAttentionTest, GoldenHeadMaps) {
  LinearAttentionProblem<float> problem;
  problem.o = {.length = 1,
               .q_num_heads = 4,
               .kv_num_heads = 2,
               .key_heads = 1,
               .key_dim = 1,
               .value_dim = 1,
               .update_rule = UpdateRule::kLinear,
               .scale = 1};
  problem.query = {1, 2, 3, 4};
  problem.key = {10};
  problem.value = {1, 2};
  problem.past_state = {100, 200};
  EXPECT_EQ(problem.run().output, (std::vector<float>{110, 220, 660, 880}));
  problem.o.q_num_heads = 2;
  problem.o.kv_num_heads = 4;
  problem.o.key_heads = 2;
  problem.query = {1, 2};
  problem.key = {10, 20};
  problem.value = {1, 2, 3, 4};
  problem.past_state = {100, 200, 300, 400};
  EXPECT_EQ(problem.run().output, (std::vector<float>{110, 220, 720, 960}));
}

TEST_P(LinearAttentionTest, GatesOfOtherRulesAreNotRead) {
  Random random(800);
  for (const UpdateRule rule : {UpdateRule::kLinear, UpdateRule::kGated, UpdateRule::kDelta}) {
    LinearAttentionProblem<float> problem(random,
                                          {.kv_num_heads = 2, .key_heads = 2, .update_rule = rule});
    const auto expected = problem.run();
    auto& unread = problem.decays() ? problem.beta : problem.decay;
    std::fill(unread.begin(), unread.end(), std::numeric_limits<float>::quiet_NaN());
    Buffer<float> output(5 * 16), state(2 * 64);
    auto args = problem.args();
    args.decay = testing::view_of<3>(problem.decay, {1, 5, 2});
    args.beta = testing::view_of<3>(problem.beta, {1, 5, 2});
    args.output = output.view<3>({1, 5, 16});
    args.present_state = state.view<4>({1, 2, 8, 8});
    linear_attention(Cpu{}, args);
    EXPECT_TRUE(same_bits(output.values(), expected.output));
    EXPECT_TRUE(same_bits(state.values(), expected.present_state));
  }
}

template <class T, class S>
void expect_same_in_place() {
  Random random(900);
  const LinearAttentionProblem<T, S> problem(random, {.sequences = 2,
                                                      .length = 70,
                                                      .kv_num_heads = 3,
                                                      .key_heads = 3,
                                                      .key_dim = 12,
                                                      .value_dim = 40,
                                                      .one_beta = true});
  const auto expected = problem.run();
  Buffer<S> state(problem.past_state);
  Buffer<T> output(2 * 70 * problem.output_width());
  auto args = problem.args();
  args.output = output.template view<3>({2, 70, problem.output_width()});
  args.present_state = state.template view<4>(problem.state_extents());
  args.past_state = args.present_state;
  linear_attention(Cpu{}, args);
  EXPECT_TRUE(same_bits(output.values(), expected.output));
  EXPECT_TRUE(same_bits(state.values(), expected.present_state));
}

TEST_P(LinearAttentionTest, TheStateMayBeInPlace) {
  expect_same_in_place<float, float>();
  expect_same_in_place<BFloat16, float>();
  expect_same_in_place<Float16, Float16>();
}

// Sequences further apart than they are long, in every operand.
TEST_P(LinearAttentionTest, PitchedSequencesEqualDenseOnes) {
  Random random(1000);
  const LinearAttentionProblem<float> problem(
      random, {.sequences = 3, .length = 2, .kv_num_heads = 2, .key_heads = 2});
  const auto expected = problem.run();
  std::vector<std::vector<float>> memory;
  const auto pitched = [&](auto& view) {
    const std::int64_t size = view.row_size(), stride = size + 5;
    auto& to = memory.emplace_back(static_cast<std::size_t>(3 * stride), testing::poison<float>());
    for (std::int64_t b = 0; b < 3; ++b) std::copy_n(view.row(b), size, to.begin() + b * stride);
    view = {to.data(), view.extents(), stride};
  };
  memory.reserve(6);
  auto args = problem.args();
  pitched(args.query);
  pitched(args.key);
  pitched(args.value);
  pitched(*args.decay);
  pitched(*args.beta);
  pitched(*args.past_state);
  Buffer<float> output(3 * (2 * 16 + 3)), state(3 * (128 + 7));
  args.output = {output.data(), {3, 2, 16}, 2 * 16 + 3};
  args.present_state = {state.data(), {3, 2, 8, 8}, 128 + 7};
  linear_attention(Cpu{}, args);
  for (std::int64_t b = 0; b < 3; ++b) {
    const auto rows = [&](const auto& from, std::int64_t at, std::int64_t size) {
      return std::vector<float>(from.data() + at, from.data() + at + size);
    };
    EXPECT_TRUE(same_bits(rows(output, b * 35, 32), rows(expected.output, b * 32, 32)));
    EXPECT_TRUE(same_bits(rows(state, b * 135, 128), rows(expected.present_state, b * 128, 128)));
    EXPECT_TRUE(std::isnan(output.data()[b * 35 + 32])) << "wrote between the rows";
    EXPECT_TRUE(std::isnan(state.data()[b * 135 + 128])) << "wrote between the rows";
  }
}

TEST_P(LinearAttentionTest, EmptyCallsHandTheStateOn) {
  Random random(1100);
  LinearAttentionProblem<float, float> problem(random, {.sequences = 2, .length = 0});
  EXPECT_TRUE(same_bits(problem.run().present_state, problem.past_state));
  problem.o.past_state = false;
  EXPECT_EQ(problem.run().present_state, std::vector<float>(2 * 64));
  LinearAttentionProblem<Float16, Float16> half(random, {.sequences = 2, .length = 0});
  half.past_state[0] = Float16{0x7d01};  // a signalling NaN keeps its bits
  EXPECT_TRUE(same_bits(half.run().present_state, half.past_state));
  const LinearAttentionProblem<float> none(random, {.sequences = 0});
  EXPECT_TRUE(none.run().output.empty());
}

INSTANTIATE_TEST_SUITE_P(Targets, LinearAttentionTest, testing::every_target(),
                         testing::target_name);

}  // namespace
}  // namespace deltaworks

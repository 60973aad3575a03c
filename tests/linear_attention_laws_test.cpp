// The laws of linear_attention's bits: splits, batches, threads, neighbours, its twin with V-major
// states, 16-bit states, instruction sets.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/compare.hpp"
#include "support/gated_delta_net_problem.hpp"
#include "support/linear_attention_problem.hpp"
#include "support/targets.hpp"

namespace deltaworks {
namespace {

using testing::GatedDeltaNetProblem;
using testing::LinearAttentionOptions;
using testing::LinearAttentionProblem;
using testing::near;
using testing::Random;
using testing::random_linear_attention;
using testing::same_bits;
using testing::Threads;

constexpr int kRounds = 40;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class LinearAttentionLaws : public testing::OnTarget {};

template <class E>
std::vector<E> slice(const std::vector<E>& all, std::int64_t from, std::int64_t size) {
  return {all.begin() + from, all.begin() + from + size};
}

// Any split, token by token included: the same outputs and the same state.
template <class T>
void expect_equal_parts(int round) {
  Random random(2000 + round);
  const LinearAttentionProblem<T> problem(random, random_linear_attention(random));
  const auto whole = problem.run();
  const std::int64_t length = problem.o.length, row = problem.output_width();
  for (std::int64_t b = 0; b < problem.o.sequences; ++b) {
    auto state = problem.state_of(b);
    for (std::int64_t first = 0; first < length;) {
      const std::int64_t most = std::min<std::int64_t>(length - first, 1 + round % 7);
      const std::int64_t count = random.integer(1, most);
      const auto ran = problem.part(b, first, count, state).run();
      ASSERT_TRUE(
          same_bits(ran.output, slice(whole.output, (b * length + first) * row, count * row)))
          << "round " << round;
      state = ran.present_state;
      first += count;
    }
    const std::int64_t size = problem.state_size();
    ASSERT_TRUE(same_bits(state, slice(whole.present_state, b * size, size))) << "round " << round;
  }
}

TEST_P(LinearAttentionLaws, SplittingASequenceChangesNoBit) {
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_NO_FATAL_FAILURE(expect_equal_parts<float>(round));
    ASSERT_NO_FATAL_FAILURE(expect_equal_parts<Float16>(round));
    ASSERT_NO_FATAL_FAILURE(expect_equal_parts<BFloat16>(round));
  }
}

template <class T, class S>
void expect_alone_like_batched(int round) {
  Random random(3000 + round);
  const LinearAttentionProblem<T, S> problem(random, random_linear_attention(random));
  const auto batched = problem.run();
  const std::int64_t row = problem.o.length * problem.output_width(), size = problem.state_size();
  for (std::int64_t b = 0; b < problem.o.sequences; ++b) {
    const auto alone = problem.part(b, 0, problem.o.length, problem.state_of(b)).run();
    ASSERT_TRUE(same_bits(alone.output, slice(batched.output, b * row, row)));
    ASSERT_TRUE(same_bits(alone.present_state, slice(batched.present_state, b * size, size)));
  }
}

TEST_P(LinearAttentionLaws, BatchedEqualsAlone) {
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_NO_FATAL_FAILURE((expect_alone_like_batched<float, float>(round)));
    ASSERT_NO_FATAL_FAILURE((expect_alone_like_batched<BFloat16, BFloat16>(round)));
  }
}

TEST_P(LinearAttentionLaws, ThreadsChangeNoBit) {
  Random random(4000);
  const LinearAttentionProblem<Float16> problem(random, {.sequences = 3,
                                                         .length = 20,
                                                         .q_num_heads = 2,
                                                         .kv_num_heads = 6,
                                                         .key_heads = 2,
                                                         .key_dim = 64,
                                                         .value_dim = 64});
  const auto one = problem.run();
  for (const int count : {2, 3, 7}) {
    Threads threads(count);
    const auto many = problem.run(threads.cpu());
    ASSERT_TRUE(same_bits(many.output, one.output)) << count << " threads";
    ASSERT_TRUE(same_bits(many.present_state, one.present_state)) << count << " threads";
  }
}

// [heads, rows, columns] to [heads, columns, rows]
std::vector<float> transposed(const std::vector<float>& from, std::int64_t rows,
                              std::int64_t columns) {
  std::vector<float> to(from.size());
  const std::int64_t heads = std::ssize(from) / (rows * columns);
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < columns; ++j) {
        to[(h * columns + j) * rows + i] = from[(h * rows + i) * columns + j];
      }
    }
  }
  return to;
}

// One token from the transposed state: the same bits of the output. The state is one rounding apart, since
// gated_delta_net rounds the product before it is added.
template <class T>
void expect_output_of_gated_delta_net(const LinearAttentionProblem<T>& problem) {
  const LinearAttentionOptions& options = problem.o;
  GatedDeltaNetProblem<T, T> twin;
  twin.o = {.cu_seqlens = {0, 1},
            .key_heads = options.key_heads,
            .heads_per_key = options.kv_num_heads / options.key_heads,
            .key_dim = options.key_dim,
            .value_dim = options.value_dim,
            .update_rule = options.update_rule,
            .qk_l2_norm = false,
            .decay_per_key = options.decay_per_key,
            .scale = options.scale};
  twin.query = problem.query;
  twin.key = problem.key;
  twin.value = problem.value;
  if (problem.decays()) twin.decay = problem.decay;
  twin.beta = problem.beta;
  if (!problem.recalls()) std::fill(twin.beta.begin(), twin.beta.end(), from_float<T>(1));
  twin.initial_state = transposed(problem.past_state, options.key_dim, options.value_dim);
  const auto ours = problem.run();
  const auto theirs = twin.run();
  ASSERT_TRUE(same_bits(ours.output, theirs.output));
  const auto state = transposed(theirs.final_state, options.value_dim, options.key_dim);
  ASSERT_TRUE(near(ours.present_state, std::vector<double>(state.begin(), state.end())));
}

// A package of one kind can go on where the other stopped: every token of the twin, from the state before it.
template <class T>
void expect_outputs_of_gated_delta_net(int round) {
  Random random(5000 + round);
  auto options = random_linear_attention(random);
  options.q_num_heads = options.key_heads;
  options.one_beta = false;
  options.past_state = true;
  if (options.key_dim == 1) options.decay_per_key = false;
  const LinearAttentionProblem<T> problem(random, options);
  for (std::int64_t b = 0; b < options.sequences; ++b) {
    auto state = problem.state_of(b);
    for (std::int64_t t = 0; t < options.length; ++t) {
      const auto token = problem.part(b, t, 1, state);
      ASSERT_NO_FATAL_FAILURE(expect_output_of_gated_delta_net<T>(token));
      state = token.run().present_state;
    }
  }
}

TEST_P(LinearAttentionLaws, OutputsAreThoseOfGatedDeltaNetWithTheTransposedState) {
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    ASSERT_NO_FATAL_FAILURE(expect_outputs_of_gated_delta_net<float>(round));
    ASSERT_NO_FATAL_FAILURE(expect_outputs_of_gated_delta_net<BFloat16>(round));
  }
}

// A 16-bit state is widened, runs in float32 over the whole call, and is rounded once.
template <class T>
void expect_one_rounding(int round) {
  Random random(6000 + round);
  const LinearAttentionProblem<T, T> narrow(random, random_linear_attention(random));
  LinearAttentionProblem<T, float> wide;
  wide.o = narrow.o;
  wide.query = narrow.query;
  wide.key = narrow.key;
  wide.value = narrow.value;
  wide.decay = narrow.decay;
  wide.beta = narrow.beta;
  for (const T x : narrow.past_state) wide.past_state.push_back(to_float(x));
  const auto expected = wide.run();
  std::vector<T> rounded;
  for (const float x : expected.present_state) rounded.push_back(from_float<T>(x));
  const auto actual = narrow.run();
  ASSERT_TRUE(same_bits(actual.output, expected.output));
  ASSERT_TRUE(same_bits(actual.present_state, rounded));
}

TEST_P(LinearAttentionLaws, A16BitStateIsRoundedOnceACall) {
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    ASSERT_NO_FATAL_FAILURE(expect_one_rounding<Float16>(round));
    ASSERT_NO_FATAL_FAILURE(expect_one_rounding<BFloat16>(round));
  }
}

// A NaN in a later token, in another sequence or in another head reaches nothing.
TEST_P(LinearAttentionLaws, NanStaysInItsHeadAndItsFuture) {
  Random random(7000);
  const LinearAttentionOptions options{.sequences = 2,
                                       .length = 6,
                                       .q_num_heads = 2,
                                       .kv_num_heads = 2,
                                       .key_heads = 2,
                                       .key_dim = 20,
                                       .value_dim = 9};
  LinearAttentionProblem<float> problem(random, options);
  const auto clean = problem.run();
  const std::int64_t bad = 6 + 3;  // token 3 of sequence 1, its second head
  for (auto* operand :
       {&problem.query, &problem.key, &problem.value, &problem.decay, &problem.beta}) {
    const std::int64_t head = std::ssize(*operand) / 12 / 2;
    std::fill_n(operand->begin() + (2 * bad + 1) * head, head, kNan);
  }
  const auto dirty = problem.run();
  const std::int64_t row = problem.output_width(), size = problem.state_size();
  ASSERT_TRUE(same_bits(slice(dirty.output, 0, bad * row), slice(clean.output, 0, bad * row)));
  for (std::int64_t t = bad; t < 12; ++t)
    ASSERT_TRUE(same_bits(slice(dirty.output, t * row, 9), slice(clean.output, t * row, 9)));
  ASSERT_TRUE(same_bits(slice(dirty.present_state, 0, size + size / 2),
                        slice(clean.present_state, 0, size + size / 2)));
  EXPECT_TRUE(std::isnan(dirty.present_state.back()));
  EXPECT_TRUE(std::isnan(dirty.output.back()));
}

INSTANTIATE_TEST_SUITE_P(Targets, LinearAttentionLaws, testing::every_target(),
                         testing::target_name);

// Every target with fma gives the same bits.
TEST(LinearAttentionBits, Avx2EqualsAvx3) {
  if (!testing::has_target("AVX2") || !testing::has_target("AVX3")) {
    GTEST_SKIP() << "this processor or build lacks AVX2 or AVX3";
  }
  for (int round = 0; round < kRounds; ++round) {
    Random random(8000 + round);
    const LinearAttentionProblem<float> problem(random, random_linear_attention(random));
    set_cpu_target("AVX2");
    const auto avx2 = problem.run();
    set_cpu_target("AVX3");
    const auto avx3 = problem.run();
    set_cpu_target("");
    ASSERT_TRUE(same_bits(avx3.output, avx2.output)) << "round " << round;
    ASSERT_TRUE(same_bits(avx3.present_state, avx2.present_state)) << "round " << round;
  }
}

}  // namespace
}  // namespace deltaworks

// The chunked engine of gated_delta_net: values against the float64 reference, its own laws of bits, what it leaves to
// the recurrent engine.
// Longer than 300 lines: every law of one engine, so that none is looked for elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "contract/engine.hpp"
#include "deltaworks/gated_delta_net.hpp"
#include "reference/gated_delta_net.hpp"
#include "support/compare.hpp"
#include "support/gated_delta_net_problem.hpp"
#include "support/targets.hpp"

namespace deltaworks {
namespace {

using testing::Buffer;
using testing::GatedDeltaNetOptions;
using testing::GatedDeltaNetOutputs;
using testing::GatedDeltaNetProblem;
using testing::near;
using testing::Random;
using testing::same_bits;
using testing::Threads;
using testing::view_of;

constexpr int kRounds = 30;
constexpr std::int64_t kChunk = contract::kChunkTokens;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class GatedDeltaNetChunked : public testing::OnTarget {};

// What the chunked engine serves, and lengths around multiples of the chunk.
GatedDeltaNetOptions chunked_options(Random& random) {
  auto o = testing::random_options(random);
  o.cu_seqlens = random.cu_seqlens(random.integer(1, 3), 0, 70);
  o.decay_per_key = o.dt_bias_per_key = false;
  o.capacity = 0;
  o.engine = Engine::kChunked;
  return o;
}

template <class T>
std::vector<T> slice(const std::vector<T>& all, std::int64_t from, std::int64_t size) {
  return {all.begin() + from, all.begin() + from + size};
}

template <class T>
std::int64_t row_of(const GatedDeltaNetProblem<T>& problem) {
  return problem.value_heads() * problem.o.value_dim;
}

template <class T, class G>
void expect_like_reference(std::uint64_t stream) {
  Random random(stream);
  const GatedDeltaNetProblem<T, G> problem(random, chunked_options(random));
  const auto expected = reference::gated_delta_net(problem.args());
  const auto actual = problem.run();
  const double factor = 1 + 0.1 * static_cast<double>(problem.tokens());  // as the recurrent engine
  ASSERT_TRUE(near(actual.output, expected.output, sizeof(T) == 2 ? 1.01 : factor)) << "output";
  ASSERT_TRUE(near(actual.final_state, expected.final_state, factor)) << "final_state";
}

TEST_P(GatedDeltaNetChunked, MatchesTheReference) {
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    ASSERT_NO_FATAL_FAILURE((expect_like_reference<float, float>(100 + round)));
    ASSERT_NO_FATAL_FAILURE((expect_like_reference<Float16, float>(200 + round)));
    ASSERT_NO_FATAL_FAILURE((expect_like_reference<BFloat16, float>(300 + round)));
    ASSERT_NO_FATAL_FAILURE((expect_like_reference<Float16, Float16>(400 + round)));
    ASSERT_NO_FATAL_FAILURE((expect_like_reference<BFloat16, BFloat16>(500 + round)));
  }
}

// With one key, rate 1 and no decay a state remembers the last value alone.
TEST_P(GatedDeltaNetChunked, GoldenValues) {
  GatedDeltaNetProblem<float> problem;
  const std::int64_t tokens = 2 * kChunk;
  problem.o = {.cu_seqlens = {0, static_cast<std::int32_t>(tokens)},
               .key_dim = 2,
               .value_dim = 2,
               .update_rule = UpdateRule::kDelta,
               .qk_l2_norm = false,
               .scale = 1,
               .engine = Engine::kChunked};
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto x = static_cast<float>(t);
    for (auto* keys : {&problem.query, &problem.key}) keys->insert(keys->end(), {1, 0});
    problem.value.insert(problem.value.end(), {x * x, 3 - x});
    problem.beta.push_back(1);
  }
  problem.initial_state = {1, 2, 3, 4};
  const auto result = problem.run();
  EXPECT_EQ(result.output, problem.value);
  EXPECT_EQ(result.final_state, (std::vector<float>{31 * 31, 2, -28, 4}));
}

// Sums of log decays that lose what follows a −1000 would be off by 4e-5; a product with an inverse of a factor would
// not be a number.
TEST_P(GatedDeltaNetChunked, StrongDecaysAreExact) {
  constexpr float kDecays[] = {-1000, -0.1f, -0.1f, -0.1f, 0, -kInfinity, -3e38f, -90, -1e-3f};
  for (int round = 0; round < kRounds; ++round) {
    Random random(2000 + round);
    GatedDeltaNetProblem<float> problem(random, {.cu_seqlens = {0, 35, 51},
                                                 .key_heads = 2,
                                                 .heads_per_key = 2,
                                                 .key_dim = 32,
                                                 .value_dim = 16,
                                                 .engine = Engine::kChunked});
    for (float& decay : problem.decay) {
      const std::int64_t most = round % 3 == 0 ? 3 : 8;
      decay = kDecays[random.integer(0, most)];
    }
    const auto expected = reference::gated_delta_net(problem.args());
    const auto actual = problem.run();
    ASSERT_TRUE(near(actual.output, expected.output, 2)) << round;
    ASSERT_TRUE(near(actual.final_state, expected.final_state, 2)) << round;
  }
}

TEST_P(GatedDeltaNetChunked, ExtremeGatesGiveNoNan) {
  const std::vector<float> extremes{-kInfinity, -3e38f, -1000, -1e-40f, 0,    1e-40f,
                                    1000,       3e38f,  -1,    1,       -0.5f};
  Random random(2900);
  for (const auto gate : {GateActivation::kSoftplus, GateActivation::kSigmoid}) {
    for (const float a_log : extremes) {
      GatedDeltaNetProblem<float> problem(random, {.cu_seqlens = {0, 32},
                                                   .gate_activation = gate,
                                                   .beta_activation = BetaActivation::kSigmoid,
                                                   .engine = Engine::kChunked});
      for (std::size_t t = 0; t < problem.decay.size(); ++t) {
        problem.decay[t] = extremes[t % extremes.size()];
        problem.beta[t] = extremes[(3 * t) % extremes.size()];
      }
      problem.a_log = {a_log};
      for (const float x : problem.run().final_state) ASSERT_TRUE(std::isfinite(x)) << a_log;
    }
  }
}

// Splits at multiples of the chunk, counted from the sequence's start, and any split behind its last whole chunk.
template <class T>
void expect_equal_parts(int round) {
  Random random(3000 + round);
  const GatedDeltaNetProblem<T> problem(random, chunked_options(random));
  const auto whole = problem.run();
  const std::int64_t row = row_of(problem);
  for (std::int64_t b = 0; b < problem.sequences(); ++b) {
    const std::int64_t start = problem.o.cu_seqlens[b];
    const std::int64_t length = problem.o.cu_seqlens[b + 1] - start;
    auto state = problem.state_of(b);
    for (std::int64_t first = 0; first < length;) {
      const std::int64_t chunks = (length - first) / kChunk;
      const std::int64_t count =
          chunks > 0 ? kChunk * random.integer(1, chunks) : random.integer(1, length - first);
      const auto ran = problem.part(b, first, count, state).run();
      ASSERT_TRUE(same_bits(ran.output, slice(whole.output, (start + first) * row, count * row)));
      state = ran.final_state;
      first += count;
    }
    ASSERT_TRUE(
        same_bits(state, slice(whole.final_state, b * problem.state_size(), problem.state_size())));
  }
}

TEST_P(GatedDeltaNetChunked, SplittingAtChunksChangesNoBit) {
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    ASSERT_NO_FATAL_FAILURE(expect_equal_parts<float>(round));
    ASSERT_NO_FATAL_FAILURE(expect_equal_parts<Float16>(round));
    ASSERT_NO_FATAL_FAILURE(expect_equal_parts<BFloat16>(round));
  }
}

TEST_P(GatedDeltaNetChunked, PackedEqualsAlone) {
  for (int round = 0; round < kRounds; ++round) {
    Random random(4000 + round);
    const GatedDeltaNetProblem<BFloat16> problem(random, chunked_options(random));
    const auto packed = problem.run();
    const std::int64_t row = row_of(problem), size = problem.state_size();
    for (std::int64_t b = 0; b < problem.sequences(); ++b) {
      const std::int64_t start = problem.o.cu_seqlens[b];
      const std::int64_t length = problem.o.cu_seqlens[b + 1] - start;
      const auto alone = problem.part(b, 0, length, problem.state_of(b)).run();
      ASSERT_TRUE(same_bits(alone.output, slice(packed.output, start * row, length * row)));
      ASSERT_TRUE(same_bits(alone.final_state, slice(packed.final_state, b * size, size)));
    }
  }
}

TEST_P(GatedDeltaNetChunked, ThreadsChangeNoBit) {
  Random random(5000);
  const GatedDeltaNetProblem<Float16> problem(random, {.cu_seqlens = {0, 48, 48, 81},
                                                       .key_heads = 2,
                                                       .heads_per_key = 3,
                                                       .key_dim = 64,
                                                       .value_dim = 64,
                                                       .engine = Engine::kChunked});
  const auto one = problem.run();
  for (const int count : {2, 3, 7}) {
    Threads threads(count);
    ASSERT_EQ(problem.run(threads.cpu()), one) << count << " threads";
  }
}

// No order of summation depends on the width of a vector.
TEST(GatedDeltaNetChunkedTargets, TargetsWithFmaGiveEqualBits) {
  const auto has_fma = [](const std::string& target) {
    return target != "SCALAR" && target.substr(0, 3) != "SSE";
  };
  for (int round = 0; round < kRounds; ++round) {
    Random random(6000 + round);
    const GatedDeltaNetProblem<float> problem(random, chunked_options(random));
    std::vector<GatedDeltaNetOutputs<float>> results;
    for (const std::string& target : cpu_targets()) {
      if (!has_fma(target)) continue;
      set_cpu_target(target);
      results.push_back(problem.run());
    }
    set_cpu_target("");
    if (results.size() < 2) GTEST_SKIP() << "this processor or build has one target with fma";
    for (const auto& result : results) {
      ASSERT_TRUE(same_bits(result.output, results[0].output)) << round;
      ASSERT_TRUE(same_bits(result.final_state, results[0].final_state)) << round;
    }
  }
}

// A NaN at a token, in any operand, changes nothing before it and nothing of another sequence or, where only a head has
// it, of another head.
TEST_P(GatedDeltaNetChunked, IsCausal) {
  for (int round = 0; round < kRounds; ++round) {
    Random random(7000 + round);
    GatedDeltaNetProblem<float> problem(random, {.cu_seqlens = {0, 20, 55, 90},
                                                 .key_heads = 2,
                                                 .heads_per_key = 2,
                                                 .key_dim = 24,
                                                 .value_dim = 20,
                                                 .engine = Engine::kChunked});
    const auto clean = problem.run();
    const std::int64_t row = row_of(problem), size = problem.state_size();
    const std::int64_t token = random.integer(20, 54), head = random.integer(0, 3);
    const auto poison = [&](std::vector<float>& values, std::int64_t at, std::int64_t width) {
      values[static_cast<std::size_t>(at * width + random.integer(0, width - 1))] = kNan;
    };
    switch (round % 5) {
      case 0: poison(problem.query, token * 2 + head / 2, 24); break;
      case 1: poison(problem.key, token * 2 + head / 2, 24); break;
      case 2: poison(problem.value, token * 4 + head, 20); break;
      case 3: poison(problem.decay, token * 4 + head, 1); break;
      case 4: poison(problem.beta, token * 4 + head, 1); break;
    }
    const auto dirty = problem.run();
    ASSERT_TRUE(
        same_bits(slice(dirty.output, 0, token * row), slice(clean.output, 0, token * row)));
    ASSERT_TRUE(same_bits(slice(dirty.output, 55 * row, 35 * row),
                          slice(clean.output, 55 * row, 35 * row)));
    ASSERT_TRUE(same_bits(slice(dirty.final_state, 0, size), slice(clean.final_state, 0, size)));
    ASSERT_TRUE(same_bits(slice(dirty.final_state, 2 * size, size),
                          slice(clean.final_state, 2 * size, size)));
    const std::int64_t other = (head + 2) % 4;  // another key head
    const std::int64_t of_head = size + other * size / 4;
    ASSERT_TRUE(same_bits(slice(dirty.final_state, of_head, size / 4),
                          slice(clean.final_state, of_head, size / 4)));
    const bool is_read = round % 5 != 0;
    const bool changed =
        !same_bits(slice(dirty.final_state, size, size), slice(clean.final_state, size, size));
    ASSERT_EQ(changed, is_read) << "only a query leaves the state alone";
  }
}

// Pools, skipped and fresh sequences, in place and pitched rows: the bits of the plain call.
TEST_P(GatedDeltaNetChunked, MemoryChangesNoBit) {
  for (int round = 0; round < kRounds; ++round) {
    Random random(8000 + round);
    GatedDeltaNetOptions options = chunked_options(random);
    options.cu_seqlens = random.cu_seqlens(3, 1, 40);
    options.initial_state = true;
    const GatedDeltaNetProblem<float> problem(random, options);
    const auto plain = problem.run();
    const std::int64_t row = row_of(problem), size = problem.state_size(), n = problem.tokens();
    const std::array<std::int64_t, 4> pool{5, problem.value_heads(), options.value_dim,
                                           options.key_dim};
    // Sequence 0 from slot 4 to slot 1, sequence 1 in place in slot 3, sequence 2 skipped.
    const std::vector<std::int32_t> slots_in{4, 3, -1}, slots_out{1, 3, 0};
    Buffer<float> states(5 * size);
    std::fill_n(states.data(), 5 * size, 7.0f);
    std::copy_n(problem.initial_state.data(), size, states.data() + 4 * size);
    std::copy_n(problem.initial_state.data() + size, size, states.data() + 3 * size);
    const std::int64_t pitch = row + 5;
    Buffer<float> output(n * pitch);
    auto call = problem.args();
    call.initial_state = states.view<4>(pool);
    call.final_state = states.view<4>(pool);
    call.slots_in = view_of<1>(slots_in, {3});
    call.slots_out = view_of<1>(slots_out, {3});
    call.output = {output.data(), {n, problem.value_heads(), options.value_dim}, pitch};
    gated_delta_net(Cpu{}, call);
    const auto ran = states.values();
    EXPECT_TRUE(same_bits(slice(ran, size, size), slice(plain.final_state, 0, size)));
    EXPECT_TRUE(same_bits(slice(ran, 3 * size, size), slice(plain.final_state, size, size)));
    EXPECT_TRUE(same_bits(slice(ran, 0, size), std::vector<float>(size, 7.0f)));
    for (std::int64_t t = 0; t < n; ++t) {
      const auto expected =
          t < options.cu_seqlens[2] ? slice(plain.output, t * row, row) : std::vector<float>(row);
      ASSERT_TRUE(same_bits(slice(output.values(), t * pitch, row), expected)) << t;
    }
  }
}

// The rule of contract/engine.hpp: what is not served has the recurrent engine's bits, sequence by sequence.
TEST_P(GatedDeltaNetChunked, LeavesTheRestToTheRecurrentEngine) {
  const auto expect_recurrent = [](Random& random, const GatedDeltaNetOptions& options) {
    GatedDeltaNetProblem<float> problem(random, options);
    problem.o.engine = Engine::kChunked;
    const auto chunked = problem.run();
    problem.o.engine = Engine::kRecurrent;
    EXPECT_EQ(chunked, problem.run());
  };
  Random random(9000);
  expect_recurrent(random, {.cu_seqlens = {0, 15, 30}, .key_dim = 16});
  expect_recurrent(random, {.cu_seqlens = {0, 40}, .key_dim = 16, .decay_per_key = true});
  expect_recurrent(random, {.cu_seqlens = {0, 33}, .key_dim = 257});
  // Of three sequences the middle one captures.
  const GatedDeltaNetOptions options{
      .cu_seqlens = {0, 32, 64, 96}, .key_dim = 16, .value_dim = 16, .capacity = 4};
  GatedDeltaNetProblem<float> problem(random, options);
  problem.capture_count = {0, 2, 0};
  problem.o.engine = Engine::kRecurrent;
  const auto recurrent = problem.run();
  problem.o.engine = Engine::kChunked;
  const auto mixed = problem.run();
  problem.o.capacity = 0;
  const auto chunked = problem.run();
  const std::int64_t part = 32 * row_of(problem);
  EXPECT_TRUE(same_bits(mixed.state_update, recurrent.state_update));
  EXPECT_TRUE(same_bits(slice(mixed.output, part, part), slice(recurrent.output, part, part)));
  for (const std::int64_t b : {0, 2}) {
    EXPECT_TRUE(
        same_bits(slice(mixed.output, b * part, part), slice(chunked.output, b * part, part)));
    EXPECT_FALSE(
        same_bits(slice(mixed.output, b * part, part), slice(recurrent.output, b * part, part)));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, GatedDeltaNetChunked, testing::every_target(),
                         testing::target_name);

}  // namespace
}  // namespace deltaworks

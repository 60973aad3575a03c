// The laws of gated_delta_net's bits: splits, batches, threads, replay, neighbours, rounding.
// Longer than 300 lines: every law of one operator, so that none is looked for elsewhere.
#include "deltaworks/gated_delta_net.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#include "support/compare.hpp"
#include "support/gated_delta_net_problem.hpp"
#include "support/targets.hpp"

namespace deltaworks {
namespace {

using testing::Buffer;
using testing::call_replay;
using testing::GatedDeltaNetOptions;
using testing::GatedDeltaNetProblem;
using testing::Random;
using testing::random_options;
using testing::same_bits;
using testing::Threads;
using testing::view_of;

constexpr int kRounds = 40;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class GatedDeltaNetLaws : public testing::OnBackend {};

// Any split, token by token included: the same outputs and the same state. The whole call captures and the parts do not:
// verify = decode.
template <class T>
void expect_equal_parts(Random& random, const GatedDeltaNetOptions& options,
                        std::int64_t longest_part) {
  const GatedDeltaNetProblem<T> problem(random, options);
  const auto whole = problem.run();
  const std::int64_t row = problem.value_heads() * problem.o.value_dim;
  for (std::int64_t b = 0; b < problem.sequences(); ++b) {
    const std::int64_t start = problem.o.cu_seqlens[b];
    const std::int64_t length = problem.o.cu_seqlens[b + 1] - start;
    auto state = problem.state_of(b);
    for (std::int64_t first = 0; first < length;) {
      const std::int64_t count = random.integer(1, std::min(length - first, longest_part));
      auto part = problem.part(b, first, count, state);
      part.o.capacity = 0;
      const auto ran = part.run();
      const auto from = whole.output.begin() + (start + first) * row;
      ASSERT_TRUE(same_bits(ran.output, {from, from + count * row})) << count << " of " << length;
      state = ran.final_state;
      first += count;
    }
    const auto from = whole.final_state.begin() + b * problem.state_size();
    ASSERT_TRUE(same_bits(state, {from, from + problem.state_size()})) << length << " tokens";
  }
}

TEST_P(GatedDeltaNetLaws, SplittingASequenceChangesNoBit) {
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    Random random(1000 + round);
    const auto options = random_options(random);
    ASSERT_NO_FATAL_FAILURE(expect_equal_parts<float>(random, options, 1 + round % 7));
    ASSERT_NO_FATAL_FAILURE(expect_equal_parts<Float16>(random, options, 1 + round % 7));
    ASSERT_NO_FATAL_FAILURE(expect_equal_parts<BFloat16>(random, options, 1 + round % 7));
  }
}

// Calls so long that the rows of a state lie in the lanes of vectors, several blocks of tokens among them, against parts
// that pass in any form.
TEST_P(GatedDeltaNetLaws, SplittingALongSequenceChangesNoBit) {
  if (testing::is_on_cuda()) GTEST_SKIP() << "forms are the CPU's";
  for (int round = 0; round < kRounds / 4; ++round) {
    SCOPED_TRACE(round);
    Random random(1700 + round);
    auto options = random_options(random);
    options.cu_seqlens = random.cu_seqlens(2, 60, 210);
    // From 136 on a tile holds few rows, and not any multiple of a group's.
    options.key_dim = 8 * (round % 3 == 0 ? random.integer(17, 66) : random.integer(1, 16));
    options.value_dim = 16 * random.integer(1, 5);
    const std::int64_t longest_part = round % 2 == 0 ? 9 : 100;
    ASSERT_NO_FATAL_FAILURE(expect_equal_parts<float>(random, options, longest_part));
    ASSERT_NO_FATAL_FAILURE(expect_equal_parts<BFloat16>(random, options, longest_part));
  }
}

// An infinite delta leaves infinities, not NaNs, whatever lies behind the columns of a state.
TEST_P(GatedDeltaNetLaws, SplittingChangesNoBitAfterAnInfinity) {
  for (const std::int64_t key_dim : {1, 2, 7, 8, 9, 24}) {
    Random random(1500 + static_cast<int>(key_dim));
    GatedDeltaNetProblem<float> problem(random, {.cu_seqlens = {0, 3},
                                                 .key_dim = key_dim,
                                                 .value_dim = 3,
                                                 .update_rule = UpdateRule::kLinear,
                                                 .qk_l2_norm = false});
    problem.value[0] = std::numeric_limits<float>::infinity();
    std::fill(problem.key.begin(), problem.key.end(), 1.0f);
    std::fill(problem.query.begin(), problem.query.end(), 1.0f);
    const auto whole = problem.run();
    auto state = problem.state_of(0);
    std::vector<float> outputs;
    for (std::int64_t t = 0; t < 3; ++t) {
      const auto ran = problem.part(0, t, 1, state).run();
      outputs.insert(outputs.end(), ran.output.begin(), ran.output.end());
      state = ran.final_state;
    }
    ASSERT_TRUE(same_bits(whole.output, outputs)) << "key_dim " << key_dim;
    ASSERT_TRUE(same_bits(whole.final_state, state)) << "key_dim " << key_dim;
    EXPECT_EQ(std::count_if(state.begin(), state.end(), [](float x) { return std::isnan(x); }), 0);
  }
}

TEST_P(GatedDeltaNetLaws, PackedEqualsAlone) {
  for (int round = 0; round < kRounds; ++round) {
    Random random(2000 + round);
    const GatedDeltaNetProblem<BFloat16> problem(random, random_options(random));
    SCOPED_TRACE(problem.description());
    const auto packed = problem.run();
    for (std::int64_t b = 0; b < problem.sequences(); ++b) {
      const std::int64_t start = problem.o.cu_seqlens[b],
                         length = problem.o.cu_seqlens[b + 1] - start;
      const auto alone = problem.part(b, 0, length, problem.state_of(b)).run();
      const auto slice = [](const auto& all, std::int64_t from, std::int64_t size) {
        return std::decay_t<decltype(all)>(all.begin() + from, all.begin() + from + size);
      };
      const std::int64_t row = problem.value_heads() * problem.o.value_dim;
      ASSERT_TRUE(same_bits(alone.output, slice(packed.output, start * row, length * row)));
      ASSERT_TRUE(same_bits(alone.final_state, slice(packed.final_state, b * problem.state_size(),
                                                     problem.state_size())));
      ASSERT_TRUE(same_bits(alone.state_update, slice(packed.state_update, b * problem.update_row(),
                                                      problem.update_row())));
    }
  }
}

// A step of many sequences, whose tasks hold several heads each, against one sequence of two tokens:
// heads that pass together have the bits of heads alone, in outputs, states and capsules.
TEST_P(GatedDeltaNetLaws, HeadsThatShareATaskKeepTheirBits) {
  for (int round = 0; round < kRounds / 5; ++round) {
    Random random(2500 + round);
    const std::int64_t sequences = random.integer(8, 12);
    GatedDeltaNetOptions options{.cu_seqlens = {0},
                                 .key_heads = random.integer(1, 3),
                                 .heads_per_key = random.integer(2, 9),
                                 .key_dim = round % 3 == 0 ? 128 : 16 * random.integer(1, 5),
                                 .value_dim = 8 * random.integer(1, 12),
                                 .capacity = 2};
    for (std::int64_t b = 0; b < sequences; ++b) options.cu_seqlens.push_back(2 * b + 2);
    options.gate_activation = GateActivation::kSoftplus;
    options.beta_activation = BetaActivation::kSigmoid;
    GatedDeltaNetProblem<float> problem(random, options);
    problem.capture_count.assign(static_cast<std::size_t>(sequences), 2);
    const auto whole = problem.run();
    // All first tokens in one call: sequences of one token, state after sequence.
    GatedDeltaNetProblem<float> step = problem;
    step.o.cu_seqlens = {0};
    for (std::int64_t b = 0; b < sequences; ++b) step.o.cu_seqlens.push_back(b + 1);
    const auto first_of = [&](std::vector<float>& values) {
      const std::int64_t row = std::ssize(values) / problem.tokens();
      std::vector<float> kept;
      for (std::int64_t b = 0; b < sequences; ++b) {
        const auto from = values.begin() + 2 * b * row;
        kept.insert(kept.end(), from, from + row);
      }
      values = kept;
    };
    for (auto* values : {&step.query, &step.key, &step.value, &step.decay, &step.beta}) {
      first_of(*values);
    }
    const auto stepped = step.run();
    const std::int64_t row = problem.value_heads() * options.value_dim,
                       heads = problem.value_heads();
    const std::int64_t deltas = 2 * (heads + options.key_heads * options.key_dim);
    for (std::int64_t b = 0; b < sequences; ++b) {
      const auto slice = [](const std::vector<float>& all, std::int64_t from, std::int64_t size) {
        return std::vector<float>(all.begin() + from, all.begin() + from + size);
      };
      ASSERT_TRUE(
          same_bits(slice(stepped.output, b * row, row), slice(whole.output, 2 * b * row, row)));
      const std::int64_t capsule = b * problem.update_row();
      ASSERT_TRUE(same_bits(slice(stepped.state_update, capsule, heads),
                            slice(whole.state_update, capsule, heads)));
      ASSERT_TRUE(same_bits(slice(stepped.state_update, capsule + deltas, row),
                            slice(whole.state_update, capsule + deltas, row)));
      const auto alone = step.part(b, 0, 1, step.state_of(b)).run();
      ASSERT_TRUE(
          same_bits(slice(stepped.final_state, b * problem.state_size(), problem.state_size()),
                    alone.final_state));
    }
  }
}

TEST_P(GatedDeltaNetLaws, ThreadsChangeNoBit) {
  if (testing::is_on_cuda()) GTEST_SKIP() << "threads are the CPU's";
  Random random(3000);
  GatedDeltaNetOptions options{.cu_seqlens = {0, 3, 3, 20},
                               .key_heads = 2,
                               .heads_per_key = 3,
                               .key_dim = 64,
                               .value_dim = 64,
                               .capacity = 4};
  const GatedDeltaNetProblem<Float16> problem(random, options);
  const auto one = problem.run();
  for (const int count : {2, 3, 7}) {
    Threads threads(count);
    ASSERT_EQ(problem.run(threads.cpu()), one) << count << " threads";
  }
}

// With fewer heads than processors, tasks share the rows of a head: on five threads, and from the last task to the first.
TEST_P(GatedDeltaNetLaws, FewHeadsOnManyThreadsKeepTheirBits) {
  if (testing::is_on_cuda()) GTEST_SKIP() << "threads are the CPU's";
  const auto backwards = [](void* most, std::int64_t tasks, ParallelFor::Task task, void* data) {
    *static_cast<std::int64_t*>(most) = tasks;
    while (tasks > 0) task(data, --tasks);
  };
  bool has_split = std::thread::hardware_concurrency() < 2;
  for (int round = 0; round < kRounds; ++round) {
    Random random(3100 + round);
    const GatedDeltaNetOptions options{
        .cu_seqlens = random.cu_seqlens(random.integer(1, 2), 0, 80),
        .heads_per_key = random.integer(1, 3),
        .key_dim = round % 4 == 0 ? 100 : 128,
        .value_dim = round % 3 == 0 ? 100 : 128,
        .capacity = random.integer(0, 8),
        .decay_per_key = random.integer(0, 3) == 0,
        .engine = round % 5 == 0 ? Engine::kChunked : Engine::kRecurrent};
    const GatedDeltaNetProblem<float> problem(random, options);
    const auto expected = problem.run();
    ASSERT_EQ(problem.run(Threads(5).cpu()), expected) << "round " << round;
    std::int64_t tasks = 0;
    ASSERT_EQ(problem.run({.parallel_for = {.run = backwards, .pool = &tasks}}), expected)
        << "round " << round;
    has_split |= tasks > problem.sequences() * problem.value_heads();
  }
  EXPECT_TRUE(has_split);
}

// Replay of n captured tokens is the state after n tokens, for every n; in place too.
TEST_P(GatedDeltaNetLaws, ReplayEqualsHavingRun) {
  for (int round = 0; round < kRounds; ++round) {
    Random random(4000 + round);
    auto options = random_options(random);
    options.cu_seqlens = random.cu_seqlens(2, 0, 8);
    options.capacity = random.integer(1, 9);
    GatedDeltaNetProblem<float> problem(random, options);
    problem.capture_count = {99, 99};
    const auto captured = problem.run();
    for (std::int64_t n = 0; n <= std::min<std::int64_t>(options.capacity, 8); ++n) {
      std::vector<std::int32_t> count;
      std::vector<float> expected, initial;
      for (std::int64_t b = 0; b < 2; ++b) {
        const std::int64_t length = options.cu_seqlens[b + 1] - options.cu_seqlens[b];
        count.push_back(static_cast<std::int32_t>(std::min(n, length)));
        auto part = problem.part(b, 0, count.back(), problem.state_of(b));
        part.o.capacity = 0;
        const auto ran = part.run();
        expected.insert(expected.end(), ran.final_state.begin(), ran.final_state.end());
        const auto state = problem.state_of(b);
        initial.insert(initial.end(), state.begin(), state.end());
      }
      const std::array<std::int64_t, 4> extents{2, problem.value_heads(), options.value_dim,
                                                options.key_dim};
      Buffer<float> replayed(2 * problem.state_size()), in_place(initial);
      ReplayGatedDeltaStateArgs args{
          .initial_state = view_of<4>(initial, extents),
          .state_update = view_of<2>(captured.state_update, {2, problem.update_row()}),
          .count = view_of<1>(count, {2}),
          .final_state = replayed.view<4>(extents),
          .key_heads = options.key_heads,
          .state_update_capacity = options.capacity};
      call_replay(Cpu{}, args);
      ASSERT_TRUE(same_bits(replayed.values(), expected)) << "round " << round << ", n " << n;
      args.initial_state = args.final_state = in_place.view<4>(extents);
      call_replay(Threads(2).cpu(), args);
      ASSERT_TRUE(same_bits(in_place.values(), expected)) << "in place";
    }
  }
}

// A NaN in a later token or in another sequence reaches nothing.
void expect_nan_to_stay(std::int64_t key_dim, std::int64_t value_dim) {
  Random random(5000);
  GatedDeltaNetOptions options{.cu_seqlens = {0, 4, 10},
                               .key_heads = 2,
                               .heads_per_key = 2,
                               .key_dim = key_dim,
                               .value_dim = value_dim,
                               .capacity = 3};
  GatedDeltaNetProblem<float> problem(random, options);
  problem.capture_count = {3, 2};
  const auto clean = problem.run();
  const std::int64_t bad = 7, row = problem.value_heads() *
                                    options.value_dim;  // local token 3 of sequence 1
  for (auto* operand :
       {&problem.query, &problem.key, &problem.value, &problem.decay, &problem.beta}) {
    const std::int64_t size = static_cast<std::int64_t>(operand->size()) / problem.tokens();
    std::fill_n(operand->begin() + bad * size, size, kNan);
  }
  const auto dirty = problem.run();
  const auto prefix = [](const auto& x, std::int64_t size) {
    return std::vector<float>(x.begin(), x.begin() + size);
  };
  ASSERT_TRUE(same_bits(prefix(dirty.output, bad * row), prefix(clean.output, bad * row)));
  ASSERT_TRUE(same_bits(prefix(dirty.final_state, problem.state_size()),
                        prefix(clean.final_state, problem.state_size())));
  ASSERT_TRUE(same_bits(dirty.state_update, clean.state_update));
  EXPECT_TRUE(std::isnan(dirty.final_state.back()));
}

TEST_P(GatedDeltaNetLaws, NanStaysInItsSequenceAndItsFuture) {
  expect_nan_to_stay(20, 9);
  expect_nan_to_stay(128, 64);
}

// S = round(a S) + round(k delta) on the CPU, and fused on the GPU: the other way would show in the last bit of many
// elements. On the CPU one token passes from memory to memory, three with keys in lanes, 70 with rows in lanes.
TEST_P(GatedDeltaNetLaws, TheStateUpdateRoundsAsItsDeviceDoes) {
  constexpr int kRows = 32, kColumns = 128;
  for (const std::int32_t tokens : {1, 3, 70}) {
    Random random(9000 + tokens);
    GatedDeltaNetProblem<float> problem(
        random,
        {.cu_seqlens = {0, tokens}, .key_dim = kColumns, .value_dim = kRows, .capacity = tokens});
    problem.capture_count = {tokens};
    const auto result = problem.run();
    const float *const factor = result.state_update.data(), *const key = factor + tokens,
                       *const delta = key + tokens * kColumns;
    auto state = problem.initial_state;
    int fused_differs = 0;
    for (int t = 0; t < tokens; ++t) {
      for (int v = 0; v < kRows; ++v) {
        for (int i = 0; i < kColumns; ++i) {
          float& element = state[static_cast<std::size_t>(v * kColumns + i)];
          const float k = key[t * kColumns + i], x = delta[t * kRows + v];
          const volatile float decayed = factor[t] * element;
          const volatile float change = k * x;
          const float rounded = decayed + change, fused = std::fma(k, x, decayed);
          element = testing::is_on_cuda() ? fused : rounded;
          fused_differs += fused != rounded;
        }
      }
    }
    ASSERT_TRUE(same_bits(result.final_state, state)) << tokens << " tokens";
    EXPECT_GT(fused_differs, 100) << "the operands cannot tell the roundings apart";
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, GatedDeltaNetLaws, testing::every_backend(),
                         testing::target_name);

}  // namespace
}  // namespace deltaworks

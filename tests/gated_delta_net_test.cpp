// gated_delta_net and its replay against the float64 reference, and the laws of their bits, over
// random geometry.
#include "deltaworks/gated_delta_net.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "reference/gated_delta_net.hpp"
#include "support/compare.hpp"
#include "support/gated_delta_net_problem.hpp"
#include "support/targets.hpp"

namespace deltaworks {
namespace {

using testing::Buffer;
using testing::GatedDeltaNetOptions;
using testing::GatedDeltaNetProblem;
using testing::near;
using testing::Random;
using testing::random_options;
using testing::same_bits;
using testing::Threads;
using testing::view_of;

constexpr int kRounds = 40;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class GatedDeltaNetTest : public testing::OnTarget {};

template <class T, class G>
void expect_like_reference(std::uint64_t stream) {
  Random random(stream);
  const GatedDeltaNetProblem<T, G> problem(random, random_options(random));
  const auto expected = reference::gated_delta_net(problem.args());
  const auto actual = problem.run();
  // A recurrence of n tokens adds the errors of n tokens.
  const double factor = 1 + 0.1 * static_cast<double>(problem.tokens());
  ASSERT_TRUE(near(actual.output, expected.output, sizeof(T) == 2 ? 1.01 : factor)) << "output";
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

// Any split, token by token included: the same outputs and the same state.
TEST_P(GatedDeltaNetTest, SplittingASequenceChangesNoBit) {
  for (int round = 0; round < kRounds; ++round) {
    Random random(1000 + round);
    GatedDeltaNetProblem<float> problem(random, random_options(random));
    problem.o.capacity = 0;
    const auto whole = problem.run();
    for (std::int64_t b = 0; b < problem.sequences(); ++b) {
      const std::int64_t start = problem.o.cu_seqlens[b],
                         row = problem.value_heads() * problem.o.value_dim;
      const std::int64_t length = problem.o.cu_seqlens[b + 1] - start;
      auto state = problem.state_of(b);
      for (std::int64_t first = 0; first < length;) {
        const std::int64_t count =
            random.integer(1, std::min<std::int64_t>(length - first, 1 + round % 7));
        const auto part = problem.part(b, first, count, state).run();
        const auto from = whole.output.begin() + (start + first) * row;
        ASSERT_TRUE(same_bits(part.output, {from, from + count * row})) << "round " << round;
        state = part.final_state;
        first += count;
      }
      const auto from = whole.final_state.begin() + b * problem.state_size();
      ASSERT_TRUE(same_bits(state, {from, from + problem.state_size()})) << "round " << round;
    }
  }
}

TEST_P(GatedDeltaNetTest, PackedEqualsAlone) {
  for (int round = 0; round < kRounds; ++round) {
    Random random(2000 + round);
    const GatedDeltaNetProblem<BFloat16> problem(random, random_options(random));
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

TEST_P(GatedDeltaNetTest, ThreadsChangeNoBit) {
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

// Replay of n captured tokens is the state after n tokens, for every n; in place too.
TEST_P(GatedDeltaNetTest, ReplayEqualsHavingRun) {
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
      replay_gated_delta_state(Cpu{}, args);
      ASSERT_TRUE(same_bits(replayed.values(), expected)) << "round " << round << ", n " << n;
      args.initial_state = args.final_state = in_place.view<4>(extents);
      replay_gated_delta_state(Threads(2).cpu(), args);
      ASSERT_TRUE(same_bits(in_place.values(), expected)) << "in place";
    }
  }
}

// A NaN in a later token or in another sequence reaches nothing.
TEST_P(GatedDeltaNetTest, NanStaysInItsSequenceAndItsFuture) {
  Random random(5000);
  GatedDeltaNetOptions options{.cu_seqlens = {0, 4, 10},
                               .key_heads = 2,
                               .heads_per_key = 2,
                               .key_dim = 20,
                               .value_dim = 9,
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

TEST_P(GatedDeltaNetTest, StateInPlaceAndPools) {
  Random random(6000);
  GatedDeltaNetOptions options{.cu_seqlens = {0, 3, 5, 5, 9},
                               .key_heads = 1,
                               .heads_per_key = 2,
                               .key_dim = 12,
                               .value_dim = 5};
  GatedDeltaNetProblem<float> problem(random, options);
  const auto expected = problem.run();
  const std::int64_t size = problem.state_size(), heads = problem.value_heads();
  {
    Buffer<float> state(problem.initial_state), output(problem.tokens() * heads * 5);
    auto args = problem.args();
    args.output = output.view<3>({problem.tokens(), heads, 5});
    args.final_state = state.view<4>({4, heads, 5, 12});
    args.initial_state = args.final_state;
    gated_delta_net(Cpu{}, args);
    ASSERT_TRUE(same_bits(state.values(), expected.final_state));
  }
  // Sequence 1 is skipped; sequence 3 starts afresh although its slot holds NaN.
  const std::vector<std::int32_t> in{5, -1, 2, 0}, out{1, 3, 4, 6}, fresh{0, 0, 0, 1};
  std::vector<float> pool(7 * size, kNan);
  for (const auto& [b, slot] : {std::pair{0, 5}, std::pair{2, 2}}) {
    std::copy_n(problem.initial_state.begin() + b * size, size, pool.begin() + slot * size);
  }
  Buffer<float> written(7 * size), output(problem.tokens() * heads * 5);
  auto args = problem.args();
  args.output = output.view<3>({problem.tokens(), heads, 5});
  args.initial_state = view_of<4>(pool, {7, heads, 5, 12});
  args.final_state = written.view<4>({7, heads, 5, 12});
  args.slots_in = view_of<1>(in, {4});
  args.slots_out = view_of<1>(out, {4});
  args.fresh = view_of<1>(fresh, {4});
  gated_delta_net(Cpu{}, args);
  const auto slot = [&](std::int64_t i) {
    return std::vector<float>(written.data() + i * size, written.data() + (i + 1) * size);
  };
  const auto state = [&](std::int64_t b) {
    return std::vector<float>(expected.final_state.begin() + b * size,
                              expected.final_state.begin() + (b + 1) * size);
  };
  EXPECT_TRUE(same_bits(slot(1), state(0)));
  EXPECT_TRUE(same_bits(slot(4), state(2)));
  EXPECT_TRUE(
      same_bits(slot(6), problem.part(3, 0, 4, std::vector<float>(size)).run().final_state));
  for (const std::int64_t untouched : {0, 2, 3, 5})
    EXPECT_TRUE(std::isnan(slot(untouched)[0])) << untouched;
  for (std::int64_t i = 3 * heads * 5; i < 5 * heads * 5; ++i) EXPECT_EQ(output.data()[i], 0) << i;
}

// The packed form and any pitched rows give the bits of dense ones.
TEST_P(GatedDeltaNetTest, PackedQkvEqualsSeparate) {
  Random random(7000);
  GatedDeltaNetOptions options{
      .cu_seqlens = {0, 6}, .key_heads = 2, .heads_per_key = 2, .key_dim = 10, .value_dim = 6};
  const GatedDeltaNetProblem<Float16> problem(random, options);
  const std::int64_t keys = 20, values = 24, row = 2 * keys + values, pitch = row + 3;
  std::vector<Float16> packed(6 * pitch, from_float<Float16>(kNan));
  for (std::int64_t t = 0; t < 6; ++t) {
    std::copy_n(problem.query.begin() + t * keys, keys, packed.begin() + t * pitch);
    std::copy_n(problem.key.begin() + t * keys, keys, packed.begin() + t * pitch + keys);
    std::copy_n(problem.value.begin() + t * values, values, packed.begin() + t * pitch + 2 * keys);
  }
  Buffer<Float16> output(6 * values);
  Buffer<float> state(problem.state_size());
  auto args = problem.args();
  const auto qkv = split_qkv<const Float16>({packed.data(), {6, row}, pitch}, 2, 10, 4, 6);
  args.query = qkv.query;
  args.key = qkv.key;
  args.value = qkv.value;
  args.output = output.view<3>({6, 4, 6});
  args.final_state = state.view<4>({1, 4, 6, 10});
  gated_delta_net(Cpu{}, args);
  const auto separate = problem.run();
  EXPECT_TRUE(same_bits(output.values(), separate.output));
  EXPECT_TRUE(same_bits(state.values(), separate.final_state));
}

TEST_P(GatedDeltaNetTest, EmptyCallsHandTheStateOn) {
  Random random(8000);
  GatedDeltaNetProblem<float> problem(random, {.cu_seqlens = {0, 0, 0}, .capacity = 2});
  EXPECT_TRUE(same_bits(problem.run().final_state, problem.initial_state));
  EXPECT_EQ(problem.run().state_update, std::vector<float>(2 * problem.update_row()));
  problem.o.initial_state = false;
  EXPECT_EQ(problem.run().final_state, std::vector<float>(2 * problem.state_size()));
  GatedDeltaNetProblem<float> none(random, {.cu_seqlens = {0}});
  EXPECT_TRUE(none.run().output.empty());
}

TEST_P(GatedDeltaNetTest, InactiveCaptureIsAllZeros) {
  Random random(8100);
  const GatedDeltaNetProblem<float> problem(random, {.cu_seqlens = {0, 5}, .capacity = 3});
  Buffer<float> output(5 * 8), state(64), update(problem.update_row());
  auto args = problem.args();
  args.output = output.view<3>({5, 1, 8});
  args.final_state = state.view<4>({1, 1, 8, 8});
  args.state_update = update.view<2>({1, problem.update_row()});
  args.state_update_active = false;
  gated_delta_net(Cpu{}, args);
  EXPECT_EQ(update.values(), std::vector<float>(problem.update_row()));
  EXPECT_TRUE(same_bits(state.values(), problem.run().final_state));
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

// The capsule's golden vector of ONNX Runtime's own replay.
TEST_P(GatedDeltaNetTest, ReplayGoldenValues) {
  const std::vector<float> state(8, 4.0f);
  const std::vector<float> update{0.5f,         0.25f, 1, 0.5f, 1, 1, /*keys*/ 2, 3, 4, 5, 1, 1,
                                  /*deltas*/ 1, 2,     3, 4,    5, 6, 7,          8, 0, 0, 0, 0};
  const std::vector<std::int32_t> count{2};
  Buffer<float> result(8);
  replay_gated_delta_state(Cpu{}, {.initial_state = view_of<4>(state, {1, 2, 2, 2}),
                                   .state_update = view_of<2>(update, {1, 24}),
                                   .count = view_of<1>(count, {1}),
                                   .final_state = result.view<4>({1, 2, 2, 2}),
                                   .key_heads = 1,
                                   .state_update_capacity = 3});
  EXPECT_EQ(result.values(), (std::vector<float>{24, 30, 30, 38, 31.5f, 40, 36.5f, 46.5f}));
}

// S = round(a S) + round(k delta): a contracted product would show in the last bit of many
// elements.
TEST_P(GatedDeltaNetTest, TheStateUpdateRoundsTheProductBeforeTheSum) {
  Random random(9000);
  GatedDeltaNetOptions options{
      .cu_seqlens = {0, 1}, .key_dim = 128, .value_dim = 32, .capacity = 1, .qk_l2_norm = false};
  GatedDeltaNetProblem<float> problem(random, options);
  problem.capture_count = {1};
  const auto result = problem.run();
  const float factor = result.state_update[0];
  const float *const key = &result.state_update[1], *const delta = key + 128;
  int fused_differs = 0;
  for (int v = 0; v < 32; ++v) {
    for (int i = 0; i < 128; ++i) {
      const volatile float decayed = factor * problem.initial_state[v * 128 + i];
      const volatile float change = key[i] * delta[v];
      ASSERT_EQ(result.final_state[v * 128 + i], decayed + change);
      fused_differs += std::fma(key[i], delta[v], decayed) != decayed + change;
    }
  }
  EXPECT_GT(fused_differs, 100) << "the operands cannot tell the roundings apart";
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

INSTANTIATE_TEST_SUITE_P(Targets, GatedDeltaNetTest, testing::every_target(), testing::target_name);

// Every target with fma gives the same bits.
TEST(GatedDeltaNetBits, Avx2EqualsAvx3) {
  const auto targets = cpu_targets();
  const auto has = [&](const char* name) {
    return std::find(targets.begin(), targets.end(), name) != targets.end();
  };
  if (!has("AVX2") || !has("AVX3")) GTEST_SKIP() << "this processor or build lacks AVX2 or AVX3";
  for (int round = 0; round < kRounds; ++round) {
    Random random(10000 + round);
    const GatedDeltaNetProblem<float> problem(random, random_options(random));
    set_cpu_target("AVX2");
    const auto avx2 = problem.run();
    set_cpu_target("AVX3");
    const auto avx3 = problem.run();
    set_cpu_target("");
    ASSERT_TRUE(same_bits(avx3.output, avx2.output)) << "round " << round;
    ASSERT_TRUE(same_bits(avx3.final_state, avx2.final_state));
    ASSERT_TRUE(same_bits(avx3.state_update, avx2.state_update));
  }
}

}  // namespace
}  // namespace deltaworks

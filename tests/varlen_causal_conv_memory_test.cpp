// Pools, pitched and unaligned operands, empty calls, known values, and how a call is cut.
#include <gtest/gtest.h>

#include <map>

#include "cpu/varlen_causal_conv_plan.hpp"
#include "support/targets.hpp"
#include "support/varlen_causal_conv_case.hpp"

namespace deltaworks::testing {
namespace {

using VarlenCausalConvMemory = OnBackend;
INSTANTIATE_TEST_SUITE_P(Targets, VarlenCausalConvMemory, every_backend(), target_name);

TEST_P(VarlenCausalConvMemory, KnownValues) {
  ConvCase<float> c{.channels = 1, .width = 4, .slots = 2};
  c.weight = {1, 10, 100, 1000};
  c.cu_seqlens = {0, 2, 2};
  c.input = {4, 5};
  c.state = {1, 2, 3, 7, 8, 9};
  const auto result = run(Cpu{}, c);
  EXPECT_EQ(result.output, (std::vector<float>{4321, 5432}));
  EXPECT_EQ(result.final_state, (std::vector<float>{3, 4, 5, 7, 8, 9}));
}

TEST_P(VarlenCausalConvMemory, KnownReplay) {
  const std::vector<float> state(6, 4), update{10, 11, 20, 21, 30, 31};
  const std::vector<std::int32_t> count{2};
  Buffer<float> to(6);
  call(Cpu{}, ReplayConvStateArgs<float>{.initial_state = view_of<3>(state, {1, 2, 3}),
                                         .state_update = view_of<3>(update, {1, 3, 2}),
                                         .count = view_of<1>(count, {1}),
                                         .final_state = to.view<3>({1, 2, 3})});
  EXPECT_EQ(to.values(), (std::vector<float>{4, 10, 20, 4, 11, 21}));
}

// A signalling NaN keeps its bits: a state is copied, never computed.
TEST_P(VarlenCausalConvMemory, StatesAndCapturesAreCopiesOfTheBits) {
  for (const std::int64_t width : {2, 3, 4, 6}) {
    ConvCase<Float16> c{.channels = 37, .width = width, .slots = 1, .capacity = 2};
    c.cu_seqlens = {0, 2};
    c.counts = {2};
    c.input.assign(2 * 37, Float16{0x7c01});
    c.weight.assign(static_cast<std::size_t>(37 * width), Float16{0x3c00});
    c.state.assign(static_cast<std::size_t>(37 * c.history()), Float16{0xfc03});
    ConvResult<Float16> expected;
    reference_of(c, expected);
    const auto result = run(Cpu{}, c);
    EXPECT_TRUE(same_bits(result.final_state, expected.final_state)) << width;
    EXPECT_TRUE(same_bits(result.state_update, expected.state_update)) << width;
  }
}

TEST_P(VarlenCausalConvMemory, NegativeSlotsSkipTheSequence) {
  Random random(1);
  for (const std::int64_t width : {1, 3, 4, 5}) {
    auto c = random_case<float>(random, 19, width, 1, {0, 3, 7, 12});
    c.slots = 4;
    c.state = random.normal<float>(4 * 19 * c.history());
    c.slots_in = {2, -1, 0};
    c.slots_out = {2, -1, 3};
    c.capacity = 2;
    c.counts = {2, 2, 2};
    const std::int64_t row = 19 * c.history();
    std::fill(c.state.begin() + row, c.state.begin() + 2 * row, poison<float>());  // slot 1
    const auto result = run_in_place(Cpu{}, c);
    EXPECT_EQ(rows_of(result.output, 19, 3, 7), std::vector<float>(4 * 19, 0));
    EXPECT_EQ(rows_of(result.state_update, 2 * 19, 1, 2), std::vector<float>(2 * 19, 0));
    EXPECT_TRUE(same_bits(rows_of(result.final_state, row, 0, 2), rows_of(c.state, row, 0, 2)));
    const auto first = run(Cpu{}, part_of(c, 0, 0, 3, rows_of(c.state, row, 2, 3)));
    EXPECT_TRUE(same_bits(rows_of(result.output, 19, 0, 3), first.output));
    EXPECT_TRUE(same_bits(rows_of(result.final_state, row, 2, 3), first.final_state));
    const auto third = run(Cpu{}, part_of(c, 2, 0, 5, rows_of(c.state, row, 0, 1)));
    EXPECT_TRUE(same_bits(rows_of(result.output, 19, 7, 12), third.output));
    EXPECT_TRUE(same_bits(rows_of(result.final_state, row, 3, 4), third.final_state));
  }
}

TEST_P(VarlenCausalConvMemory, AFreshSequenceReadsNoState) {
  Random random(2);
  for (const std::int64_t width : {2, 3, 4, 5}) {
    auto c = random_case<BFloat16>(random, 21, width, 1, {0, 2, 8});
    c.fresh = {1, 7};
    auto zeros = c;
    zeros.fresh = {};
    zeros.state.assign(c.state.size(), BFloat16{});
    c.state.assign(c.state.size(), poison<BFloat16>());
    EXPECT_TRUE(same_bits(run(Cpu{}, c), run(Cpu{}, zeros)));
    EXPECT_TRUE(same_bits(run_in_place(Cpu{}, c), run(Cpu{}, zeros)));
  }
}

TEST_P(VarlenCausalConvMemory, EmptyCallsAreLegal) {
  Random random(3);
  for (const std::int64_t width : {1, 4, 6}) {
    const auto no_sequences = random_case<float>(random, 5, width, 1, {0});
    EXPECT_TRUE(run(Cpu{}, no_sequences).output.empty());
    auto no_tokens = random_case<float>(random, 5, width, 2, {0, 0, 0});
    no_tokens.capacity = 3;
    no_tokens.counts = {3, -1};
    const auto result = run(Cpu{}, no_tokens);
    EXPECT_TRUE(same_bits(result.final_state, no_tokens.state));
    EXPECT_EQ(result.state_update, std::vector<float>(2 * 3 * 5, 0));
    const auto no_channels = random_case<float>(random, 0, width, 1, {0, 4});
    EXPECT_TRUE(run(Cpu{}, no_channels).output.empty());
  }
}

// Every operand with rows further apart than they are long, from an odd address on.
TEST_P(VarlenCausalConvMemory, OperandsMayBePitchedAndUnaligned) {
  Random random(4);
  for (const std::int64_t width : {1, 2, 3, 4, 5}) {
    for (const std::int64_t gap : {0, 1, 5}) {
      auto c = random_case<Float16>(random, 45, width, 1, {0, 11, 13});
      c.bias = random.normal<Float16>(45);
      const auto expected = run(Cpu{}, c);
      const auto spread = [&](const std::vector<Float16>& values, std::int64_t row,
                              std::int64_t pitch) {
        std::vector<Float16> to{poison<Float16>()};
        for (std::int64_t i = 0; i < std::ssize(values); ++i) {
          to.push_back(values[static_cast<std::size_t>(i)]);
          if ((i + 1) % row == 0)
            to.resize(to.size() + static_cast<std::size_t>(pitch - row), poison<Float16>());
        }
        return to;
      };
      const std::int64_t state_row = std::max<std::int64_t>(1, 45 * c.history());
      const auto input = spread(c.input, 45, 45 + gap),
                 weight = spread(c.weight, width, width + gap), bias = spread(c.bias, 1, 1 + gap),
                 state = spread(c.state, state_row, state_row + gap);
      Buffer<Float16> output(13 * (45 + gap) + 1), final_state(2 * (state_row + gap) + 1);
      VarlenCausalConvArgs<Float16> args =
          args_of(c, output.data() + 1, final_state.data() + 1, static_cast<Float16*>(nullptr));
      args.input = {input.data() + 1, {13, 45}, 45 + gap};
      args.weight = {weight.data() + 1, {45, 1, width}, width + gap};
      args.bias = View<const Float16, 1>(bias.data() + 1, {45}, 1 + gap);
      args.initial_state = {state.data() + 1, {2, 45, c.history()}, state_row + gap};
      args.output = {output.data() + 1, {13, 45}, 45 + gap};
      args.final_state = {final_state.data() + 1, {2, 45, c.history()}, state_row + gap};
      call(Cpu{}, args);
      Buffer<Float16> untouched(std::max(output.size(), final_state.size()));
      auto want = spread(expected.output, 45, 45 + gap);
      EXPECT_TRUE(same_bits(output.values(), want)) << width << " " << gap;
      want = spread(expected.final_state, state_row, state_row + gap);
      want.resize(static_cast<std::size_t>(final_state.size()), poison<Float16>());
      EXPECT_TRUE(same_bits(final_state.values(), want)) << width << " " << gap;
    }
  }
}

TEST(VarlenCausalConvTargets, Avx2AndAvx3GiveEqualBits) {
  if (!has_target("AVX3")) GTEST_SKIP() << "needs AVX3";
  Random random(5);
  for (int round = 0; round < 30; ++round) {
    const auto c = random_case<BFloat16>(random, random.integer(1, 70), random.integer(1, 5),
                                         random.integer(1, 3), random.cu_seqlens(3, 0, 40));
    auto wide = random_case<float>(random, c.channels, c.width, c.dilation, c.cu_seqlens);
    wide.activation = ConvActivation::kSilu;
    set_cpu_target("AVX2");
    const auto avx2 = run(Cpu{}, c);
    const auto wide_avx2 = run(Cpu{}, wide);
    set_cpu_target("AVX3");
    EXPECT_TRUE(same_bits(run(Cpu{}, c), avx2));
    EXPECT_TRUE(same_bits(run(Cpu{}, wide), wide_avx2));
    set_cpu_target("");
  }
}

TEST(VarlenCausalConvPlan, EveryTokenAndEverySequenceStartBelongsToOneTask) {
  Random random(6);
  for (int round = 0; round < 200; ++round) {
    const auto offsets = random.cu_seqlens(random.integer(0, 40), 0, random.integer(1, 900));
    const std::int64_t sequences = std::ssize(offsets) - 1;
    const cpu::ConvPlan plan(contract::VarlenCausalConvGeometry{.sequences = sequences,
                                                                .tokens = offsets.back(),
                                                                .channels = random.integer(1, 3000),
                                                                .history = random.integer(0, 200)});
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> channels_at;
    for (std::int64_t task = 0; task < plan.tasks(); ++task) {
      plan.for_each_unit(
          view_of<1>(offsets, {sequences + 1}), task, [&](const cpu::ConvUnit& unit) {
            const std::int64_t owned = plan.channel_end(task) - plan.channel_begin(task);
            if (unit.begin == 0) channels_at[{unit.sequence, -1}] += owned;
            for (std::int64_t t = unit.begin; t < unit.end; ++t) {
              channels_at[{unit.sequence, t}] += owned;
            }
          });
    }
    ASSERT_EQ(std::ssize(channels_at), sequences + offsets.back());
    for (const auto& [at, channels] : channels_at) ASSERT_EQ(channels, plan.channels);
  }
}

}  // namespace
}  // namespace deltaworks::testing

// causal_conv_with_state: values against the float64 reference and the laws of its bits.
#include "deltaworks/causal_conv_with_state.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/causal_conv_with_state_case.hpp"
#include "support/targets.hpp"
#include "support/varlen_causal_conv_case.hpp"

namespace deltaworks {
namespace {

using testing::any_dense_conv;
using testing::Buffer;
using testing::ConvCase;
using testing::DenseConvCase;
using testing::near;
using testing::Random;
using testing::same_bits;
using testing::Threads;

constexpr int kRounds = 60;

class CausalConvWithStateTest : public testing::OnTarget {
 protected:
  // Calls body with a random case of each type, again and again.
  template <class Body>
  static void for_each_case(std::uint64_t stream, const Body& body) {
    for (int round = 0; round < kRounds; ++round) {
      SCOPED_TRACE(round);
      Random random(stream + static_cast<std::uint64_t>(round));
      ASSERT_NO_FATAL_FAILURE(body(random, any_dense_conv<float>(random)));
      ASSERT_NO_FATAL_FAILURE(body(random, any_dense_conv<Float16>(random)));
      ASSERT_NO_FATAL_FAILURE(body(random, any_dense_conv<BFloat16>(random)));
    }
  }
};

TEST_P(CausalConvWithStateTest, MatchesTheReference) {
  for_each_case(100, []<class T>(Random&, const DenseConvCase<T>& c) {
    std::vector<T> state;
    const auto expected = c.reference(state);
    const auto actual = c.run();
    ASSERT_TRUE(near(actual.output, expected, 1.01)) << "output";
    ASSERT_TRUE(same_bits(actual.present_state, state)) << "present_state";
  });
}

TEST_P(CausalConvWithStateTest, GoldenValues) {
  DenseConvCase<float> c{.length = 2, .width = 4};
  c.weight = {1, 10, 100, 1000};
  c.past_state = {1, 2, 3};
  c.input = {4, 5};
  EXPECT_EQ(c.run().output, (std::vector<float>{4321, 5432}));
  EXPECT_EQ(c.run().present_state, (std::vector<float>{3, 4, 5}));
}

// Rows of weights beyond what a task keeps, histories beyond what a window holds, and both.
TEST_P(CausalConvWithStateTest, ServesLongHistories) {
  Random random(200);
  for (const auto& [width, dilation] :
       {std::pair{33, 1}, std::pair{65, 1}, std::pair{66, 1}, std::pair{4, 22}, std::pair{40, 9}}) {
    for (const std::int64_t length : {1, 2, 40, 400}) {
      for (const bool channels_last : {false, true}) {
        DenseConvCase<float> c{.sequences = 2,
                               .channels = 19,
                               .length = length,
                               .width = width,
                               .dilation = dilation,
                               .channels_last = channels_last};
        c.fill(random);
        std::vector<float> state;
        const auto expected = c.reference(state);
        const auto actual = c.run();
        ASSERT_TRUE(near(actual.output, expected, 4)) << width << " x " << dilation;
        ASSERT_TRUE(same_bits(actual.present_state, state)) << width << " x " << dilation;
      }
    }
  }
}

// Channels first, up to 16 tokens are transposed, even numbers by halves.
TEST_P(CausalConvWithStateTest, EveryShortLengthGivesTheBitsOfTheOtherLayout) {
  Random random(700);
  const auto check = [&]<class T>(T, std::int64_t length) {
    DenseConvCase<T> c{.sequences = 2, .channels = 35, .length = length, .width = 4};
    c.fill(random);
    const auto one = c.run(), other = c.in_other_layout().run();
    ASSERT_TRUE(same_bits(other.output, c.swapped(one.output, length))) << length;
    ASSERT_TRUE(same_bits(other.present_state, c.swapped(one.present_state, c.history())));
  };
  for (std::int64_t length = 1; length <= 20; ++length) {
    (check(float(), length), check(Float16(), length), check(BFloat16(), length));
  }
}

TEST_P(CausalConvWithStateTest, LayoutsGiveTheSameBits) {
  for_each_case(300, []<class T>(Random&, const DenseConvCase<T>& c) {
    const auto one = c.run();
    const auto other = c.in_other_layout().run();
    ASSERT_TRUE(same_bits(other.output, c.swapped(one.output, c.length)));
    ASSERT_TRUE(same_bits(other.present_state, c.swapped(one.present_state, c.history())));
  });
}

// The packed operator over the same sequences, whose rows are channels-last and whose states are not.
TEST_P(CausalConvWithStateTest, EqualsVarlenCausalConv) {
  for_each_case(400, []<class T>(Random&, const DenseConvCase<T>& any) {
    const DenseConvCase<T> rows = any.channels_last ? any : any.in_other_layout();
    const DenseConvCase<T> columns = rows.in_other_layout();
    ConvCase<T> packed{.channels = any.channels, .width = any.width, .dilation = any.dilation};
    for (std::int64_t b = 1; b <= any.sequences; ++b)
      packed.cu_seqlens.push_back(static_cast<std::int32_t>(b * any.length));
    packed.slots = any.sequences;
    packed.activation = any.activation;
    packed.input = rows.input;
    packed.weight = any.weight;
    packed.bias = any.bias;
    packed.state = columns.past_state;
    packed.state.resize(static_cast<std::size_t>(any.state_size()));  // absent: zeros
    const auto expected = testing::run(Cpu{}, packed);
    const auto actual = rows.run();
    ASSERT_TRUE(same_bits(actual.output, expected.output));
    ASSERT_TRUE(same_bits(columns.run().present_state, expected.final_state));
  });
}

TEST_P(CausalConvWithStateTest, SplittingASequenceChangesNoBit) {
  for_each_case(500, []<class T>(Random& random, const DenseConvCase<T>& batch) {
    const DenseConvCase<T> c = batch.alone(0);
    const auto whole = c.run();
    std::vector<T> state = c.past_state;
    state.resize(static_cast<std::size_t>(c.state_size()));
    std::vector<std::vector<T>> parts;
    const DenseConvCase<T> outputs{
        .channels = c.channels, .length = c.length, .channels_last = c.channels_last};
    for (std::int64_t first = 0; first < c.length;) {
      const std::int64_t count = random.integer(1, c.length - first);
      const auto ran = c.part(first, count, state).run();
      DenseConvCase<T> expected = outputs;
      expected.input = whole.output;
      ASSERT_TRUE(same_bits(ran.output, expected.part(first, count, {}).input));
      state = ran.present_state;
      first += count;
    }
    ASSERT_TRUE(same_bits(state, whole.present_state));
  });
}

TEST_P(CausalConvWithStateTest, BatchedEqualsAlone) {
  for_each_case(600, []<class T>(Random&, const DenseConvCase<T>& c) {
    const auto batched = c.run();
    const auto slice = [&](const std::vector<T>& all, std::int64_t b) {
      const std::int64_t size = std::ssize(all) / c.sequences;
      return std::vector<T>(all.begin() + b * size, all.begin() + (b + 1) * size);
    };
    for (std::int64_t b = 0; b < c.sequences; ++b) {
      const auto alone = c.alone(b).run();
      ASSERT_TRUE(same_bits(alone.output, slice(batched.output, b)));
      ASSERT_TRUE(same_bits(alone.present_state, slice(batched.present_state, b)));
    }
  });
}

TEST_P(CausalConvWithStateTest, ThreadsChangeNoBit) {
  Random random(700);
  for (const bool channels_last : {false, true}) {
    DenseConvCase<float> c{
        .sequences = 2, .channels = 600, .length = 300, .width = 4, .channels_last = channels_last};
    c.fill(random);
    const auto one = c.run();
    for (const int count : {2, 3, 7}) {
      Threads threads(count);
      const auto many = c.run(threads.cpu());
      ASSERT_TRUE(same_bits(many.output, one.output)) << count << " threads";
      ASSERT_TRUE(same_bits(many.present_state, one.present_state)) << count << " threads";
    }
  }
}

TEST_P(CausalConvWithStateTest, TheStateMayBeInPlace) {
  for_each_case(800, []<class T>(Random& random, DenseConvCase<T> c) {
    c.past_state = random.normal<T>(c.state_size());
    const auto expected = c.run();
    const auto actual = c.run_in_place();
    ASSERT_TRUE(same_bits(actual.output, expected.output));
    ASSERT_TRUE(same_bits(actual.present_state, expected.present_state));
  });
}

// Sequences and weights further apart than they are long.
TEST_P(CausalConvWithStateTest, PitchedRowsEqualDenseOnes) {
  Random random(900);
  for (const std::int64_t length : {1, 2, 20}) {
    for (const bool channels_last : {false, true}) {
      DenseConvCase<Float16> c{.sequences = 3,
                               .channels = 21,
                               .length = length,
                               .width = 4,
                               .channels_last = channels_last};
      c.fill(random);
      c.bias = random.normal<Float16>(21);
      c.past_state = random.normal<Float16>(c.state_size());
      const auto expected = c.run();
      std::vector<std::vector<Float16>> memory;
      memory.reserve(4);
      const auto pitched = [&](auto& view) {
        const std::int64_t size = view.row_size(), stride = size + 5;
        auto& to = memory.emplace_back(static_cast<std::size_t>(view.extent(0) * stride),
                                       testing::poison<Float16>());
        for (std::int64_t i = 0; i < view.extent(0); ++i)
          std::copy_n(view.row(i), size, to.begin() + i * stride);
        view = {to.data(), view.extents(), stride};
      };
      const std::int64_t row = 21 * length, state_row = 21 * 3;
      Buffer<Float16> output(3 * (row + 2)), state(3 * (state_row + 2));
      auto args = c.args(nullptr, nullptr);
      pitched(args.input);
      pitched(args.weight);
      pitched(*args.bias);
      pitched(*args.past_state);
      args.output = {output.data(), c.extents(length), row + 2};
      args.present_state = {state.data(), c.extents(3), state_row + 2};
      causal_conv_with_state(Cpu{}, args);
      for (std::int64_t b = 0; b < 3; ++b) {
        const auto rows = [&](const Float16* from, std::int64_t size) {
          return std::vector<Float16>(from, from + size);
        };
        EXPECT_TRUE(same_bits(rows(output.data() + b * (row + 2), row),
                              rows(expected.output.data() + b * row, row)));
        EXPECT_TRUE(same_bits(rows(state.data() + b * (state_row + 2), state_row),
                              rows(expected.present_state.data() + b * state_row, state_row)));
        EXPECT_EQ(output.data()[b * (row + 2) + row], testing::poison<Float16>());
        EXPECT_EQ(state.data()[b * (state_row + 2) + state_row], testing::poison<Float16>());
      }
    }
  }
}

TEST_P(CausalConvWithStateTest, EmptyCallsHandTheStateOn) {
  Random random(1000);
  for (const bool channels_last : {false, true}) {
    DenseConvCase<BFloat16> c{.sequences = 2, .channels = 3, .length = 0, .width = 4};
    c.channels_last = channels_last;
    c.fill(random);
    c.past_state = random.normal<BFloat16>(c.state_size());
    EXPECT_TRUE(same_bits(c.run().present_state, c.past_state));
    c.past_state.clear();
    EXPECT_EQ(c.run().present_state, std::vector<BFloat16>(2 * 3 * 3));
    c.sequences = 0;
    c.length = 5;
    EXPECT_TRUE(c.run().output.empty());
  }
}

// A NaN reaches its own channel and later tokens, nothing else.
TEST_P(CausalConvWithStateTest, NanStaysInItsChannelAndItsFuture) {
  Random random(1100);
  DenseConvCase<float> c{.sequences = 2, .channels = 35, .length = 40, .width = 4};
  c.fill(random);
  const auto clean = c.run();
  const std::int64_t bad = (35 + 7) * 40 + 11;  // sequence 1, channel 7, token 11
  c.input[bad] = std::numeric_limits<float>::quiet_NaN();
  const auto dirty = c.run().output;
  const auto other = c.in_other_layout();
  const auto rows = other.swapped(other.run().output, 40);
  for (std::int64_t i = 0; i < std::ssize(dirty); ++i) {
    const bool reached = i >= bad && i < bad + 4;
    ASSERT_EQ(std::isnan(dirty[i]), reached) << i;
    ASSERT_EQ(std::isnan(rows[i]), reached) << i;
    if (reached) continue;
    ASSERT_EQ(dirty[i], clean.output[i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CausalConvWithStateTest, testing::every_target(),
                         testing::target_name);

// Every target with fma gives the same bits.
TEST(CausalConvWithStateBits, Avx2EqualsAvx3) {
  if (!testing::has_target("AVX2") || !testing::has_target("AVX3"))
    GTEST_SKIP() << "this processor or build lacks AVX2 or AVX3";
  for (int round = 0; round < kRounds; ++round) {
    Random random(1200 + round);
    const auto c = any_dense_conv<float>(random);
    set_cpu_target("AVX2");
    const auto avx2 = c.run();
    set_cpu_target("AVX3");
    const auto avx3 = c.run();
    set_cpu_target("");
    ASSERT_TRUE(same_bits(avx3.output, avx2.output)) << "round " << round;
  }
}

}  // namespace
}  // namespace deltaworks

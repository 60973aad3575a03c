// Weights prepared once: the bits of a call without them, and what they must fit.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "support/refusal.hpp"
#include "support/targets.hpp"
#include "support/varlen_causal_conv_case.hpp"

namespace deltaworks::testing {
namespace {

using VarlenCausalConvPrepared = OnTarget;
INSTANTIATE_TEST_SUITE_P(Targets, VarlenCausalConvPrepared, every_target(), target_name);

// weight itself is not read: it holds NaN here. Rows of the prepared weights may lie apart.
template <class T>
void compare(Random& random) {
  constexpr std::int64_t kChannels[] = {1, 2, 7, 16, 17, 64, 100, 257};
  const auto channels = kChannels[random.integer(0, std::size(kChannels) - 1)];
  const auto c = random_case<T>(random, channels, random.integer(1, 7), random.integer(1, 3),
                                random.cu_seqlens(random.integer(0, 5), 0, 40));
  ConvBuffers<T> to(c);
  auto args = args_of(c, to.output.data(), to.final_state.data(), to.state_update.data());
  const std::int64_t pitch = c.channels + random.integer(0, 3);
  std::vector<float> memory(static_cast<std::size_t>(c.width * pitch), NAN);
  const View<float, 2> prepared(memory.data(), {c.width, c.channels}, pitch);
  prepare_conv_weight(args.weight, prepared);
  const std::vector<T> nothing(c.weight.size(), from_float<T>(NAN));
  args.weight = View<const T, 3>(nothing.data(), args.weight.extents());
  args.prepared_weight = prepared;
  varlen_causal_conv(Cpu{}, args);
  ASSERT_TRUE(same_bits(to.result(), run(Cpu{}, c)))
      << "channels " << c.channels << " width " << c.width << " dilation " << c.dilation;
}

TEST_P(VarlenCausalConvPrepared, GiveTheSameBits) {
  Random random(8);
  for (int round = 0; round < 100; ++round) {
    compare<float>(random);
    compare<Float16>(random);
    compare<BFloat16>(random);
  }
}

TEST(VarlenCausalConvPreparedErrors, NameTheArgumentAndWriteNothing) {
  Random random(1);
  const auto c = random_case<float>(random, 3, 4, 1, {0, 2, 5});
  ConvBuffers<float> to(c);
  const auto untouched = to.result();
  const std::vector<float> memory(16);
  const auto call = [&](const View<const float, 2>& prepared) {
    return message_of([&] {
      auto args = args_of(c, to.output.data(), to.final_state.data(), to.state_update.data());
      args.prepared_weight = prepared;
      varlen_causal_conv(Cpu{}, args);
    });
  };
  EXPECT_EQ(call({memory.data(), {3, 4}}),
            "varlen_causal_conv: prepared_weight has shape [3, 4], expected [4, 3]");
  EXPECT_EQ(call({nullptr, {4, 3}}),
            "varlen_causal_conv: prepared_weight has no memory for 4 x 3 elements");
  EXPECT_EQ(call({to.output.data(), {4, 3}}),
            "varlen_causal_conv: output overlaps prepared_weight, expected separate memory");
  EXPECT_TRUE(same_bits(to.result(), untouched));
  EXPECT_EQ(call({memory.data(), {4, 3}}), "no error");
}

TEST(VarlenCausalConvPreparedErrors, RefuseMemoryThatDoesNotFit) {
  float memory[48] = {};
  const auto prepare = [](const View<const float, 3>& weight, const View<float, 2>& prepared) {
    return message_of([&] { prepare_conv_weight(weight, prepared); });
  };
  EXPECT_EQ(prepare({memory, {6, 1, 4}}, {memory + 24, {4, 6}}), "no error");
  EXPECT_EQ(prepare({memory, {6, 1, 4}}, {memory + 24, {6, 4}}),
            "prepare_conv_weight: prepared has shape [6, 4], expected [4, 6]");
  EXPECT_EQ(prepare({memory, {3, 2, 4}}, {memory + 24, {4, 3}}),
            "prepare_conv_weight: weight has shape [3, 2, 4], expected [3, 1, 4]");
  EXPECT_EQ(prepare({memory, {6, 1, 4}}, {memory + 23, {4, 6}}),
            "prepare_conv_weight: prepared overlaps weight, expected separate memory");
}

}  // namespace
}  // namespace deltaworks::testing

// Convolutions and rates over operands of more than 2^31 elements on the GPU: what lies there comes out as in a
// small call over the same rows.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "support/compare.hpp"
#include "support/large.hpp"

namespace deltaworks::testing {
namespace {

TEST_F(CudaLarge, ConvolutionOfRowsAndStatesBeyondTheBoundary) {
  if (!has_gib(16)) GTEST_SKIP() << needs_gib(16);
  using T = BFloat16;
  constexpr std::int64_t kChannels = 8192, kWidth = 4, kHistory = 3, kLength = 300;
  constexpr std::int64_t kSlots = kBoundary / (kChannels * kHistory) + 2;
  constexpr std::int64_t kTokens = kBoundary / kChannels + 2 * kLength;
  Random random(1);
  // A long sequence over the boundary, and one behind it, whose state lies in the last slot.
  const OnGpu<std::int32_t> offsets(
      {0, static_cast<std::int32_t>(kTokens - kLength), static_cast<std::int32_t>(kTokens)}),
      alone({0, kLength}), slots({0, static_cast<std::int32_t>(kSlots - 1)});
  const OnGpu<T> input(kTokens * kChannels, random_tile<T>(random)),
      output(kTokens * kChannels, poisoned_tile<T>()),
      weight(kChannels * kWidth, random_tile<T>(random, 0.5)),
      states(kSlots * kChannels * kHistory, random_tile<T>(random));
  const auto call = [&](std::int64_t first, std::int64_t tokens, T* to, const OnGpu<T>& pool,
                        std::int64_t pool_slots, const std::int32_t* cu_seqlens,
                        std::int64_t sequences) {
    const View<T, 3> state(pool.at(0), {pool_slots, kChannels, kHistory});
    VarlenCausalConvArgs<T> args{.input = {input.at(first * kChannels), {tokens, kChannels}},
                                 .weight = {weight.at(0), {kChannels, 1, kWidth}},
                                 .cu_seqlens = {cu_seqlens, {sequences + 1}},
                                 .initial_state = state,
                                 .output = {to, {tokens, kChannels}},
                                 .final_state = state,
                                 .activation = ConvActivation::kSilu};
    if (sequences > 1) {
      args.slots_in = args.slots_out = View<const std::int32_t, 1>(slots.at(0), {sequences});
    }
    varlen_causal_conv(Cuda{}, args);
  };
  constexpr std::int64_t kState = kChannels * kHistory, kLast = (kSlots - 1) * kState;
  const OnGpu<T> state(states.values(kLast, kState)),
      expected(kLength * kChannels, poisoned_tile<T>());
  call(kTokens - kLength, kLength, expected.at(0), state, 1, alone.at(0), 1);
  call(0, kTokens, output.at(0), states, kSlots, offsets.at(0), 2);
  EXPECT_TRUE(same_bits(output.values((kTokens - kLength) * kChannels, kLength * kChannels),
                        expected.values(0, kLength * kChannels)));
  EXPECT_TRUE(same_bits(states.values(kLast, kState), state.values(0, kState)));

  // The rows around the boundary, as a sequence of their own: equal once its history is its own.
  constexpr std::int64_t kFirst = kBoundary / kChannels - kLength / 2;
  call(kFirst, kLength, expected.at(0), state, 1, alone.at(0), 1);
  constexpr std::int64_t kCompared = (kLength - kHistory) * kChannels;
  EXPECT_TRUE(same_bits(output.values((kFirst + kHistory) * kChannels, kCompared),
                        expected.values(kHistory * kChannels, kCompared)));
}

template <class T>
void expect_equal_blocks(Random& random, std::int64_t channels, std::int64_t groups,
                         std::int64_t taps, std::int64_t blocks) {
  constexpr std::int64_t kBlock = 8;
  const std::int64_t rows = blocks * kBlock, width = 2 * taps * groups;
  const OnGpu<T> input(rows * channels, random_tile<T>(random)),
      dynamic(rows * width, random_tile<T>(random, 0.3)),
      base(2 * taps * channels, random_tile<T>(random, 0.5)),
      output(rows * channels, poisoned_tile<T>()), expected(kBlock * channels, poisoned_tile<T>());
  const auto call = [&](std::int64_t first, std::int64_t count, T* to) {
    dflash2_dynamic_conv(
        Cuda{}, DFlash2DynamicConvArgs<T>{.input = {input.at(first * channels), {count, channels}},
                                          .dynamic = {dynamic.at(first * width), {count, width}},
                                          .base = {base.at(0), {2, taps, channels}},
                                          .output = {to, {count, channels}},
                                          .rows_per_lane = kBlock,
                                          .groups = groups});
  };
  call(0, rows, output.at(0));
  for (const std::int64_t block : {std::int64_t{0}, kBoundary / (kBlock * channels), blocks - 1}) {
    if (block >= blocks) continue;
    call(block * kBlock, kBlock, expected.at(0));
    EXPECT_TRUE(same_bits(output.values(block * kBlock * channels, kBlock * channels),
                          expected.values(0, kBlock * channels)))
        << block;
  }
}

TEST_F(CudaLarge, DynamicConvolutionBeyondTheBoundary) {
  if (!has_gib(10)) GTEST_SKIP() << needs_gib(10);
  Random random(4);
  expect_equal_blocks<BFloat16>(random, 5120, 320, 2, kBoundary / (8 * 5120) + 3);
  // As many coefficients: a group for each channel, and four taps.
  expect_equal_blocks<BFloat16>(random, 64, 64, 4, kBoundary / (8 * 512) + 3);
}

TEST_F(CudaLarge, RatesBeyondTheBoundary) {
  if (!has_gib(22)) GTEST_SKIP() << needs_gib(22);
  using T = BFloat16;
  constexpr std::int64_t kHeads = 48, kTokens = kBoundary / kHeads + 1000, kPart = 500;
  Random random(5);
  const OnGpu<T> logits(kTokens * kHeads, random_tile<T>(random)),
      inputs(kTokens * kHeads, random_tile<T>(random)), rates(kTokens * kHeads, poisoned_tile<T>()),
      expected_rates(kPart * kHeads, poisoned_tile<T>());
  const OnGpu<float> factors(kTokens * kHeads, poisoned_tile<float>()),
      expected_factors(kPart * kHeads, poisoned_tile<float>()),
      parameters(2 * kHeads, random_tile<float>(random));
  const auto call = [&](std::int64_t first, std::int64_t tokens, T* to_rates, float* to_factors) {
    gated_delta_rates(Cuda{}, GatedDeltaRatesArgs<T>{
                                  .update_logits = {logits.at(first * kHeads), {tokens, kHeads}},
                                  .decay_inputs = {inputs.at(first * kHeads), {tokens, kHeads}},
                                  .a_log = {parameters.at(0), {kHeads}},
                                  .dt_bias = {parameters.at(kHeads), {kHeads}},
                                  .update_rates = {to_rates, {tokens, kHeads}},
                                  .decay_factors = {to_factors, {tokens, kHeads}}});
  };
  call(0, kTokens, rates.at(0), factors.at(0));
  for (const std::int64_t first : {std::int64_t{0}, kBoundary / kHeads - 100, kTokens - kPart}) {
    call(first, kPart, expected_rates.at(0), expected_factors.at(0));
    EXPECT_TRUE(same_bits(rates.values(first * kHeads, kPart * kHeads),
                          expected_rates.values(0, kPart * kHeads)))
        << first;
    EXPECT_TRUE(same_bits(factors.values(first * kHeads, kPart * kHeads),
                          expected_factors.values(0, kPart * kHeads)))
        << first;
  }
}

}  // namespace
}  // namespace deltaworks::testing

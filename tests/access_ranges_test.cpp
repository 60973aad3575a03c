// What access_ranges reports: each operand that is given, once, with its place, size and direction.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "deltaworks/causal_conv_with_state.hpp"
#include "deltaworks/dflash2_dynamic_conv.hpp"
#include "deltaworks/gated_delta_net.hpp"
#include "deltaworks/gated_delta_rates.hpp"
#include "deltaworks/linear_attention.hpp"
#include "deltaworks/paged_attention.hpp"
#include "deltaworks/varlen_causal_conv.hpp"
#include "support/refusal.hpp"

namespace deltaworks {

namespace {

constexpr Access kRead = Access::kRead, kWrite = Access::kWrite, kReadWrite = Access::kReadWrite;

struct Expected {
  std::string argument;
  const void* begin;
  std::size_t size_bytes;
  Access access;
};

void expect_ranges(const std::vector<AccessRange>& ranges, const std::vector<Expected>& expected) {
  ASSERT_EQ(ranges.size(), expected.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_EQ(ranges[i].argument, expected[i].argument);
    EXPECT_EQ(ranges[i].begin, expected[i].begin) << expected[i].argument;
    EXPECT_EQ(ranges[i].size_bytes, expected[i].size_bytes) << expected[i].argument;
    EXPECT_EQ(ranges[i].access, expected[i].access) << expected[i].argument;
  }
}

// Memory that no call reads or writes: its values stay unset.
float memory[4096];
std::int32_t integers[64];
constexpr std::int64_t kFloat = sizeof(float);

VarlenCausalConvArgs<float> convolution() {  // 3 tokens, 5 channels, width 4, 2 sequences
  return {.input = {memory, {3, 5}, 9},
          .weight = {memory + 100, {5, 1, 4}},
          .cu_seqlens = {integers, {3}},
          .initial_state = {memory + 200, {2, 5, 3}},
          .output = {memory + 300, {3, 5}},
          .final_state = {memory + 200, {2, 5, 3}}};
}

TEST(AccessRanges, ListPitchedAndSharedOperands) {
  expect_ranges(access_ranges(convolution()), {{"input", memory, (2 * 9 + 5) * kFloat, kRead},
                                               {"weight", memory + 100, 20 * kFloat, kRead},
                                               {"cu_seqlens", integers, 12, kRead},
                                               {"initial_state", memory + 200, 30 * kFloat, kRead},
                                               {"output", memory + 300, 15 * kFloat, kWrite},
                                               {"final_state", memory + 200, 30 * kFloat, kWrite}});
}

TEST(AccessRanges, ListTheDynamicMode) {
  auto args = convolution();
  args.weight = {memory + 100, {5, 1, 2}};
  args.initial_state = args.final_state = {memory + 200, {2, 5, 1}};
  args.kernel_delta = View<const float, 3>(memory + 400, {3, 4, 5}, 30);
  args.previous_mask = View<const float, 2>(memory + 500, {3, 1}, 2);
  expect_ranges(access_ranges(args), {{"input", memory, 23 * kFloat, kRead},
                                      {"weight", memory + 100, 10 * kFloat, kRead},
                                      {"cu_seqlens", integers, 12, kRead},
                                      {"initial_state", memory + 200, 10 * kFloat, kRead},
                                      {"kernel_delta", memory + 400, 80 * kFloat, kRead},
                                      {"previous_mask", memory + 500, 5 * kFloat, kRead},
                                      {"output", memory + 300, 15 * kFloat, kWrite},
                                      {"final_state", memory + 200, 10 * kFloat, kWrite}});
}

TEST(AccessRanges, LeaveOutEmptyOperands) {
  auto args = convolution();
  args.weight = {memory + 100, {5, 1, 1}};
  args.initial_state = {nullptr, {2, 5, 0}};
  args.final_state = {nullptr, {2, 5, 0}};
  expect_ranges(access_ranges(args), {{"input", memory, 23 * kFloat, kRead},
                                      {"weight", memory + 100, 5 * kFloat, kRead},
                                      {"cu_seqlens", integers, 12, kRead},
                                      {"output", memory + 300, 15 * kFloat, kWrite}});
}

TEST(AccessRanges, RefuseWhatTheOperatorRefuses) {
  auto args = convolution();
  args.final_state = {memory + 201, {2, 5, 3}};
  EXPECT_EQ(testing::message_of([&] { access_ranges(args); }),
            "varlen_causal_conv: final_state overlaps initial_state, expected separate memory");
}

TEST(AccessRanges, OfTheRecurrence) {
  const GatedDeltaNetArgs<float> args{.query = {memory, {3, 1, 2}},
                                      .key = {memory + 10, {3, 1, 2}},
                                      .value = {memory + 20, {3, 2, 4}},
                                      .cu_seqlens = {integers, {2}},
                                      .output = {memory + 50, {3, 2, 4}},
                                      .final_state = {memory + 100, {1, 2, 4, 2}},
                                      .beta = View<const float, 2>(memory + 200, {3, 2}),
                                      .update_rule = UpdateRule::kDelta};
  expect_ranges(access_ranges(args), {{"query", memory, 6 * kFloat, kRead},
                                      {"key", memory + 10, 6 * kFloat, kRead},
                                      {"value", memory + 20, 24 * kFloat, kRead},
                                      {"cu_seqlens", integers, 8, kRead},
                                      {"beta", memory + 200, 6 * kFloat, kRead},
                                      {"output", memory + 50, 24 * kFloat, kWrite},
                                      {"final_state", memory + 100, 16 * kFloat, kWrite}});
}

// A gate that the rule does not need is not read.
TEST(AccessRanges, OfTheDensePair) {
  const LinearAttentionArgs<float> delta{
      .query = {memory, {1, 3, 2}},
      .key = {memory + 10, {1, 3, 2}},
      .value = {memory + 20, {1, 3, 8}},
      .output = {memory + 50, {1, 3, 8}},
      .present_state = {memory + 100, {1, 2, 2, 4}},
      .q_num_heads = 1,
      .kv_num_heads = 2,
      .past_state = View<const float, 4>(memory + 100, {1, 2, 2, 4}),
      .decay = View<const float, 3>(memory + 200, {1, 3, 2}),
      .beta = View<const float, 3>(memory + 210, {1, 3, 1}),
      .update_rule = UpdateRule::kDelta};
  expect_ranges(access_ranges(delta), {{"query", memory, 6 * kFloat, kRead},
                                       {"key", memory + 10, 6 * kFloat, kRead},
                                       {"value", memory + 20, 24 * kFloat, kRead},
                                       {"past_state", memory + 100, 16 * kFloat, kRead},
                                       {"beta", memory + 210, 3 * kFloat, kRead},
                                       {"output", memory + 50, 24 * kFloat, kWrite},
                                       {"present_state", memory + 100, 16 * kFloat, kWrite}});
  const CausalConvWithStateArgs<float> conv{.input = {memory, {2, 5, 3}},
                                            .weight = {memory + 100, {5, 1, 4}},
                                            .output = {memory + 50, {2, 5, 3}},
                                            .present_state = {memory + 200, {2, 5, 3}},
                                            .bias = View<const float, 1>(memory + 150, {5})};
  expect_ranges(access_ranges(conv), {{"input", memory, 30 * kFloat, kRead},
                                      {"weight", memory + 100, 20 * kFloat, kRead},
                                      {"bias", memory + 150, 5 * kFloat, kRead},
                                      {"output", memory + 50, 30 * kFloat, kWrite},
                                      {"present_state", memory + 200, 30 * kFloat, kWrite}});
}

TEST(AccessRanges, OfReplays) {
  const ReplayConvStateArgs<float> conv{.initial_state = {memory, {1, 5, 3}},
                                        .state_update = {memory + 20, {1, 2, 5}},
                                        .count = {integers, {1}},
                                        .final_state = {memory, {1, 5, 3}}};
  expect_ranges(access_ranges(conv), {{"initial_state", memory, 15 * kFloat, kRead},
                                      {"state_update", memory + 20, 10 * kFloat, kRead},
                                      {"count", integers, 4, kRead},
                                      {"final_state", memory, 15 * kFloat, kWrite}});
  const ReplayGatedDeltaStateArgs delta{.initial_state = {memory, {1, 2, 4, 2}},
                                        .state_update = {memory + 50, {1, 2 * (2 + 2 + 8)}},
                                        .count = {integers, {1}},
                                        .final_state = {memory + 100, {1, 2, 4, 2}},
                                        .key_heads = 1,
                                        .state_update_capacity = 2};
  expect_ranges(access_ranges(delta), {{"initial_state", memory, 16 * kFloat, kRead},
                                       {"state_update", memory + 50, 24 * kFloat, kRead},
                                       {"count", integers, 4, kRead},
                                       {"final_state", memory + 100, 16 * kFloat, kWrite}});
}

TEST(AccessRanges, OfTheDynamicConvolution) {
  static Float16 half[64];
  static BFloat16 base[64];
  const DFlash2DynamicConvArgs<Float16, float, BFloat16> args{
      .input = {half, {2, 6}},
      .dynamic = {half + 20, {2, 12}},
      .base = {base, {2, 2, 6}},
      .output = {memory, {2, 6}},
      .residual = View<const float, 2>(memory + 20, {2, 6}),
      .stage = DFlash2Stage::kResidual,
      .rows_per_lane = 2,
      .groups = 3};
  expect_ranges(access_ranges(args), {{"input", half, 24, kRead},
                                      {"dynamic", half + 20, 48, kRead},
                                      {"base", base, 48, kRead},
                                      {"residual", memory + 20, 12 * kFloat, kRead},
                                      {"output", memory, 12 * kFloat, kWrite}});
}

TEST(AccessRanges, OfBothHalvesOfOneProjection) {
  const BFloat16* const projection = reinterpret_cast<const BFloat16*>(memory);
  const GatedDeltaRatesArgs<BFloat16> args{
      .update_logits = {projection, {3, 4}, 8},
      .decay_inputs = {projection + 4, {3, 4}, 8},
      .a_log = {memory + 100, {4}},
      .dt_bias = {memory + 110, {4}},
      .update_rates = {reinterpret_cast<BFloat16*>(memory + 120), {3, 4}},
      .decay_factors = {memory + 140, {3, 4}}};
  expect_ranges(access_ranges(args), {{"update_logits", projection, 40, kRead},
                                      {"decay_inputs", projection + 4, 40, kRead},
                                      {"a_log", memory + 100, 4 * kFloat, kRead},
                                      {"dt_bias", memory + 110, 4 * kFloat, kRead},
                                      {"update_rates", memory + 120, 24, kWrite},
                                      {"decay_factors", memory + 140, 12 * kFloat, kWrite}});
}

TEST(AccessRanges, OfTheCachesThatAttentionReadsAndWrites) {
  const PagedAttentionArgs<float> args{.query = {memory, {1, 2, 4}},
                                       .key = {memory + 10, {1, 1, 4}},
                                       .value = {memory + 20, {1, 1, 4}},
                                       .key_cache = {memory + 100, {2, 16, 1, 4}},
                                       .value_cache = {memory + 300, {2, 16, 1, 4}},
                                       .cu_seqlens = {integers, {2}},
                                       .past_seqlens = {integers + 4, {1}},
                                       .block_table = {integers + 8, {1, 2}},
                                       .output = {memory + 30, {1, 2, 4}}};
  expect_ranges(access_ranges(args), {{"query", memory, 8 * kFloat, kRead},
                                      {"key", memory + 10, 4 * kFloat, kRead},
                                      {"value", memory + 20, 4 * kFloat, kRead},
                                      {"key_cache", memory + 100, 128 * kFloat, kReadWrite},
                                      {"value_cache", memory + 300, 128 * kFloat, kReadWrite},
                                      {"cu_seqlens", integers, 8, kRead},
                                      {"past_seqlens", integers + 4, 4, kRead},
                                      {"block_table", integers + 8, 8, kRead},
                                      {"output", memory + 30, 8 * kFloat, kWrite}});
}

}  // namespace

}  // namespace deltaworks

// paged_attention and its memory: pitched operands, empty calls.
#include <gtest/gtest.h>

#include <limits>

#include "deltaworks/paged_attention.hpp"
#include "support/compare.hpp"
#include "support/paged_problem.hpp"
#include "support/targets.hpp"

namespace deltaworks {
namespace {

using testing::Buffer;
using testing::PagedOptions;
using testing::PagedProblem;
using testing::Random;
using testing::same_bits;

class PagedAttentionMemory : public testing::OnTarget {};

// Any operand may be pitched, one-dimensional ones too.
TEST_P(PagedAttentionMemory, OffsetsAndWeightsMayBePitched) {
  Random random(16);
  PagedOptions o{.kv_heads = 1, .group = 2, .head_dim = 8, .norm = true};
  PagedProblem<float> problem(o, {3, 0}, {2, 3}, random);
  auto spread = problem;
  Buffer<float> output(problem.tokens() * 2 * 8);
  auto args = spread.args(output);
  const std::vector<std::int32_t> offsets{0, 99, 2, 99, 5};
  std::vector<float> weights(2 * 8, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < 8; ++i) weights[2 * i] = problem.k_norm[i];
  args.cu_seqlens = {offsets.data(), {3}, 2};
  args.k_norm_weight = View<const float, 1>{weights.data(), {8}, 2};
  paged_attention(Cpu{}, args);
  EXPECT_TRUE(same_bits(output.values(), problem.run()));
  EXPECT_TRUE(same_bits(spread.key_cache.values(), problem.key_cache.values()));
}

TEST_P(PagedAttentionMemory, ServesNoTokensAndNoSequences) {
  Random random(13);
  PagedProblem<float> none({}, {}, {}, random), empty({}, {7, 0}, {0, 0}, random);
  const auto before = empty.key_cache.values();
  EXPECT_TRUE(none.run().empty());
  EXPECT_TRUE(empty.run().empty());
  EXPECT_TRUE(same_bits(empty.key_cache.values(), before));
}

INSTANTIATE_TEST_SUITE_P(Targets, PagedAttentionMemory, testing::every_target(),
                         testing::target_name);

}  // namespace
}  // namespace deltaworks

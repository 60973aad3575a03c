// paged_attention starts its sums afresh every 512 positions, so that threads can share the cache of
// few heads. That must show in no bit, wherever the tokens around these borders are split.
#include <gtest/gtest.h>

#include "deltaworks/paged_attention.hpp"
#include "reference/paged_attention.hpp"
#include "support/compare.hpp"
#include "support/paged_problem.hpp"
#include "support/targets.hpp"

namespace deltaworks::testing {
namespace {

using PagedAttentionCut = OnTarget;
INSTANTIATE_TEST_SUITE_P(, PagedAttentionCut, every_target(), target_name);

// Long caches that end around a border, a short one and an empty call beside them.
template <class T>
PagedProblem<T> long_problem(const PagedOptions& options, Random& random) {
  const auto before = [&](std::int64_t cut) {
    return static_cast<std::int32_t>(512 * cut - random.integer(0, 9));
  };
  return {options, {before(1), before(3), 5, 0}, {9, 12, 0, 3}, random};
}

// The same tokens one by one, on a pool of threads and without in turn.
template <class T>
std::vector<T> one_by_one(const PagedProblem<T>& problem, const Cpu& pool) {
  auto carried = problem;
  std::vector<T> rows;
  for (std::int64_t b = 0; b < problem.sequences(); ++b) {
    const auto at = static_cast<std::size_t>(b);
    for (std::int64_t t = 0; t < problem.cu_seqlens[at + 1] - problem.cu_seqlens[at]; ++t) {
      auto part = problem.part(b, t, t + 1);
      part.key_cache = carried.key_cache, part.value_cache = carried.value_cache;
      const auto row = part.run(t % 2 == 0 ? pool : Cpu{});
      rows.insert(rows.end(), row.begin(), row.end());
      carried.key_cache = part.key_cache, carried.value_cache = part.value_cache;
    }
  }
  return rows;
}

template <class T>
void share(const PagedOptions& options, Random& random) {
  const auto problem = long_problem<T>(options, random);
  auto whole = problem, threaded = problem, checked = problem;
  const auto together = whole.run();
  Buffer<T> unused(problem.tokens() * problem.heads() * options.head_dim);
  EXPECT_TRUE(near(together, reference::paged_attention(checked.args(unused)), 4));
  Threads threads(3);
  EXPECT_TRUE(same_bits(threaded.run(threads.cpu()), together));
  if (!options.causal) return;  // a token then sees those behind it
  EXPECT_TRUE(same_bits(one_by_one(problem, threads.cpu()), together));
}

TEST_P(PagedAttentionCut, ThreadsAndSplitsChangeNoBit) {
  Random random(17);
  const PagedOptions few{.kv_heads = 1, .group = 1, .head_dim = 40, .block_size = 1};
  const PagedOptions side_by_side{.kv_heads = 2, .group = 5, .head_dim = 64, .sink = true};
  const PagedOptions windowed{
      .kv_heads = 3, .group = 2, .head_dim = 16, .block_size = 24, .window = 700, .softcap = 3};
  const PagedOptions both_ways{
      .kv_heads = 2, .group = 2, .head_dim = 24, .block_size = 256, .causal = false};
  for (const PagedOptions& options : {few, side_by_side, windowed, both_ways}) {
    share<float>(options, random);
    share<Float16>(options, random);
    share<BFloat16>(options, random);
  }
}

}  // namespace
}  // namespace deltaworks::testing

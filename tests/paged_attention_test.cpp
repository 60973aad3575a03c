// paged_attention: against the float64 reference, and the laws of its bits.
#include "deltaworks/paged_attention.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "reference/paged_attention.hpp"
#include "support/compare.hpp"
#include "support/paged_problem.hpp"
#include "support/targets.hpp"

namespace deltaworks::testing {
namespace {

template <class T>
std::vector<double> reference_of(PagedProblem<T> problem) {
  Buffer<T> unused(problem.tokens() * problem.heads() * problem.options.head_dim);
  return reference::paged_attention(problem.args(unused));
}

std::int64_t one_of(Random& random, const std::vector<std::int64_t>& values) {
  return values[static_cast<std::size_t>(
      random.integer(0, static_cast<std::int64_t>(values.size()) - 1))];
}

bool coin(Random& random) { return random.integer(0, 1) == 1; }

PagedOptions random_options(Random& random) {
  PagedOptions o;
  o.kv_heads = random.integer(1, 3);
  o.group = one_of(random, {1, 2, 3, 4, 5, 8, 13});
  o.head_dim = one_of(random, {1, 2, 3, 7, 8, 16, 20, 24, 40, 64, 80, 96, 128, 136, 256});
  o.block_size = one_of(random, {1, 3, 8, 16, 48, 64, 256});
  o.interleaved = coin(random);
  o.rotary = o.head_dim > 1 && coin(random);
  if (o.rotary) {
    o.rotary_offset = random.integer(0, o.head_dim - 2);
    o.rotary_dim = 2 * random.integer(1, (o.head_dim - o.rotary_offset) / 2);
  }
  o.norm = coin(random);
  o.sink = coin(random);
  o.causal = random.integer(0, 3) > 0;
  o.window = coin(random) ? random.integer(1, 150) : -1;
  o.softcap = coin(random) ? 3.0f : 0.0f;
  o.scale = coin(random) ? 0.3f / static_cast<float>(std::sqrt(o.head_dim)) : 0.0f;
  o.packed = coin(random);
  o.slots = coin(random);
  return o;
}

template <class T>
PagedProblem<T> random_problem(const PagedOptions& options, Random& random) {
  std::vector<std::int32_t> past, lengths;
  for (std::int64_t b = random.integer(0, 4); b > 0; --b) {
    const std::int64_t kind = random.integer(0, 3);
    lengths.push_back(static_cast<std::int32_t>(kind == 0   ? random.integer(0, 1)
                                                : kind == 1 ? random.integer(2, 8)
                                                            : random.integer(0, 90)));
    past.push_back(static_cast<std::int32_t>(coin(random) ? 0 : random.integer(0, 200)));
  }
  return PagedProblem<T>(options, past, lengths, random);
}

template <class T>
std::string name_of(const PagedProblem<T>& p) {
  const auto& o = p.options;
  return "kv " + std::to_string(o.kv_heads) + " group " + std::to_string(o.group) + " dim " +
         std::to_string(o.head_dim) + " block " + std::to_string(o.block_size) + " tokens " +
         std::to_string(p.tokens()) + " window " + std::to_string(o.window) + " rotary " +
         std::to_string(o.rotary) + std::to_string(o.interleaved) + " norm " +
         std::to_string(o.norm) + " causal " + std::to_string(o.causal) + " softcap " +
         std::to_string(o.softcap) + " slots " + std::to_string(o.slots);
}

using PagedAttentionTest = OnTarget;
INSTANTIATE_TEST_SUITE_P(, PagedAttentionTest, every_target(), target_name);

template <class T>
void compare_with_reference(std::uint64_t stream) {
  Random random(stream);
  for (int round = 0; round < 25; ++round) {
    auto problem = random_problem<T>(random_options(random), random);
    auto twin = problem;
    Buffer<T> unused(problem.tokens() * problem.heads() * problem.options.head_dim);
    const auto expected = reference::paged_attention(twin.args(unused));
    // A key that rounds the other way moves a logit by a unit of T, hence the factor.
    EXPECT_TRUE(near(problem.run(), expected, 4)) << name_of(problem);
    EXPECT_TRUE(same_bits(problem.value_cache.values(), twin.value_cache.values()));
    const auto keys = problem.key_cache.values(), expected_keys = twin.key_cache.values();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const double e = to_float(expected_keys[i]), k = to_float(keys[i]);
      if (std::isnan(e)) {
        ASSERT_TRUE(std::isnan(k)) << name_of(problem) << " wrote a row that no token owns";
      } else {
        ASSERT_NEAR(k, e, 2 * tolerance<T>() * std::max(1.0, std::abs(e))) << name_of(problem);
      }
    }
  }
}

TEST_P(PagedAttentionTest, MatchesTheReference) {
  compare_with_reference<float>(1);
  compare_with_reference<Float16>(2);
  compare_with_reference<BFloat16>(3);
}

TEST_P(PagedAttentionTest, ServesTheWidestHeads) {
  Random random(4);
  for (const std::int64_t dim : {512, 1000, 1024}) {
    PagedOptions o;
    o.head_dim = dim;
    o.rotary = o.norm = true;
    PagedProblem<Float16> problem(o, {70, 0}, {1, 30}, random);
    const auto expected = reference_of(problem);
    EXPECT_TRUE(near(problem.run(), expected, 4)) << dim;
  }
}

// Whole sequences at once, token by token, and in random parts: equal bits, equal caches.
template <class T>
void split_sequences(std::uint64_t stream) {
  Random random(stream);
  for (int round = 0; round < 8; ++round) {
    auto options = random_options(random);
    options.causal = true;
    auto problem = random_problem<T>(options, random);
    const auto before = problem;
    const auto together = problem.run();
    const std::int64_t row = problem.heads() * options.head_dim;
    auto carried = before;
    std::vector<T> parts;
    for (std::int64_t b = 0; b < problem.sequences(); ++b) {
      const std::int64_t length = before.cu_seqlens[static_cast<std::size_t>(b) + 1] -
                                  before.cu_seqlens[static_cast<std::size_t>(b)];
      for (std::int64_t t = 0, n = 0; t < length; t += n) {
        n = round % 2 == 0 ? 1 : random.integer(1, std::min<std::int64_t>(9, length - t));
        auto part = before.part(b, t, t + n);
        part.key_cache = carried.key_cache, part.value_cache = carried.value_cache;
        const auto rows = part.run();
        ASSERT_EQ(static_cast<std::int64_t>(rows.size()), n * row);
        parts.insert(parts.end(), rows.begin(), rows.end());
        carried.key_cache = part.key_cache, carried.value_cache = part.value_cache;
      }
    }
    EXPECT_TRUE(same_bits(parts, together)) << name_of(problem);
    EXPECT_TRUE(same_bits(carried.key_cache.values(), problem.key_cache.values()));
    EXPECT_TRUE(same_bits(carried.value_cache.values(), problem.value_cache.values()));
  }
}

TEST_P(PagedAttentionTest, OneByOneInPartsAndTogetherGiveEqualBits) {
  split_sequences<float>(5);
  split_sequences<Float16>(6);
  split_sequences<BFloat16>(7);
}

TEST_P(PagedAttentionTest, BatchAndThreadsChangeNoBit) {
  Random random(8);
  for (int round = 0; round < 10; ++round) {
    auto problem = random_problem<BFloat16>(random_options(random), random);
    auto threaded = problem;
    std::vector<BFloat16> alone;
    for (std::int64_t b = 0; b < problem.sequences(); ++b) {
      const auto at = static_cast<std::size_t>(b);
      auto part = problem.part(b, 0, problem.cu_seqlens[at + 1] - problem.cu_seqlens[at]);
      const auto rows = part.run();
      alone.insert(alone.end(), rows.begin(), rows.end());
    }
    const auto together = problem.run();
    Threads threads(3);
    EXPECT_TRUE(same_bits(threaded.run(threads.cpu()), together)) << name_of(problem);
    EXPECT_TRUE(same_bits(threaded.key_cache.values(), problem.key_cache.values()));
    EXPECT_TRUE(same_bits(alone, together)) << name_of(problem);
  }
}

TEST_P(PagedAttentionTest, ALaterNaNChangesNoEarlierBit) {
  Random random(9);
  for (int round = 0; round < 6; ++round) {
    auto options = random_options(random);
    options.causal = true, options.packed = false;
    PagedProblem<float> problem(options, {0, 37}, {40, 75}, random);
    auto poisoned = problem;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const std::int64_t t : {29, 99}) {  // the last tokens of each sequence from here on
      const std::int64_t stop = t < 40 ? 40 : 115;
      const auto fill = [&](std::vector<float>& rows, std::int64_t size, float with) {
        std::fill(rows.begin() + t * size, rows.begin() + stop * size, with);
      };
      fill(poisoned.query, problem.heads() * options.head_dim, nan);
      fill(poisoned.key, problem.row_size(), nan);
      fill(poisoned.value, problem.row_size(), std::numeric_limits<float>::infinity());
    }
    const auto clean = problem.run(), dirty = poisoned.run();
    const auto rows = [&](const std::vector<float>& all, std::int64_t begin, std::int64_t end) {
      const std::int64_t size = problem.heads() * options.head_dim;
      return std::vector<float>(all.begin() + begin * size, all.begin() + end * size);
    };
    EXPECT_TRUE(same_bits(rows(dirty, 0, 29), rows(clean, 0, 29))) << name_of(problem);
    EXPECT_TRUE(same_bits(rows(dirty, 40, 99), rows(clean, 40, 99))) << name_of(problem);
  }
}

TEST_P(PagedAttentionTest, CachesHoldRawValuesAndRotatedKeys) {
  Random random(10);
  PagedOptions o;
  o.rotary = true, o.head_dim = 24, o.rotary_dim = 10, o.rotary_offset = 8;
  PagedProblem<Float16> problem(o, {5}, {20}, random);
  problem.run();
  for (std::int64_t t = 0; t < 20; ++t) {
    const std::int64_t at = problem.cache_row(0, 5 + t) * problem.row_size();
    for (std::int64_t i = 0; i < problem.row_size(); ++i) {
      const auto source = static_cast<std::size_t>(t * problem.row_size() + i);
      ASSERT_EQ(problem.value_cache.data()[at + i], problem.value[source]);
      const std::int64_t d = i % o.head_dim - o.rotary_offset;
      const auto k = [&](std::int64_t step) {
        return static_cast<double>(to_float(problem.key[source + static_cast<std::size_t>(step)]));
      };
      double expected = k(0);
      if (d >= 0 &&
          d < o.rotary_dim) {  // double holds each product: one rounding, as in the kernel
        const auto pair = static_cast<std::size_t>((5 + t) * 5 + d % 5);
        const double c = to_float(problem.cosine[pair]), s = to_float(problem.sine[pair]);
        const double other = d < 5 ? -k(5) * s : k(-5) * s;
        expected = static_cast<float>(k(0) * c) + static_cast<float>(other);
      }
      ASSERT_EQ(problem.key_cache.data()[at + i],
                from_float<Float16>(static_cast<float>(expected)));
    }
  }
}

TEST_P(PagedAttentionTest, ASkippedWriteLeavesTheCacheAndReadsIt) {
  Random random(11);
  PagedOptions o;
  o.slots = true;
  PagedProblem<float> problem(o, {30, 3}, {9, 1}, random);
  const auto expected = problem.run();
  auto again = problem;
  std::fill(again.slots.begin(), again.slots.end(), -1);
  again.key = random.normal<float>(10 * problem.row_size());
  EXPECT_TRUE(same_bits(again.run(), expected));
  EXPECT_TRUE(same_bits(again.key_cache.values(), problem.key_cache.values()));
}

TEST_P(PagedAttentionTest, LargeLogitsAndSinksStayFinite) {
  Random random(12);
  PagedOptions o;
  o.sink = true, o.scale = 100;
  PagedProblem<float> problem(o, {100}, {70}, random);
  problem.sink[0] = 1e30f, problem.sink[1] = -std::numeric_limits<float>::infinity();
  const auto output = problem.run();
  for (std::size_t i = 0; i < output.size(); ++i) ASSERT_TRUE(std::isfinite(output[i])) << i;
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(output[i], 0);  // the sink takes all the weight
}

// A block of the cache whose logits are all −infinity weighs nothing, wherever the others lie.
TEST_P(PagedAttentionTest, BlocksOfInfinitelyLowLogitsWeighNothing) {
  Random random(15);
  PagedOptions o{.kv_heads = 1, .group = 1, .head_dim = 8, .block_size = 64};
  PagedProblem<float> problem(o, {64}, {1}, random);
  std::fill(problem.query.begin(), problem.query.end(), 10.0f);
  for (std::int64_t position = 0; position < 64; ++position) {
    std::fill_n(problem.key_cache.data() + problem.cache_row(0, position) * 8, 8, -3e38f);
  }
  EXPECT_TRUE(same_bits(problem.run(), problem.value));
}

TEST(PagedAttentionTargetTest, TargetsWithFmaGiveEqualBits) {
  if (!has_target("AVX2") || !has_target("AVX3")) GTEST_SKIP() << "needs AVX2 and AVX3";
  Random random(14);
  for (int round = 0; round < 30; ++round) {
    auto problem = random_problem<float>(random_options(random), random);
    auto twin = problem;
    set_cpu_target("AVX3");
    const auto wide = problem.run();
    set_cpu_target("AVX2");
    EXPECT_TRUE(same_bits(twin.run(), wide)) << name_of(problem);
    EXPECT_TRUE(same_bits(twin.key_cache.values(), problem.key_cache.values()));
  }
  set_cpu_target("");
}

}  // namespace
}  // namespace deltaworks::testing

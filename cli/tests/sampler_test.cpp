#include "sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace deltaworks::cli {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::int32_t> first(std::int32_t count) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST(Sampler, GreedyTakesTheLargestAllowedLogit) {
  const std::vector<float> logits{1, 3, 3, 9};
  EXPECT_EQ(Sampler(0, 0, first(3)).choose(logits, 0), 1);
}

TEST(Sampler, BarredTokensAreNeverSampled) {
  const std::vector<float> logits{0, 0, 50};
  for (std::uint64_t position = 0; position < 1000; ++position) {
    EXPECT_LT(Sampler(1, 7, first(2)).choose(logits, position), 2);
  }
}

TEST(Sampler, LogitsThatAreNoNumbersAreRefused) {
  for (const double temperature : {0.0, 1.0}) {
    const Sampler sampler(temperature, 0, first(2));
    EXPECT_THROW(sampler.choose(std::vector<float>{kNan, kNan}, 0), std::runtime_error);
    EXPECT_THROW(sampler.choose(std::vector<float>{1, kInf}, 0), std::runtime_error);
    EXPECT_THROW(sampler.choose(std::vector<float>{-kInf, -kInf}, 0), std::runtime_error);
    EXPECT_EQ(sampler.choose(std::vector<float>{kNan, -100}, 0), 1);
    EXPECT_EQ(sampler.choose(std::vector<float>{-kInf, -100}, 0), 1);
  }
}

TEST(Sampler, SeedAndPositionDecide) {
  const std::vector<float> logits(16, 0);
  const Sampler sampler(1, 5, first(16)), same(1, 5, first(16)), other(1, 6, first(16));
  int differences = 0;
  for (std::uint64_t position = 0; position < 64; ++position) {
    EXPECT_EQ(sampler.choose(logits, position), same.choose(logits, position));
    differences += sampler.choose(logits, position) != other.choose(logits, position) ? 1 : 0;
  }
  EXPECT_GT(differences, 32);
}

TEST(Sampler, StreamsAndSeedsAreApart) {
  double product = 0;
  constexpr std::uint64_t kDraws = 4000;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    EXPECT_NE(uniform(1, i, 1), uniform(1, i, 2));
    EXPECT_NE(uniform(1, i, 1), uniform(2, i, 1));
    product += (uniform(1, i, 1) - 0.5) * (uniform(1, i, 2) - 0.5);
  }
  // Uncorrelated: the mean product of two has the standard deviation 1 / (12 √draws).
  EXPECT_LT(std::abs(product / kDraws), 4 / (12 * std::sqrt(kDraws)));
}

TEST(Sampler, ADrawnDraftStandsAsOftenAsItCan) {
  const std::vector<float> logits{0, 1, 2, 9};
  const Sampler sampler(1, 3, first(3));  // the last one is barred
  const std::vector<std::int32_t> ids{2, 3};
  const std::vector<double> draft{0.5, 0.5};
  for (std::uint64_t position = 0; position < 200; ++position) {
    // p(2) = 0.665 > q(2): stands always. A barred token never does.
    EXPECT_TRUE(sampler.verify(logits, position, 2, ids, draft).accepted);
    const auto barred = sampler.verify(logits, position, 3, ids, draft);
    EXPECT_FALSE(barred.accepted);
    EXPECT_LT(barred.token, 3);
  }
}

TEST(Sampler, FollowsTheSoftmax) {
  const std::vector<float> logits{0, 1, 2, -1, 0.5f};
  for (const double temperature : {0.7, 1.0, 2.0}) {
    const Sampler sampler(temperature, 11, first(5));
    constexpr int kDraws = 20000;
    std::vector<double> counts(5), weights;
    for (std::uint64_t i = 0; i < kDraws; ++i) {
      counts[static_cast<std::size_t>(sampler.choose(logits, i))] += 1;
    }
    for (const float logit : logits) weights.push_back(std::exp(logit / temperature));
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    double chi_square = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      const double expected = kDraws * weights[i] / total;
      chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    EXPECT_LT(chi_square, 18.5) << temperature;  // 4 degrees of freedom: exceeded once in 1000
  }
}

}  // namespace
}  // namespace deltaworks::cli

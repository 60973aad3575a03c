#include "deltaworks/dflash2_path.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "deltaworks/error.hpp"
#include "support/random.hpp"

namespace deltaworks {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// The candidates of one sequence, and where a walk leaves its results.
struct Problem {
  std::int64_t slots, candidates;
  std::vector<std::int32_t> ids;
  std::vector<float> scores;
  std::vector<double> uniforms;
  std::vector<std::int32_t> tokens;
  std::vector<double> probabilities;

  Problem(std::int64_t slots_, std::int64_t candidates_, std::mt19937& random)
      : slots(slots_), candidates(candidates_), tokens(slots, -7) {
    std::normal_distribution<float> score(0, 3);
    for (std::int64_t i = 0; i < slots * candidates; ++i) {
      ids.push_back(static_cast<std::int32_t>(1000 - 7 * i));
    }
    for (std::int64_t i = 0; i < slots * candidates * candidates; ++i) {
      scores.push_back(score(random));
    }
    draw_uniforms(random);
    probabilities.assign(ids.size(), std::numeric_limits<double>::quiet_NaN());
  }

  void draw_uniforms(std::mt19937& random) {
    uniforms.clear();
    for (std::int64_t i = 0; i < slots; ++i) {
      uniforms.push_back(std::uniform_real_distribution<double>(0, 1)(random));
    }
  }

  DFlash2PathArgs args(double temperature) {
    DFlash2PathArgs result{.candidate_ids = {ids.data(), {slots, candidates}},
                           .scores = {scores.data(), {slots, candidates, candidates}},
                           .tokens = {tokens.data(), {slots}},
                           .temperature = temperature,
                           .probabilities = {{probabilities.data(), {slots, candidates}}}};
    if (temperature > 0) result.uniforms = {uniforms.data(), {slots}};
    return result;
  }

  float score(std::int64_t slot, std::int64_t before, std::int64_t candidate) const {
    return scores[static_cast<std::size_t>((slot * candidates + before) * candidates + candidate)];
  }
};

// The walk in plain words: probabilities of every candidate behind `before`, greedy ones certain.
std::vector<double> distribution(const Problem& p, std::int64_t slot, std::int64_t before,
                                 double temperature) {
  std::vector<double> weights;
  double largest = -HUGE_VAL, whole = 0;
  for (std::int64_t c = 0; c < p.candidates; ++c) {
    largest = std::max<double>(largest, p.score(slot, before, c));
  }
  for (std::int64_t c = 0; c < p.candidates; ++c) {
    const double below = p.score(slot, before, c) - largest;
    const bool taken = below == 0 && whole == 0;
    weights.push_back(temperature > 0 ? std::exp(below / temperature) : (taken ? 1.0 : 0.0));
    whole += weights.back();
  }
  for (double& weight : weights) weight /= whole;
  return weights;
}

TEST(Dflash2Path, FollowsThePlainReference) {
  std::mt19937 random(static_cast<std::uint32_t>(testing::fresh_seed()));
  for (const double temperature : {0.0, 0.3, 0.7, 2.0}) {
    for (const auto& [slots, candidates] : {std::pair{7, 8}, {15, 16}, {1, 1}, {3, 1}, {0, 4}}) {
      Problem p(slots, candidates, random);
      walk_dflash2_path(p.args(temperature));
      std::int64_t before = 0;
      for (std::int64_t slot = 0; slot < p.slots; ++slot) {
        const auto expected = distribution(p, slot, before, temperature);
        const auto first = static_cast<std::size_t>(slot * p.candidates);
        for (std::size_t c = 0; c < expected.size(); ++c) {
          EXPECT_NEAR(p.probabilities[first + c], expected[c], 1e-12);
        }
        const std::int32_t token = p.tokens[static_cast<std::size_t>(slot)];
        std::size_t chosen = 0;
        double below = 0;
        while (chosen < expected.size() && p.ids[first + chosen] != token) {
          below += expected[chosen++];
        }
        ASSERT_LT(chosen, expected.size()) << "token " << token << " is no candidate";
        if (temperature > 0) {
          const double u = p.uniforms[static_cast<std::size_t>(slot)];
          EXPECT_GT(u, below - 1e-12);
          EXPECT_LT(u, below + expected[chosen] + 1e-12);
        } else {
          EXPECT_EQ(expected[chosen], 1);
        }
        before = static_cast<std::int64_t>(chosen);
      }
    }
  }
}

TEST(Dflash2Path, TiesTakeTheFirstAndNanIsNeverChosen) {
  std::mt19937 random(1);
  Problem p(3, 4, random);
  p.scores.assign(p.scores.size(), 2);
  p.scores[0] = kNan;
  walk_dflash2_path(p.args(0));
  EXPECT_EQ(p.tokens, (std::vector<std::int32_t>{p.ids[1], p.ids[4], p.ids[8]}));
  p.uniforms = {0, 0, 0};
  walk_dflash2_path(p.args(1));
  EXPECT_EQ(p.tokens[0], p.ids[1]);
  EXPECT_EQ(p.probabilities[0], 0);
  EXPECT_NEAR(p.probabilities[1], 1.0 / 3, 1e-15);
}

TEST(Dflash2Path, ScoresWithoutASoftmaxGiveTheGreedyChoiceForCertain) {
  std::mt19937 random(1);
  for (const double temperature : {0.0, 1.0}) {
    for (const auto& [score, expected] : {std::pair{kNan, 0}, {-kInf, 0}, {kInf, 2}}) {
      Problem p(1, 4, random);
      p.scores.assign(p.scores.size(), std::isnan(score) ? kNan : -kInf);
      p.scores[2] = score;
      p.uniforms = {0.999};
      walk_dflash2_path(p.args(temperature));
      EXPECT_EQ(p.tokens[0], p.ids[static_cast<std::size_t>(expected)]);
      EXPECT_EQ(p.probabilities[static_cast<std::size_t>(expected)], 1);
    }
  }
}

std::string complaint(const DFlash2PathArgs& args) {
  try {
    walk_dflash2_path(args);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Dflash2Path, RefusalsNameTheArgumentAndWriteNothing) {
  std::mt19937 random(1);
  Problem p(3, 4, random);
  auto args = p.args(0);
  args.temperature = -1;
  EXPECT_EQ(complaint(args),
            "walk_dflash2_path: temperature is -1, expected a finite number from 0");
  args = p.args(1);
  args.uniforms.reset();
  EXPECT_NE(complaint(args).find("uniforms are missing"), std::string::npos);
  args = p.args(1);
  p.uniforms[2] = 1;
  EXPECT_EQ(complaint(args), "walk_dflash2_path: a uniform is 1, expected [0, 1)");
  args = p.args(0);
  args.tokens = {p.tokens.data(), {2}};
  EXPECT_EQ(complaint(args), "walk_dflash2_path: tokens has an extent of 2, expected 3");
  args = p.args(0);
  args.scores = {p.scores.data(), {3, 4, 3}};
  EXPECT_EQ(complaint(args), "walk_dflash2_path: scores has an extent of 3, expected 4");
  EXPECT_EQ(p.tokens, std::vector<std::int32_t>(3, -7));
  for (const double probability : p.probabilities) EXPECT_TRUE(std::isnan(probability));
}

SampledDraftArgs draft_args(const std::vector<double>& target, const std::vector<std::int32_t>& ids,
                            const std::vector<double>& draft, std::size_t chosen) {
  return {.target_probabilities = {target.data(), {static_cast<std::int64_t>(target.size())}},
          .candidate_ids = {ids.data(), {static_cast<std::int64_t>(ids.size())}},
          .draft_probabilities = {draft.data(), {static_cast<std::int64_t>(draft.size())}},
          .draft = ids[chosen],
          .accept_uniform = 0.999999,
          .residual_uniform = 0.5};
}

TEST(Dflash2Path, ADraftIsReplacedFromWhatIsLeft) {
  const std::vector<double> target{0.5, 0.25, 0.25};
  const std::vector<std::int32_t> ids{0, 1};
  EXPECT_TRUE(verify_sampled_draft(draft_args(target, ids, {0.5, 0.5}, 0)).accepted);
  // max(p − q, 0) = (0, 0, 0.25)
  const auto replaced = verify_sampled_draft(draft_args(target, ids, {0.5, 0.5}, 1));
  EXPECT_FALSE(replaced.accepted);
  EXPECT_EQ(replaced.token, 2);
  // Outside the vocabulary: never accepted, and the rest is all of p.
  const auto foreign = verify_sampled_draft(draft_args(target, {-1, 3}, {0.5, 0.5}, 1));
  EXPECT_FALSE(foreign.accepted);
  EXPECT_EQ(foreign.token, 1);
  const std::vector<double> zeros{0, 0};
  EXPECT_THROW(verify_sampled_draft(draft_args(zeros, ids, {0.5, 0.5}, 1)), InvalidArgument);
}

TEST(Dflash2Path, ProbabilitiesThatAreNoneAreRefused) {
  const std::vector<double> right{0.5, 0.5};
  const std::vector<std::int32_t> ids{0, 1};
  for (const double bad : {std::nan(""), -0.25, HUGE_VAL}) {
    const std::vector<double> wrong{0.5, bad};
    for (const auto& [target, draft, name] :
         {std::tuple{&wrong, &right, "target"}, {&right, &wrong, "draft"}}) {
      try {
        verify_sampled_draft(draft_args(*target, ids, *draft, 0));
        ADD_FAILURE() << bad << " was accepted";
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find(std::string(name) + "_probabilities[1] is"),
                  std::string::npos)
            << error.what();
      }
    }
  }
}

TEST(Dflash2Path, ElementsMayLieApart) {
  const std::vector<double> target{0.5, kNan, 0.25, kNan, 0.25, kNan}, draft{0.5, kNan, 0.5, kNan};
  const std::vector<std::int32_t> ids{0, 7, 1, 7};
  const auto result = verify_sampled_draft({.target_probabilities = {target.data(), {3}, 2},
                                            .candidate_ids = {ids.data(), {2}, 2},
                                            .draft_probabilities = {draft.data(), {2}, 2},
                                            .draft = 1,
                                            .accept_uniform = 0.999999,
                                            .residual_uniform = 0.5});
  EXPECT_FALSE(result.accepted);
  EXPECT_EQ(result.token, 2);
}

// Over drafts from q and uniforms, tokens follow p; q lacks tokens of p, and p some of q.
TEST(Dflash2Path, VerifiedDraftsFollowTheTarget) {
  const std::vector<double> target{0.3, 0.05, 0.25, 0, 0.3, 0.1};
  const std::vector<std::int32_t> ids{4, 3, 0, 1};
  std::mt19937 random(5);  // fixed: the bound is exceeded once in 10,000 seeds
  std::uniform_real_distribution<double> uniform(0, 1);
  constexpr int kDraws = 200000;
  std::map<std::int32_t, int> seen;
  int accepted = 0;
  const std::vector<double> draft{0.4, 0.2, 0.3, 0.1};
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform(random);
    auto args = draft_args(target, ids, draft, u < 0.4 ? 0 : u < 0.6 ? 1 : u < 0.9 ? 2 : 3);
    args.accept_uniform = uniform(random);
    args.residual_uniform = uniform(random);
    const auto result = verify_sampled_draft(args);
    ++seen[result.token];
    accepted += result.accepted ? 1 : 0;
  }
  double chi_square = 0;
  for (std::size_t id = 0; id < target.size(); ++id) {
    const double expected = kDraws * target[id], count = seen[static_cast<std::int32_t>(id)];
    if (expected == 0) {
      EXPECT_EQ(count, 0);
    } else {
      chi_square += (count - expected) * (count - expected) / expected;
    }
  }
  EXPECT_LT(chi_square, 23.5);  // 4 degrees of freedom: exceeded once in 10,000
  // Σ min(p, q), as often as any method could.
  EXPECT_NEAR(static_cast<double>(accepted) / kDraws, 0.65, 0.006);
}

}  // namespace
}  // namespace deltaworks

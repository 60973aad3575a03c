#include "decode.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lookup.hpp"

namespace deltaworks::cli {
namespace {

constexpr std::int32_t kVocabulary = 264, kEnd = 256;

// Logits are a function of the last tokens; checks that it is driven as a model must be.
class FakeModel : public Sequence {
 public:
  explicit FakeModel(std::int32_t letters = 6, std::size_t context = 2)
      : letters_(letters), context_(context) {}

  void reset() override { tokens_.clear(), pending_.clear(), ++resets; }

  std::span<const float> advance(std::span<const std::int32_t> tokens) override {
    EXPECT_TRUE(pending_.empty());
    EXPECT_TRUE(!tokens.empty() && tokens.size() <= kMaxCall);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    rows_ = {row()};
    return rows_[0];
  }

  std::vector<std::span<const float>> verify(std::span<const std::int32_t> tokens) override {
    EXPECT_TRUE(pending_.empty());
    EXPECT_GT(tokens.size(), 1u);
    longest_verify = std::max(longest_verify, tokens.size());
    rows_.clear();
    for (const std::int32_t token : tokens) {
      tokens_.push_back(token);
      rows_.push_back(row());
    }
    pending_.assign(tokens.begin(), tokens.end());
    return {rows_.begin(), rows_.end()};
  }

  void keep(std::int64_t tokens) override {
    const auto pending = static_cast<std::int64_t>(pending_.size());
    ASSERT_TRUE(tokens >= 1 && tokens <= pending);
    tokens_.resize(tokens_.size() - static_cast<std::size_t>(pending - tokens));
    pending_.clear();
  }

  std::vector<std::int32_t> tokens_;
  std::size_t longest_verify = 0;
  int resets = 0;
  std::int64_t end_after = -1;  // tokens; then the end is certain

 private:
  std::vector<float> row() const {
    std::vector<float> logits(kVocabulary, -50);
    std::uint64_t key = 1;
    for (std::size_t i = 0; i < std::min(context_, tokens_.size()); ++i) {
      key = key * 1000003 + static_cast<std::uint64_t>(tokens_[tokens_.size() - 1 - i]);
    }
    for (std::int32_t i = 0; i < letters_; ++i) {
      logits[static_cast<std::size_t>('a' + i)] =
          static_cast<float>(3 * uniform(key, static_cast<std::uint64_t>(i)));
    }
    if (static_cast<std::int64_t>(tokens_.size()) == end_after) logits[kEnd] = 100;
    return logits;
  }

  std::int32_t letters_;
  std::size_t context_;
  std::vector<std::int32_t> pending_;
  std::vector<std::vector<float>> rows_;
};

Sampler byte_sampler(double temperature, std::uint64_t seed = 3) {
  std::vector<std::int32_t> allowed(257);
  std::iota(allowed.begin(), allowed.end(), 0);
  return {temperature, seed, allowed};
}

Decoding decoding(std::int64_t max_tokens, Drafter drafter = nullptr, std::int64_t drafts = 7) {
  Decoding how;
  how.max_tokens = max_tokens;
  how.end_tokens = {kEnd};
  how.draft_tokens = drafter ? drafts : 0;
  how.drafter = std::move(drafter);
  return how;
}

Draft certain(std::vector<std::int32_t> tokens) { return {std::move(tokens), {}, {}}; }

Draft lookup(std::span<const std::int32_t> history, std::size_t limit) {
  return certain(lookup_drafts(history, limit));
}

const std::vector<std::int32_t> kPrompt{'a', 'b', 'a', 'c'};

TEST(Decode, DraftsChangeNoByte) {
  const std::vector<Drafter> drafters{
      lookup,
      [](auto, std::size_t limit) { return certain(std::vector<std::int32_t>(limit, 'a')); },
      [](auto history, std::size_t limit) {
        return certain(std::vector<std::int32_t>(limit % (1 + history.size() % 7), 'b'));
      },
      [](auto, std::size_t limit) { return certain(std::vector<std::int32_t>(limit, kEnd)); }};
  for (const double temperature : {0.0, 0.7, 1.5}) {
    const Sampler sampler = byte_sampler(temperature);
    FakeModel model;
    const auto plain = generate_text(model, kPrompt, sampler, decoding(300));
    ASSERT_EQ(plain.text.size(), 300u);
    EXPECT_EQ(plain.calls, 299);
    for (const Drafter& drafter : drafters) {
      const auto drafted = generate_text(model, kPrompt, sampler, decoding(300, drafter));
      EXPECT_EQ(drafted.text, plain.text);
    }
    EXPECT_LE(model.longest_verify, 8u);
  }
}

TEST(Decode, GoodDraftsSaveCalls) {
  FakeModel model;
  const Sampler sampler = byte_sampler(0);
  const std::string text = generate_text(model, kPrompt, sampler, decoding(81)).text;
  const Drafter oracle = [&](std::span<const std::int32_t> history, std::size_t limit) {
    const auto from = text.begin() + static_cast<std::ptrdiff_t>(history.size() - kPrompt.size());
    return certain(std::vector<std::int32_t>(from, from + static_cast<std::ptrdiff_t>(limit)));
  };
  const auto drafted = generate_text(model, kPrompt, sampler, decoding(81, oracle));
  EXPECT_EQ(drafted.text, text);
  EXPECT_EQ(drafted.calls, 10);  // the prompt gives one token, each call eight
  EXPECT_EQ(drafted.mean_accepted_length(), 8);
  EXPECT_EQ(drafted.accepted, drafted.drafted);
}

TEST(Decode, StopsAtTheEndOfTheDocument) {
  for (const std::int64_t end : {4, 5, 20, 23}) {
    for (const bool with_drafts : {false, true}) {
      FakeModel model;
      model.end_after = end;
      const auto how = with_drafts ? decoding(300, lookup) : decoding(300);
      const auto generation = generate_text(model, kPrompt, byte_sampler(0), how);
      EXPECT_TRUE(generation.ended);
      EXPECT_EQ(static_cast<std::int64_t>(generation.text.size()), end - 4);
    }
  }
}

TEST(Decode, GivesExactlyTheTokensAskedFor) {
  for (const std::int64_t tokens : {0, 1, 2, 3, 8, 9}) {
    FakeModel model(1);
    std::string streamed;
    auto how = decoding(tokens, lookup);
    how.on_text = [&](std::string_view text) { streamed += text; };
    const auto generation = generate_text(model, kPrompt, byte_sampler(0), how);
    EXPECT_EQ(generation.text, std::string(static_cast<std::size_t>(tokens), 'a'));
    EXPECT_EQ(streamed, generation.text);
    EXPECT_FALSE(generation.ended);
  }
}

TEST(Decode, LongPromptsRunInParts) {
  FakeModel model;
  auto how = decoding(5);
  std::vector<std::int64_t> seen;
  how.on_prompt = [&](std::int64_t done, std::int64_t) { seen.push_back(done); };
  generate_text(model, std::vector<std::int32_t>(1100, 'a'), byte_sampler(0), how);
  EXPECT_EQ(seen, (std::vector<std::int64_t>{512, 1024, 1100}));
  EXPECT_EQ(model.resets, 1);
}

// A model without memory: every byte is drawn from one distribution, and a draft of one letter is
// accepted with that letter's probability.
TEST(Decode, VerifiedDraftsFollowTheModelsDistribution) {
  FakeModel model(4, 0);
  constexpr std::int64_t kTokens = 20000;
  const Drafter always_b = [](auto, std::size_t limit) {
    return certain(std::vector<std::int32_t>(std::min<std::size_t>(limit, 1), 'b'));
  };
  const auto drafted = generate_text(model, kPrompt, byte_sampler(1), decoding(kTokens, always_b));
  double weights[4], total = 0, chi_square = 0;
  for (std::uint64_t i = 0; i < 4; ++i) {
    total += weights[i] = std::exp(static_cast<float>(3 * uniform(1, i)));
  }
  for (int i = 0; i < 4; ++i) {
    const double expected = kTokens * weights[i] / total;
    const double seen =
        static_cast<double>(std::count(drafted.text.begin(), drafted.text.end(), 'a' + i));
    chi_square += (seen - expected) * (seen - expected) / expected;
  }
  EXPECT_LT(chi_square, 16.3);  // 3 degrees of freedom: exceeded once in 1000
  const double accepted = static_cast<double>(drafted.accepted) / drafted.drafted;
  const double p = weights[1] / total;
  EXPECT_NEAR(accepted, p, 4 * std::sqrt(p * (1 - p) / static_cast<double>(drafted.drafted)));
}

// Draws each draft from one distribution over `letters`, whatever the model says.
Drafter drawing(std::vector<std::int32_t> letters, std::vector<double> weights) {
  return [=](std::span<const std::int32_t> history, std::size_t limit) {
    Draft draft;
    for (std::size_t i = 0; i < limit; ++i) {
      double left = uniform(77, history.size() + i);
      std::size_t chosen = 0;
      while (chosen + 1 < weights.size() && (left -= weights[chosen]) >= 0) ++chosen;
      draft.tokens.push_back(letters[chosen]);
      draft.candidate_ids.insert(draft.candidate_ids.end(), letters.begin(), letters.end());
      draft.probabilities.insert(draft.probabilities.end(), weights.begin(), weights.end());
    }
    return draft;
  };
}

std::vector<double> letter_weights(std::uint64_t key, std::uint64_t letters, double temperature) {
  std::vector<double> weights;
  double total = 0;
  for (std::uint64_t i = 0; i < letters; ++i) {
    weights.push_back(std::exp(static_cast<float>(3 * uniform(key, i)) / temperature));
    total += weights.back();
  }
  for (double& weight : weights) weight /= total;
  return weights;
}

// The next letter depends on the last one: each pair is as frequent as when decoding plainly, though
// the drafts ignore the model, propose what it never writes and lack what it does.
TEST(Decode, DrawnDraftsFollowTheModelsDistribution) {
  constexpr std::int64_t kTokens = 30000;
  for (const double temperature : {0.7, 1.0}) {
    const Sampler sampler = byte_sampler(temperature);
    for (const auto& how : {decoding(kTokens),
                            decoding(kTokens, drawing({'c', 'a', 'x', kEnd}, {0.5, 0.2, 0.2, 0.1})),
                            decoding(kTokens, drawing({'a', 'b', 'c'}, {0.2, 0.7, 0.1}), 3)}) {
      FakeModel model(3, 1);
      const std::string text = generate_text(model, kPrompt, sampler, how).text;
      ASSERT_EQ(text.size(), static_cast<std::size_t>(kTokens));
      double chi_square = 0;
      for (std::int32_t last = 'a'; last < 'd'; ++last) {
        std::vector<double> seen(3);
        for (std::size_t i = 1; i < text.size(); ++i) {
          if (text[i - 1] == last) seen.at(static_cast<std::size_t>(text[i] - 'a')) += 1;
        }
        const double total = std::accumulate(seen.begin(), seen.end(), 0.0);
        const auto weights =
            letter_weights(1000003 + static_cast<std::uint64_t>(last), 3, temperature);
        for (std::size_t i = 0; i < 3; ++i) {
          const double expected = total * weights[i];
          chi_square += (seen[i] - expected) * (seen[i] - expected) / expected;
        }
      }
      EXPECT_LT(chi_square, 22.5) << temperature;  // 6 degrees of freedom: once in 1000
    }
  }
}

TEST(Decode, DraftsDrawnFromTheModelsDistributionAllStand) {
  FakeModel model(4, 0);
  const Drafter exact = drawing({'a', 'b', 'c', 'd'}, letter_weights(1, 4, 1));
  const auto drafted = generate_text(model, kPrompt, byte_sampler(1), decoding(801, exact));
  EXPECT_EQ(drafted.calls, 100);  // a rounding of p against q may cost a draft, not eight
  EXPECT_EQ(drafted.accepted, drafted.drafted);
}

TEST(Decode, ADrawnEndEndsTheTextWhereTheModelDoes) {
  for (const std::int64_t end : {5, 6, 11, 40}) {
    FakeModel model;
    model.end_after = end;
    const Drafter ends = drawing({kEnd, 'a', 'b'}, {0.4, 0.3, 0.3});
    const auto generation = generate_text(model, kPrompt, byte_sampler(1), decoding(300, ends));
    EXPECT_TRUE(generation.ended);
    EXPECT_EQ(static_cast<std::int64_t>(generation.text.size()), end - 4);
  }
}

}  // namespace
}  // namespace deltaworks::cli

// Decoding with and without drafts, over any model that can take tokens back.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sampler.hpp"

namespace deltaworks::cli {

// One sequence of a model. Rows of logits stay valid until the next call.
class Sequence {
 public:
  // Tokens of one call at most: matrix products run at full speed, and progress is still seen.
  static constexpr std::size_t kMaxCall = 512;

  virtual ~Sequence() = default;
  // Forgets everything.
  virtual void reset() = 0;
  // Runs and keeps all tokens; the logits after the last one.
  virtual std::span<const float> advance(std::span<const std::int32_t> tokens) = 0;
  // Runs tokens of which a suffix may be taken back; the logits after each. keep() must follow.
  virtual std::vector<std::span<const float>> verify(std::span<const std::int32_t> tokens) = 0;
  // Keeps the first `tokens` >= 1 tokens of the last verify().
  virtual void keep(std::int64_t tokens) = 0;
};

struct Draft {
  std::vector<std::int32_t> tokens;
  // Of drawn tokens: the candidates of each and the distribution that it was drawn from, both
  // [tokens, candidates]. Empty: the tokens are certain.
  std::vector<std::int32_t> candidate_ids;
  std::vector<double> probabilities;
};

// Proposes at most `limit` tokens that may follow the history.
using Drafter = std::function<Draft(std::span<const std::int32_t>, std::size_t limit)>;

struct Decoding {
  std::int64_t max_tokens = 200;
  std::vector<std::int32_t> end_tokens;  // end the text and are not part of it
  std::int64_t draft_tokens = 0;         // at most so many drafts a call; 0: plain decoding
  Drafter drafter;
  bool tap = false;  // the drafter is the package's own and reads the model's hidden rows
  std::function<void(std::string_view)> on_text;  // bytes as they come
  std::function<void(std::int64_t done, std::int64_t total)> on_prompt;
};

struct Generation {
  std::string text;  // one byte a token
  bool ended = false;
  std::int64_t prompt_tokens = 0;
  std::int64_t calls = 0;         // of the model after the prompt
  std::int64_t verify_calls = 0;  // of these, with drafts
  std::int64_t drafted = 0, accepted = 0;
  double prompt_seconds = 0, seconds = 0;
  double draft_seconds = 0;  // of `seconds`, in the drafter

  // Tokens that a verification yields: accepted drafts and the one chosen after them.
  double mean_accepted_length() const;
  double prompt_tokens_per_second() const;
  // Of the tokens after the first, which the prompt's call already gave.
  double tokens_per_second() const;

  // Sums of counts and times, for totals; texts are not joined.
  Generation& operator+=(const Generation& other);
  std::int64_t later_tokens = 0;
};

// Resets the sequence, runs the prompt (not empty) and generates.
Generation generate_text(Sequence& model, std::span<const std::int32_t> prompt,
                         const Sampler& sampler, const Decoding& how);

}  // namespace deltaworks::cli

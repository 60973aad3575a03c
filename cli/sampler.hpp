// Chooses the next token from one row of logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "deltaworks/dflash2_path.hpp"

namespace deltaworks::cli {

class Sampler {
 public:
  // Only `allowed` tokens are ever chosen. Temperature 0 takes the largest logit, the lowest token
  // among equals.
  Sampler(double temperature, std::uint64_t seed, std::vector<std::int32_t> allowed);

  // The token at `position` of the generated text. Its random number is a function of seed and
  // position alone, so a choice does not depend on how many choices came before it.
  //
  // Drafts are verified by choosing as if there were none and accepting the draft that was chosen.
  // That is rejection sampling from a draft distribution with all its mass on one token: the draft
  // d is accepted with probability p(d), and a rejected one is replaced by a token drawn from p
  // without d, renormalised. So drafts change neither the distribution nor, for equal logits, a
  // byte. Throws std::runtime_error when no allowed logit is a number.
  std::int32_t choose(std::span<const float> logits, std::uint64_t position) const;

  // Whether a draft stands that was drawn from `probabilities` of `candidate_ids`, and what the
  // token at `position` is then. The text follows the distribution of choose(), but not its bytes:
  // a draft that is likelier to be drawn than to be chosen takes the place of others.
  SampledDraftResult verify(std::span<const float> logits, std::uint64_t position,
                            std::int32_t draft, std::span<const std::int32_t> candidate_ids,
                            std::span<const double> probabilities) const;

  double temperature() const { return temperature_; }
  // For the draft at a position of the text; independent of what choose() and verify() use.
  double draft_uniform(std::uint64_t position) const;

 private:
  std::int32_t largest(std::span<const float> logits) const;
  double weight(std::span<const float> logits, std::int32_t best, std::int32_t token) const;

  double temperature_;
  std::uint64_t seed_;
  std::vector<std::int32_t> allowed_;
};

// Uniform in [0, 1), from a counter: equal arguments give equal numbers on every machine. Streams
// are independent of each other.
double uniform(std::uint64_t seed, std::uint64_t counter, std::uint64_t stream = 0);

}  // namespace deltaworks::cli

// Chooses the next token from one row of logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

 private:
  std::int32_t largest(std::span<const float> logits) const;

  double temperature_;
  std::uint64_t seed_;
  std::vector<std::int32_t> allowed_;
};

// Uniform in [0, 1), from a counter: equal arguments give equal numbers on every machine.
double uniform(std::uint64_t seed, std::uint64_t counter);

}  // namespace deltaworks::cli

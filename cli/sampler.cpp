#include "sampler.hpp"

#include <array>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace deltaworks::cli {

namespace {

// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
std::uint64_t mix(std::uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

enum Stream : std::uint64_t { kChoice, kDraft, kAcceptance, kReplacement };

float at(std::span<const float> logits, std::int32_t token) {
  return logits[static_cast<std::size_t>(token)];
}

}  // namespace

double uniform(std::uint64_t seed, std::uint64_t counter, std::uint64_t stream) {
  // The seed is mixed first: neighbouring seeds must not give shifted copies of one sequence. The
  // streams' increment is that of another generator (PCG), so that no two seeds share a stream.
  const std::uint64_t start = seed + 0x9e3779b97f4a7c15u + stream * 0x5851f42d4c957f2du;
  const std::uint64_t bits = mix(mix(start) + counter * 0x9e3779b97f4a7c15u);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

Sampler::Sampler(double temperature, std::uint64_t seed, std::vector<std::int32_t> allowed)
    : temperature_(temperature), seed_(seed), allowed_(std::move(allowed)) {}

std::int32_t Sampler::largest(std::span<const float> logits) const {
  std::int32_t best = -1;
  for (const std::int32_t token : allowed_) {
    const float logit = at(logits, token);
    if (!std::isnan(logit) && (best < 0 || logit > at(logits, best))) best = token;
  }
  if (best < 0 || std::isinf(at(logits, best))) {
    throw std::runtime_error("the model's logits are not finite numbers");
  }
  return best;
}

double Sampler::weight(std::span<const float> logits, std::int32_t best, std::int32_t token) const {
  const double distance = static_cast<double>(at(logits, token)) - at(logits, best);
  return std::isnan(distance) ? 0.0 : std::exp(distance / temperature_);
}

std::int32_t Sampler::choose(std::span<const float> logits, std::uint64_t position) const {
  const std::int32_t best = largest(logits);
  if (temperature_ == 0) return best;
  double total = 0;
  for (const std::int32_t token : allowed_) total += weight(logits, best, token);
  double left = uniform(seed_, position, kChoice) * total;
  for (const std::int32_t token : allowed_) {
    left -= weight(logits, best, token);
    if (left < 0) return token;
  }
  return best;  // rounding of the sums left nothing
}

SampledDraftResult Sampler::verify(std::span<const float> logits, std::uint64_t position,
                                   std::int32_t draft, std::span<const std::int32_t> candidate_ids,
                                   std::span<const double> probabilities) const {
  const std::int32_t best = largest(logits);
  std::vector<double> target(logits.size());
  for (const std::int32_t token : allowed_) {
    target[static_cast<std::size_t>(token)] = weight(logits, best, token);
  }
  const auto size = [](const auto& all) {
    return std::array{static_cast<std::int64_t>(all.size())};
  };
  return verify_sampled_draft({.target_probabilities = {target.data(), size(target)},
                               .candidate_ids = {candidate_ids.data(), size(candidate_ids)},
                               .draft_probabilities = {probabilities.data(), size(probabilities)},
                               .draft = draft,
                               .accept_uniform = uniform(seed_, position, kAcceptance),
                               .residual_uniform = uniform(seed_, position, kReplacement)});
}

double Sampler::draft_uniform(std::uint64_t position) const {
  return uniform(seed_, position, kDraft);
}

}  // namespace deltaworks::cli

#include "sampler.hpp"

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

float at(std::span<const float> logits, std::int32_t token) {
  return logits[static_cast<std::size_t>(token)];
}

}  // namespace

double uniform(std::uint64_t seed, std::uint64_t counter) {
  // The seed is mixed first: neighbouring seeds must not give shifted copies of one sequence.
  const std::uint64_t bits = mix(mix(seed + 0x9e3779b97f4a7c15u) + counter * 0x9e3779b97f4a7c15u);
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

std::int32_t Sampler::choose(std::span<const float> logits, std::uint64_t position) const {
  const std::int32_t best = largest(logits);
  if (temperature_ == 0) return best;
  const auto weight = [&](std::int32_t token) {
    const double distance = static_cast<double>(at(logits, token)) - at(logits, best);
    return std::isnan(distance) ? 0.0 : std::exp(distance / temperature_);
  };
  double total = 0;
  for (const std::int32_t token : allowed_) total += weight(token);
  double left = uniform(seed_, position) * total;
  for (const std::int32_t token : allowed_) {
    left -= weight(token);
    if (left < 0) return token;
  }
  return best;  // rounding of the sums left nothing
}

}  // namespace deltaworks::cli

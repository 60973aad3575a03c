#include "deltaworks/dflash2_path.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "deltaworks/error.hpp"

namespace deltaworks {

namespace {

void check_extent(std::string_view op, std::string_view argument, std::int64_t found,
                  std::int64_t expected) {
  if (found == expected) return;
  throw InvalidArgument(
      fmt::format("{}: {} has an extent of {}, expected {}", op, argument, found, expected));
}

// Written so that NaN fails.
void check_uniform(std::string_view op, std::string_view argument, double value) {
  if (value >= 0 && value < 1) return;
  throw InvalidArgument(fmt::format("{}: {} is {}, expected [0, 1)", op, argument, value));
}

void check(const DFlash2PathArgs& args) {
  constexpr std::string_view kOp = "walk_dflash2_path";
  const auto [slots, candidates] = args.candidate_ids.extents();
  if (slots < 0 || candidates < 1) {
    throw InvalidArgument(
        fmt::format("{}: candidate_ids has shape [{}, {}], expected at least one candidate", kOp,
                    slots, candidates));
  }
  check_extent(kOp, "scores", args.scores.extent(0), slots);
  check_extent(kOp, "scores", args.scores.extent(1), candidates);
  check_extent(kOp, "scores", args.scores.extent(2), candidates);
  check_extent(kOp, "tokens", args.tokens.extent(0), slots);
  if (!(args.temperature >= 0) || std::isinf(args.temperature)) {
    throw InvalidArgument(fmt::format("{}: temperature is {}, expected a finite number from 0", kOp,
                                      args.temperature));
  }
  if (args.uniforms.has_value() != (args.temperature > 0)) {
    throw InvalidArgument(fmt::format("{}: uniforms are {}, expected exactly with a temperature",
                                      kOp, args.uniforms ? "given" : "missing"));
  }
  if (args.uniforms) {
    check_extent(kOp, "uniforms", args.uniforms->extent(0), slots);
    for (std::int64_t slot = 0; slot < slots; ++slot) {
      check_uniform(kOp, "a uniform", (*args.uniforms)(slot));
    }
  }
  if (args.probabilities) {
    check_extent(kOp, "probabilities", args.probabilities->extent(0), slots);
    check_extent(kOp, "probabilities", args.probabilities->extent(1), candidates);
  }
}

// Of probabilities that are each a number from 0; written so that NaN fails.
double sum_of(std::string_view op, std::string_view argument, const View<const double, 1>& values) {
  double sum = 0;
  for (std::int64_t i = 0; i < values.extent(0); ++i) {
    if (!(values(i) >= 0) || std::isinf(values(i))) {
      throw InvalidArgument(fmt::format("{}: {}[{}] is {}, expected a finite number from 0", op,
                                        argument, i, values(i)));
    }
    sum += values(i);
  }
  if (!(sum > 0) || std::isinf(sum)) {
    throw InvalidArgument(
        fmt::format("{}: {} have the sum {}, expected a positive number", op, argument, sum));
  }
  return sum;
}

// The first of the largest scores; NaN is no score. 0 where nothing lies above −∞.
std::int64_t largest(const float* scores, std::int64_t candidates) {
  std::int64_t best = 0;
  float score = -std::numeric_limits<float>::infinity();
  for (std::int64_t c = 0; c < candidates; ++c) {
    if (scores[c] > score) score = scores[best = c];
  }
  return best;
}

// Fills `weights` and returns the candidate where their running sum exceeds uniform times the whole.
std::int64_t draw(const float* scores, double temperature, double uniform,
                  std::vector<double>& weights) {
  const auto candidates = static_cast<std::int64_t>(weights.size());
  const std::int64_t best = largest(scores, candidates);
  std::fill(weights.begin(), weights.end(), 0.0);
  if (!std::isfinite(scores[best])) {
    weights[static_cast<std::size_t>(best)] = 1;
    return best;
  }
  double whole = 0;
  for (std::int64_t c = 0; c < candidates; ++c) {
    const double below = static_cast<double>(scores[c]) - scores[best];
    const double weight = std::isnan(below) ? 0 : std::exp(below / temperature);
    weights[static_cast<std::size_t>(c)] = weight;
    whole += weight;
  }
  for (double& weight : weights) weight /= whole;
  double left = uniform;
  for (std::int64_t c = 0; c < candidates; ++c) {
    left -= weights[static_cast<std::size_t>(c)];
    if (left < 0) return c;
  }
  return best;  // rounding of the sums left nothing
}

}  // namespace

void walk_dflash2_path(const DFlash2PathArgs& args) {
  check(args);
  const auto [slots, candidates] = args.candidate_ids.extents();
  std::vector<double> weights(static_cast<std::size_t>(candidates));
  std::int64_t chosen = 0;
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    const float* scores = &args.scores(slot, slot == 0 ? 0 : chosen, 0);
    if (args.temperature > 0) {
      chosen = draw(scores, args.temperature, (*args.uniforms)(slot), weights);
    } else {
      chosen = largest(scores, candidates);
      std::fill(weights.begin(), weights.end(), 0.0);
      weights[static_cast<std::size_t>(chosen)] = 1;
    }
    args.tokens(slot) = args.candidate_ids(slot, chosen);
    if (args.probabilities) {
      std::copy(weights.begin(), weights.end(), args.probabilities->row(slot));
    }
  }
}

SampledDraftResult verify_sampled_draft(const SampledDraftArgs& args) {
  constexpr std::string_view kOp = "verify_sampled_draft";
  const std::int64_t vocabulary = args.target_probabilities.extent(0);
  const std::int64_t candidates = args.candidate_ids.extent(0);
  check_extent(kOp, "draft_probabilities", args.draft_probabilities.extent(0), candidates);
  check_uniform(kOp, "accept_uniform", args.accept_uniform);
  check_uniform(kOp, "residual_uniform", args.residual_uniform);
  std::int64_t at = 0;
  while (at < candidates && args.candidate_ids(at) != args.draft) ++at;
  if (at == candidates) {
    throw InvalidArgument(
        fmt::format("{}: draft is {}, expected one of candidate_ids", kOp, args.draft));
  }
  const auto is_token = [&](std::int32_t id) { return id >= 0 && id < vocabulary; };
  const double whole = sum_of(kOp, "target_probabilities", args.target_probabilities);
  sum_of(kOp, "draft_probabilities", args.draft_probabilities);
  const double wanted = is_token(args.draft) ? args.target_probabilities(args.draft) : 0;
  if (args.accept_uniform * args.draft_probabilities(at) * whole < wanted) {
    return {true, args.draft};
  }

  std::vector<double> residual(static_cast<std::size_t>(vocabulary));
  for (std::int64_t id = 0; id < vocabulary; ++id) {
    residual[static_cast<std::size_t>(id)] = args.target_probabilities(id);
  }
  for (std::int64_t c = 0; c < candidates; ++c) {
    const std::int32_t id = args.candidate_ids(c);
    if (!is_token(id)) continue;
    double& rest = residual[static_cast<std::size_t>(id)];
    rest = std::max(0.0, rest - args.draft_probabilities(c) * whole);
  }
  double left = 0;
  for (const double rest : residual) left += rest;
  // p = q but for rounding, or q above p everywhere because its sum is not 1: nothing else is left.
  if (left == 0) return {true, args.draft};
  left *= args.residual_uniform;
  std::int32_t last = 0;  // with a rest, if rounding of the sums leaves nothing
  for (std::int32_t id = 0; id < vocabulary; ++id) {
    const double rest = residual[static_cast<std::size_t>(id)];
    left -= rest;
    if (left < 0) return {false, id};
    if (rest > 0) last = id;
  }
  return {false, last};
}

}  // namespace deltaworks

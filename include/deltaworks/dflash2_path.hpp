/// From the candidates of a DFlash2 block drafter to drafts, and from drafts to tokens.
#pragma once

#include <cstdint>

#include "deltaworks/export.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks {

/// One path through the candidates of one sequence. `scores` holds, for slot t, predecessor a and
/// candidate c, what candidate c scores behind candidate a of slot t − 1; behind slot 0 lies the
/// anchor, so all its rows are equal and row 0 is read.
struct DFlash2PathArgs {
  View<const std::int32_t, 2> candidate_ids;  ///< [slots, candidates], different within a slot
  View<const float, 3> scores;                ///< [slots, candidates, candidates]
  View<std::int32_t, 1> tokens;               ///< [slots]: the path
  double temperature = 0;                     ///< 0: greedy
  /// [slots], each in [0, 1): exactly with a temperature above 0.
  OptionalView<const double, 1> uniforms{};
  /// [slots, candidates]: the distribution that each token was drawn from.
  OptionalView<double, 2> probabilities{};
};

/// Walks from the anchor: in each slot only the scores behind the token chosen before count.
/// Greedy: the candidate of the largest score, the first among equals. Otherwise the softmax of
/// scores / temperature in double, and the first candidate at which uniforms[slot], less the
/// probabilities up to it in their order, falls below 0; if rounding leaves none, the candidate of
/// the largest score. A score that is NaN is not chosen; where no score is a number above −∞, and
/// where +∞ makes a softmax meaningless, the choice is that of the greedy walk with probability 1
/// (the first candidate if there is none).
/// Throws InvalidArgument when an extent, the temperature or a uniform breaks this contract; nothing
/// is written then. That the ids of a slot differ and that the rows of slot 0 are equal is not
/// checked: neither is needed for the walk.
DELTAWORKS_EXPORT void walk_dflash2_path(const DFlash2PathArgs& args);

/// One draft that was drawn from its candidates' distribution, and what the target says there.
struct SampledDraftArgs {
  View<const double, 1> target_probabilities;  ///< [vocabulary]; their sum need not be 1
  View<const std::int32_t, 1> candidate_ids;   ///< [candidates], different
  View<const double, 1> draft_probabilities;   ///< [candidates], of sum 1
  std::int32_t draft;                          ///< one of candidate_ids
  double accept_uniform;                       ///< in [0, 1)
  double residual_uniform;                     ///< in [0, 1), independent of the other
};

struct SampledDraftResult {
  bool accepted;
  std::int32_t token;  ///< the draft, or what replaces it
};

/// Speculative sampling (Leviathan, Kalman, Matias, ICML 2023): with p the target's distribution and
/// q the draft's, the draft d is accepted with probability min(1, p(d) / q(d)); otherwise the token
/// is drawn from max(p − q, 0), normalised. Over draft and uniforms the token is distributed as p,
/// whatever q is. A candidate outside the vocabulary has p = 0. Where rounding leaves nothing of
/// max(p − q, 0), the draft is accepted.
/// Throws InvalidArgument when an extent or a uniform breaks this contract, when a probability is not
/// a finite number from 0, when a distribution's sum is 0, and when `draft` is no candidate. That
/// ids differ and that the sum of draft_probabilities is 1 is not checked: the token is then some
/// token of the vocabulary or the draft, but not distributed as p.
DELTAWORKS_EXPORT SampledDraftResult verify_sampled_draft(const SampledDraftArgs& args);

}  // namespace deltaworks

// A block of tokens as the recurrent engine wants it: gates computed, keys and queries converted
// and normalised.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "contract/gated_delta_net.hpp"
#include "cpu/gates-inl.h"
#include "cpu/load-inl.h"
#include "cpu/math-inl.h"
#include "cpu/sum-inl.h"
#include "deltaworks/gated_delta_net.hpp"

#if defined(DELTAWORKS_CPU_GATED_DELTA_NET_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_GATED_DELTA_NET_BLOCK_INL_H_
#undef DELTAWORKS_CPU_GATED_DELTA_NET_BLOCK_INL_H_
#else
#define DELTAWORKS_CPU_GATED_DELTA_NET_BLOCK_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kScratch = 3 * 8192;  // floats a task keeps on its stack: 96 KiB
constexpr std::int64_t kMaxBlock =
    64;  // tokens; a block's keys and queries should leave room in L2
static_assert(kScratch >= 3 * contract::kMaxKeyDim, "one token must fit");

// What one task needs to know of a token.
struct Token {
  const float* key;     // normalised, zero-padded to a multiple of 8
  const float* query;   // normalised, zero-padded
  const float* decays;  // per key, zero-padded; null: factor holds
  float factor, beta, key_query;
};

// A block of tokens of one head, converted and normalised once for all tiles.
struct Block {
  HWY_ALIGN float scratch[kScratch];
  Token token[kMaxBlock];
};

template <class T>
void normalise(const T* from, float* to, std::int64_t dim, std::int64_t padded, float epsilon) {
  float inverse = 1;
  if (epsilon > 0)
    inverse = 1.0f / std::sqrt(dot8(from, from, static_cast<std::size_t>(dim)) + epsilon);
  const Eight factor = set8(inverse);
  for (std::int64_t i = 0; i < padded; i += 8) {
    store8(mul8(load8_n(from + i, static_cast<std::size_t>(dim - i)), factor), to + i);
  }
}

// exp of the log decays `raw[0 … count)` of one head, a_log and dt_bias applied; dt_bias_step 0:
// one bias for all.
template <class T, class G>
void decay_factors(const GatedDeltaNetArgs<T, G>& args, const float* raw, std::int64_t count,
                   std::int64_t h, const float* dt_bias, std::int64_t dt_bias_step,
                   float* factors) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < count; i += lanes) {
    const auto n = static_cast<std::size_t>(std::min(lanes, count - i));
    auto g = load_float_n(d, raw + i, n);
    if (args.gate_activation != GateActivation::kNone) {
      const auto a_log = hn::Set(d, (*args.a_log)(h));
      const auto bias = dt_bias_step == 0 ? hn::Set(d, *dt_bias) : load_float_n(d, dt_bias + i, n);
      g = args.gate_activation == GateActivation::kSoftplus
              ? softplus_log_decay(d, g, a_log, bias)
              : sigmoid_log_decay(d, g, a_log, bias, args.gate_lower_bound);
    }
    store_float_n(exp(d, g), d, factors + i, n);
  }
}

// Factor, rate of `count` tokens from `start` on, for value head h.
template <class T, class G>
void gates(const GatedDeltaNetArgs<T, G>& args, std::int64_t start, std::int64_t count,
           std::int64_t h, std::int64_t padded, float* decays, Token* token) {
  float raw[kMaxBlock], factor[kMaxBlock];
  std::fill_n(factor, count, 1.0f);
  if (args.decay) {
    for (std::int64_t t = 0; t < count; ++t) raw[t] = to_float((*args.decay)(start + t, h));
    const float* bias = args.dt_bias ? &(*args.dt_bias)(h) : nullptr;
    decay_factors(args, raw, count, h, bias, 0, factor);
  }
  float rate[kMaxBlock];
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t t = 0; t < count; ++t)
    rate[t] = args.beta ? to_float((*args.beta)(start + t, h)) : 1.0f;
  if (args.beta && args.beta_activation == BetaActivation::kSigmoid) {
    for (std::int64_t t = 0; t < count; t += lanes) {
      const auto n = static_cast<std::size_t>(std::min(lanes, count - t));
      store_float_n(sigmoid(d, load_float_n(d, rate + t, n)), d, rate + t, n);
    }
  }
  for (std::int64_t t = 0; t < count; ++t) {
    token[t].factor = factor[t];
    token[t].beta = rate[t];
    token[t].decays = nullptr;
    if (!args.decay_per_key) continue;
    const auto& per_key = *args.decay_per_key;
    const std::int64_t key_dim = per_key.extent(2);
    float* const row = decays + t * padded;
    for (std::int64_t i = 0; i < key_dim; ++i) row[i] = to_float(per_key(start + t, h, i));
    const float* bias = args.dt_bias_per_key ? &(*args.dt_bias_per_key)(h, 0)
                        : args.dt_bias       ? &(*args.dt_bias)(h)
                                             : nullptr;
    decay_factors(args, row, key_dim, h, bias, args.dt_bias_per_key ? 1 : 0, row);
    std::fill(row + key_dim, row + padded, 0.0f);
    token[t].decays = row;
  }
}

template <class T, class G>
void prepare(const GatedDeltaNetArgs<T, G>& args, std::int64_t start, std::int64_t count,
             std::int64_t h, std::int64_t key_head, Block& block) {
  const std::int64_t key_dim = args.key.extent(2), padded = (key_dim + 7) / 8 * 8;
  const float epsilon = !args.qk_l2_norm                                   ? 0
                        : args.gate_activation == GateActivation::kSigmoid ? 1e-6f
                                                                           : 1e-12f;
  float* const decays = block.scratch + 2 * count * padded;
  gates(args, start, count, h, padded, decays, block.token);
  for (std::int64_t t = 0; t < count; ++t) {
    float* const key = block.scratch + 2 * t * padded;
    float* const query = key + padded;
    normalise(args.key.row(start + t) + key_head * key_dim, key, key_dim, padded, epsilon);
    normalise(args.query.row(start + t) + key_head * key_dim, query, key_dim, padded, epsilon);
    block.token[t].key = key;
    block.token[t].query = query;
    block.token[t].key_query = dot8(key, query, static_cast<std::size_t>(padded));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

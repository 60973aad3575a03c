// A block of tokens as the recurrent engine wants it: gates computed, keys and queries converted
// and normalised.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "contract/gated_delta_net.hpp"
#include "cpu/gated_delta_net_tile-inl.h"
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
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kScratch = 3 * 8192;  // floats that a task keeps on its stack: 96 KiB
constexpr std::int64_t kMaxBlock = 96;       // tokens; their keys and queries should fit in L2
static_assert(kScratch >= 3 * contract::kMaxKeyDim, "one token must fit");

// Floats of a token's vector.
HWY_INLINE std::int64_t padded_dim(std::int64_t key_dim) { return (key_dim + 7) / 8 * 8; }

// A block of tokens of one key head, converted and normalised once for all tiles.
struct Block {
  HWY_ALIGN float scratch[kScratch];
  Token token[kMaxBlock];
};

// rsqrt(sum x² + epsilon), or 1 when epsilon is 0.
template <class T>
float norm_factor(const T* x, std::size_t size, float epsilon) {
  return epsilon > 0 ? 1.0f / std::sqrt(dot8(x, x, size) + epsilon) : 1;
}

template <class T, class G>
float norm_epsilon(const GatedDeltaNetArgs<T, G>& args) {
  if (!args.qk_l2_norm) return 0;
  return args.gate_activation == GateActivation::kSigmoid ? 1e-6f : 1e-12f;
}

// x times its norm_factor, as a token's vector.
template <class T>
void normalise(const T* from, float* to, std::int64_t key_dim, float epsilon) {
  const auto size = static_cast<std::size_t>(key_dim);
  const Eight factor = set8(norm_factor(from, size, epsilon));
  for (std::int64_t i = 0; i < key_dim; i += 8) {
    const Eight x = load8_n(from + i, size - static_cast<std::size_t>(i));
    store8(mul8(x, factor), to + i);
  }
}

// One vector of log decays from the inputs of their gate.
template <class D, class T, class G>
HWY_INLINE hn::Vec<D> log_decay(D d, const GatedDeltaNetArgs<T, G>& args, hn::Vec<D> raw,
                                hn::Vec<D> a_log, hn::Vec<D> dt_bias) {
  switch (args.gate_activation) {
    case GateActivation::kSoftplus: return softplus_log_decay(d, raw, a_log, dt_bias);
    case GateActivation::kSigmoid:
      return sigmoid_log_decay(d, raw, a_log, dt_bias, args.gate_lower_bound);
    case GateActivation::kNone: break;
  }
  return raw;
}

// exp of the log decays `raw[0 … count)`, each with its a_log and dt_bias applied.
template <class T, class G>
void decay_factors(const GatedDeltaNetArgs<T, G>& args, const float* raw, std::int64_t count,
                   const float* a_log, const float* dt_bias, float* factors) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < count; i += lanes) {
    const auto n = static_cast<std::size_t>(std::min(lanes, count - i));
    const auto g = log_decay(d, args, load_float_n(d, raw + i, n), load_float_n(d, a_log + i, n),
                             load_float_n(d, dt_bias + i, n));
    store_float_n(exp(d, g), d, factors + i, n);
  }
}

// Decay factors and update rates of a block's tokens for some value heads at once, so that vectors
// are full also when there is one token: element (head − first head) · tokens + token.
struct Gates {
  float factor[kMaxBlock], beta[kMaxBlock];
};

template <class T, class G>
void scalar_decays(const GatedDeltaNetArgs<T, G>& args, std::int64_t start, std::int64_t count,
                   std::int64_t first_head, std::int64_t heads, float* factor) {
  if (!args.decay) {
    std::fill_n(factor, heads * count, 1.0f);
    return;
  }
  float a_log[kMaxBlock] = {}, dt_bias[kMaxBlock] = {};
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t i = head * count + t, h = first_head + head;
      factor[i] = to_float((*args.decay)(start + t, h));
      if (args.a_log) a_log[i] = (*args.a_log)(h);
      if (args.dt_bias) dt_bias[i] = (*args.dt_bias)(h);
    }
  }
  decay_factors(args, factor, heads * count, a_log, dt_bias, factor);
}

template <class T, class G>
void update_rates(const GatedDeltaNetArgs<T, G>& args, std::int64_t start, std::int64_t count,
                  std::int64_t first_head, std::int64_t heads, float* rate) {
  for (std::int64_t i = 0; i < heads * count; ++i) {
    rate[i] = args.beta ? to_float((*args.beta)(start + i % count, first_head + i / count)) : 1.0f;
  }
  if (!args.beta || args.beta_activation != BetaActivation::kSigmoid) return;
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < heads * count; i += lanes) {
    const auto n = static_cast<std::size_t>(std::min(lanes, heads * count - i));
    store_float_n(sigmoid(d, load_float_n(d, rate + i, n)), d, rate + i, n);
  }
}

// Decay factors per key of one head, as token vectors from `to` on.
template <class T, class G>
void per_key_decays(const GatedDeltaNetArgs<T, G>& args, std::int64_t start, std::int64_t count,
                    std::int64_t h, std::int64_t key_dim, float* to, Token* token) {
  const auto& decay = *args.decay_per_key;
  float a_log[8] = {}, dt_bias[8] = {};
  if (args.a_log) std::fill_n(a_log, 8, (*args.a_log)(h));
  if (args.dt_bias) std::fill_n(dt_bias, 8, (*args.dt_bias)(h));
  for (std::int64_t t = 0; t < count; ++t, to += padded_dim(key_dim)) {
    for (std::int64_t i = 0; i < key_dim; i += 8) {
      const std::int64_t n = std::min<std::int64_t>(8, key_dim - i);
      float block[8] = {};
      for (std::int64_t j = 0; j < n; ++j) block[j] = to_float(decay(start + t, h, i + j));
      if (args.dt_bias_per_key) std::copy_n(&(*args.dt_bias_per_key)(h, i), n, dt_bias);
      decay_factors(args, block, n, a_log, dt_bias, block);
      store8(load8(block), to + i);
    }
    token[t].factor = 1;
    token[t].decays = to;
  }
}

// What all value heads of a key head share: keys, queries and their products.
template <class T, class G>
void prepare_keys(const GatedDeltaNetArgs<T, G>& args, std::int64_t start, std::int64_t count,
                  std::int64_t key_head, Block& block) {
  const std::int64_t key_dim = args.key.extent(2), vector = padded_dim(key_dim);
  const std::int64_t offset = key_head * key_dim;
  const float epsilon = norm_epsilon(args);
  for (std::int64_t t = 0; t < count; ++t) {
    float* const key = block.scratch + 2 * t * vector;
    float* const query = key + vector;
    normalise(args.key.row(start + t) + offset, key, key_dim, epsilon);
    normalise(args.query.row(start + t) + offset, query, key_dim, epsilon);
    block.token[t].key = key;
    block.token[t].query = query;
    block.token[t].key_query = dot8(key, query, static_cast<std::size_t>(key_dim));
  }
}

// The gates of value heads first_head … first_head + heads − 1; heads · count is at most kMaxBlock.
template <class T, class G>
void prepare_gates(const GatedDeltaNetArgs<T, G>& args, std::int64_t start, std::int64_t count,
                   std::int64_t first_head, std::int64_t heads, Gates& gates) {
  if (!args.decay_per_key) scalar_decays(args, start, count, first_head, heads, gates.factor);
  update_rates(args, start, count, first_head, heads, gates.beta);
}

// Gives `count` tokens the gates of value head h, the one at `place` among the prepared ones.
template <class T, class G>
void choose_gates(const GatedDeltaNetArgs<T, G>& args, std::int64_t start, std::int64_t count,
                  std::int64_t h, std::int64_t place, const Gates& gates, Block& block,
                  Token* token) {
  for (std::int64_t t = 0; t < count; ++t) {
    token[t].beta = gates.beta[place * count + t];
    if (args.decay_per_key) continue;
    token[t].factor = gates.factor[place * count + t];
    token[t].decays = nullptr;
  }
  if (!args.decay_per_key) return;
  const std::int64_t key_dim = args.key.extent(2);
  float* const decays = block.scratch + 2 * count * padded_dim(key_dim);
  per_key_decays(args, start, count, h, key_dim, decays, token);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

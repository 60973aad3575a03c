/// Update rates and decays of the gated delta rule from a layer's raw projections, in one pass.
#pragma once

#include <cstdint>
#include <vector>

#include "deltaworks/access.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/dtype.hpp"
#include "deltaworks/export.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks {

/// Where the decay's first two steps are rounded to T: nowhere, or after each.
enum class GatedDeltaRatesArithmetic : std::uint8_t { kFloat32, kActivation };

/// One call. T is the type of the activations: float, Float16 or BFloat16.
template <class T>
struct GatedDeltaRatesArgs {
  View<const T, 2> update_logits;  ///< [tokens, value_heads]
  View<const T, 2> decay_inputs;   ///< [tokens, value_heads]
  View<const float, 1> a_log;      ///< [value_heads]
  View<const float, 1> dt_bias;    ///< [value_heads]
  View<T, 2> update_rates;         ///< [tokens, value_heads]
  View<float, 2> decay_factors;    ///< [tokens, value_heads]
  GatedDeltaRatesArithmetic arithmetic = GatedDeltaRatesArithmetic::kFloat32;
  bool log_decay = false;  ///< decay_factors gets the factors' natural logarithms
};

/// For token n and value head h, in float32:
///   update_rates  = sigmoid(update_logits), rounded to T
///   x             = decay_inputs + dt_bias[h]        with kActivation rounded to T
///   s             = max(x, 0) + log1p(exp(−|x|))     with kActivation rounded to T
///   decay_factors = exp(−(exp(a_log[h]) · s))        or with log_decay the exponent
/// An infinity in a sum or a product counts as the largest finite float32, so that inputs that are
/// numbers never give a NaN; a NaN stays in its element (one in a_log or dt_bias in its head).
/// With kFloat32 these are the gates of gated_delta_net with the softplus gate and the sigmoid beta
/// activation, bit for bit. In T = float both arithmetics are the same. Nothing is fused: the bits
/// are those of separate passes that round after each step. An element depends on its own inputs
/// and on its head's a_log and dt_bias alone. Outputs must not overlap an input or each other.
/// CUDA and the targets with fma give equal bits.
/// Throws InvalidArgument when an argument breaks this contract; nothing is written then.
/// Source: the gates of Qwen3-Next (docs/ops/gated_delta_rates.md).
DELTAWORKS_EXPORT void gated_delta_rates(const Cpu& device, const GatedDeltaRatesArgs<float>& args);
DELTAWORKS_EXPORT void gated_delta_rates(const Cpu& device,
                                         const GatedDeltaRatesArgs<Float16>& args);
DELTAWORKS_EXPORT void gated_delta_rates(const Cpu& device,
                                         const GatedDeltaRatesArgs<BFloat16>& args);
DELTAWORKS_EXPORT void gated_delta_rates(const Cuda& device,
                                         const GatedDeltaRatesArgs<float>& args);
DELTAWORKS_EXPORT void gated_delta_rates(const Cuda& device,
                                         const GatedDeltaRatesArgs<Float16>& args);
DELTAWORKS_EXPORT void gated_delta_rates(const Cuda& device,
                                         const GatedDeltaRatesArgs<BFloat16>& args);

/// The memory that such a call would read and write (deltaworks/access.hpp).
template <class T>
DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(const GatedDeltaRatesArgs<T>& args);

}  // namespace deltaworks

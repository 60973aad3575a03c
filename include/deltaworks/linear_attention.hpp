/// The gated delta rule of dense graphs: sequences of one length, heads packed into rows, states
/// K-major.
#pragma once

#include <cstdint>
#include <vector>

#include "deltaworks/access.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/dtype.hpp"
#include "deltaworks/export.hpp"
#include "deltaworks/gated_delta_net.hpp"  // UpdateRule
#include "deltaworks/view.hpp"

namespace deltaworks {

/// One call. T is the type of every operand but the states, S theirs: float or T.
/// With q_num_heads ≥ kv_num_heads, a multiple, query head h reads the state of head
/// h / (q_num_heads / kv_num_heads). With fewer query heads, a divisor, state head h is read by query
/// head h / (kv_num_heads / q_num_heads). State head h uses key head h / (kv_num_heads / key_heads),
/// where key_heads follows from the width of key.
template <class T, class S = float>
struct LinearAttentionArgs {
  View<const T, 3> query;    ///< [sequences, length, q_num_heads · key_dim]
  View<const T, 3> key;      ///< [sequences, length, key_heads · key_dim]
  View<const T, 3> value;    ///< [sequences, length, kv_num_heads · value_dim]
  View<T, 3> output;         ///< [sequences, length, max(q_num_heads, kv_num_heads) · value_dim]
  View<S, 4> present_state;  ///< [sequences, kv_num_heads, key_dim, value_dim]
  std::int64_t q_num_heads, kv_num_heads;
  OptionalView<const S, 4>
      past_state{};  ///< like present_state, may be the same memory; absent: zeros
  OptionalView<const T, 3>
      decay{};  ///< [sequences, length, kv_num_heads], or per key [… · key_dim]: natural log
  OptionalView<const T, 3>
      beta{};  ///< [sequences, length, kv_num_heads], or [sequences, length, 1]
  UpdateRule update_rule = UpdateRule::kGatedDelta;
  float scale = 0;  ///< 0: 1 / sqrt(key_dim)
};

/// Gated delta rule (Yang, Kautz, Hatamizadeh, arXiv:2412.06464). Per state head with state S
/// [key_dim, value_dim], for each token, in float32:
///   a      = exp(decay);  r = Sᵀ k;  p = Sᵀ q
///   delta  = beta · (value − a r)          (value for the linear and gated rules)
///   S      = fma(k, deltaᵀ, round(a S))  the product is not rounded
///   output = scale · (a p + (q · k) delta), rounded once to T
/// A rule needs the gates that its name has: decay for gated and gated_delta, beta for delta and
/// gated_delta; one that it does not need is not read. key_dim is at most 2048.
///
/// Order and arithmetic are those of gated_delta_net but for its rounded product: from a transposed
/// state, a token's output has its bits. With a float state, one call over n tokens gives the bits of
/// n calls; with a 16-bit state, which a call rounds once, when it writes it, those of one call with
/// a float state. Neither the other sequences nor the threads change a bit.
///
/// Throws InvalidArgument when an argument breaks this contract; nothing is written then.
/// Source: ONNX Runtime, com.microsoft::LinearAttention.
DELTAWORKS_EXPORT void linear_attention(const Cpu& device, const LinearAttentionArgs<float>& args);
DELTAWORKS_EXPORT void linear_attention(const Cpu& device,
                                        const LinearAttentionArgs<Float16>& args);
DELTAWORKS_EXPORT void linear_attention(const Cpu& device,
                                        const LinearAttentionArgs<BFloat16>& args);
DELTAWORKS_EXPORT void linear_attention(const Cpu& device,
                                        const LinearAttentionArgs<Float16, Float16>& args);
DELTAWORKS_EXPORT void linear_attention(const Cpu& device,
                                        const LinearAttentionArgs<BFloat16, BFloat16>& args);

/// The memory that such a call would read and write (deltaworks/access.hpp).
template <class T, class S>
DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(const LinearAttentionArgs<T, S>& args);

}  // namespace deltaworks

/// Attention over a block-based key and value cache, for the full-attention layers of a hybrid
/// model.
#pragma once

#include <cstdint>
#include <vector>

#include "deltaworks/access.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/dtype.hpp"
#include "deltaworks/export.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks {

/// One call. Sequence b owns rows cu_seqlens[b] … cu_seqlens[b + 1] − 1; its local token t stands
/// at position past_seqlens[b] + t. heads = n · kv_heads; head h reads kv head h / n. head_dim <= 1024.
template <class T>
struct PagedAttentionArgs {
  View<const T, 3> query;  ///< [tokens, heads, head_dim]
  View<const T, 3> key;    ///< [tokens, kv_heads, head_dim]
  View<const T, 3> value;  ///< [tokens, kv_heads, head_dim]
  View<T, 4> key_cache;    ///< [blocks, block_size, kv_heads, head_dim], updated in place
  View<T, 4> value_cache;  ///< like key_cache
  View<const std::int32_t, 1> cu_seqlens;    ///< [sequences + 1]: 0, never decreasing, tokens
  View<const std::int32_t, 1> past_seqlens;  ///< [sequences], >= 0
  View<const std::int32_t, 2> block_table;   ///< [sequences, max_blocks]; −1: unmapped
  View<T, 3> output;                         ///< [tokens, heads, head_dim]
  OptionalView<const T, 2>
      cos_cache{};  ///< [max_positions, rotary_dim / 2]; given: rotary embedding
  OptionalView<const T, 2> sin_cache{};                ///< like cos_cache
  OptionalView<const std::int32_t, 1> slot_mapping{};  ///< [tokens]: cache row to write, −1: none
  OptionalView<const T, 1> head_sink{};  ///< [heads]: a logit that joins the denominator only
  OptionalView<const T, 1>
      q_norm_weight{};  ///< [head_dim]: RMSNorm per head before rotary, with k's
  OptionalView<const T, 1> k_norm_weight{};  ///< [head_dim]
  float scale = 0;                           ///< 0: 1 / sqrt(head_dim)
  float softcap = 0;                         ///< > 0: softcap · tanh(logit / softcap)
  std::int64_t local_window_size = -1;       ///< > 0: positions seen, the token's own included
  bool is_causal = true;                     ///< false: tokens of the call see each other both ways
  bool rotary_interleaved = false;  ///< pairs (2i, 2i + 1) instead of (i, i + rotary_dim / 2)
  std::int64_t rotary_offset = 0;   ///< first rotated dimension of a head
  float qk_norm_epsilon = 1e-6f;
};

/// Norm, rotary embedding, cache write, then for each token and head over the visible positions j
///   output = sum_j softmax_j(scale · q · k_j) v_j
/// A position in a hidden place, an unused row or another block is never read into a sum, be it NaN.
/// Float32 sums, reduced over the cache in fixed blocks counted from position 0; one rounding to T.
/// A row's bits do not depend on its neighbours, the batch, the threads, nor on how many tokens the
/// call has. Position j lies in cache block block_table[b, j / block_size], row j % block_size.
/// Throws InvalidArgument when an argument breaks this contract (an unmapped or foreign block names
/// its sequence); nothing is written then. Source: ONNX Runtime, com.microsoft::PagedAttention.
DELTAWORKS_EXPORT void paged_attention(const Cpu& device, const PagedAttentionArgs<float>& args);
DELTAWORKS_EXPORT void paged_attention(const Cpu& device, const PagedAttentionArgs<Float16>& args);
DELTAWORKS_EXPORT void paged_attention(const Cpu& device, const PagedAttentionArgs<BFloat16>& args);

/// The memory that such a call would read and write (deltaworks/access.hpp).
template <class T>
DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(const PagedAttentionArgs<T>& args);

}  // namespace deltaworks

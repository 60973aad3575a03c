// What paged_attention accepts. Asked by the C++ interface, the ONNX node and the command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "contract/tensor.hpp"

namespace deltaworks::contract {

inline constexpr std::int64_t kMaxHeads = 1 << 20;  // products of extents stay far from overflow
inline constexpr std::int64_t kMaxHeadDim = 1024;   // rows of a tile lie on the kernel's stack

// Names and defaults are those of com.microsoft::PagedAttention, except for cu_seqlens (there
// cumulative_sequence_length).
struct PagedAttentionOperands {
  // [tokens, heads, head_dim] or [tokens, heads · head_dim]; without key and value the packed form
  // [tokens, (heads + 2 · kv_heads) · head_dim].
  Tensor query;
  Operand key, value;  // [tokens, kv_heads, head_dim] or [tokens, kv_heads · head_dim]
  Tensor key_cache;    // [blocks, block_size, kv_heads, head_dim]
  Operand value_cache;
  Tensor cu_seqlens, past_seqlens, block_table;
  Operand cos_cache, sin_cache, slot_mapping, head_sink, q_norm_weight, k_norm_weight;
  Operand k_scale, v_scale, attention_metadata;
  Operand output;  // shaped like query when it is not packed
  std::int64_t num_heads = 0;
  std::int64_t kv_num_heads = 0;
  float scale = 0;
  float softcap = 0;
  std::int64_t local_window_size = -1;
  std::int64_t is_causal = 1;
  std::int64_t do_rotary = 0;
  std::int64_t rotary_interleaved = 0;
  std::int64_t rotary_offset = 0;
  float qk_norm_epsilon = 1e-6f;
  std::string_view kv_cache_layout = "SEPARATE";
  std::int64_t v_head_size = 0;
  std::string_view k_quant_type = "NONE", v_quant_type = "NONE";
  std::string_view k_cache_dtype = "", v_cache_dtype = "";
};

struct PagedAttentionGeometry {
  std::int64_t sequences = kUnknown, tokens = kUnknown;
  std::int64_t heads = kUnknown, kv_heads = kUnknown, head_dim = kUnknown;
  std::int64_t blocks = kUnknown, block_size = kUnknown;  // of the cache
  std::int64_t max_blocks = kUnknown;                     // of one sequence
  std::int64_t max_positions = kUnknown;                  // of cos_cache
  std::int64_t rotary_dim = 0;                            // 0: no rotary embedding
  bool packed = false;                                    // query holds key and value too

  std::int64_t heads_per_kv() const { return heads / kv_heads; }
};

Outcome<PagedAttentionGeometry> paged_attention(std::string_view op,
                                                const PagedAttentionOperands& operands);

}  // namespace deltaworks::contract

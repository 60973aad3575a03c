#include "contract/paged_attention.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "contract/checker.hpp"

namespace deltaworks::contract {

namespace {

using Geometry = PagedAttentionGeometry;
using Operands = PagedAttentionOperands;

bool is_flag(std::int64_t value) { return value == 0 || value == 1; }

// "expected …" of an attribute that names a kind of cache.
void check_cache_dtype(Checker& check, std::string_view attribute, std::string_view dtype,
                       DType stored) {
  check.require(dtype.empty() || dtype == name(stored),
                "{} is \"{}\", expected \"\" or \"{}\": quantised caches are not "
                "served, store the cache in the type of query",
                attribute, dtype, name(stored));
}

void check_cache_kind(Checker& check, const Operands& in) {
  check.require(in.kv_cache_layout == "SEPARATE",
                "kv_cache_layout is \"{}\", expected \"SEPARATE\": a cache shared by key and "
                "value (latent attention) is not served",
                in.kv_cache_layout);
  for (const auto& [attribute, type] :
       {std::pair{"k_quant_type", in.k_quant_type}, std::pair{"v_quant_type", in.v_quant_type}}) {
    check.require(type == "NONE",
                  "{} is \"{}\", expected \"NONE\": quantised caches are not served, store the "
                  "cache in the type of query",
                  attribute, type);
  }
  check_cache_dtype(check, "k_cache_dtype", in.k_cache_dtype, in.query.dtype);
  check_cache_dtype(check, "v_cache_dtype", in.v_cache_dtype, in.query.dtype);
  for (const auto& [argument, scale] :
       {std::pair{"k_scale", &in.k_scale}, std::pair{"v_scale", &in.v_scale}}) {
    check.together(argument, scale->has_value(), false, "only quantised caches have scales");
  }
  check.together("value_cache", in.value_cache.has_value(), true,
                 "key and value have a cache each");
}

void check_flags(Checker& check, const Operands& in) {
  for (const auto& [attribute, value] :
       {std::pair{"is_causal", in.is_causal}, std::pair{"do_rotary", in.do_rotary},
        std::pair{"rotary_interleaved", in.rotary_interleaved}}) {
    check.require(is_flag(value), "{} is {}, expected 0 or 1", attribute, value);
  }
}

void check_attributes(Checker& check, const Operands& in) {
  check.require(in.num_heads >= 1 && in.kv_num_heads >= 1 && in.num_heads <= kMaxHeads &&
                    in.num_heads % in.kv_num_heads == 0,
                "num_heads is {} and kv_num_heads is {}, expected 1 to {} and a multiple of "
                "kv_num_heads",
                in.num_heads, in.kv_num_heads, kMaxHeads);
  check_flags(check, in);
  check.require(std::isfinite(in.scale), "scale is {}, expected a finite number", in.scale);
  check.require(std::isfinite(in.softcap) && in.softcap >= 0,
                "softcap is {}, expected 0 or a positive number", in.softcap);
  check.require(in.local_window_size == -1 || in.local_window_size >= 1,
                "local_window_size is {}, expected -1 or at least 1", in.local_window_size);
  check.require(std::isfinite(in.qk_norm_epsilon) && in.qk_norm_epsilon >= 0,
                "qk_norm_epsilon is {}, expected 0 or a positive number", in.qk_norm_epsilon);
  check.require(in.rotary_offset >= 0 && in.rotary_offset <= kMaxHeadDim,
                "rotary_offset is {}, expected 0 to {}", in.rotary_offset, kMaxHeadDim);
}

void check_dtypes(Checker& check, const Operands& in) {
  const DType t = in.query.dtype;
  check.require(t != DType::kInt32, "query has type int32, expected float32, float16 or bfloat16");
  check.dtype("key_cache", in.key_cache, t);
  for (const auto& [argument, operand] :
       {std::pair{"key", &in.key}, std::pair{"value", &in.value},
        std::pair{"value_cache", &in.value_cache}, std::pair{"cos_cache", &in.cos_cache},
        std::pair{"sin_cache", &in.sin_cache}, std::pair{"head_sink", &in.head_sink},
        std::pair{"q_norm_weight", &in.q_norm_weight},
        std::pair{"k_norm_weight", &in.k_norm_weight}, std::pair{"output", &in.output}}) {
    if (*operand) check.dtype(argument, **operand, t);
  }
  check.dtype("cu_seqlens", in.cu_seqlens, DType::kInt32);
  check.dtype("past_seqlens", in.past_seqlens, DType::kInt32);
  check.dtype("block_table", in.block_table, DType::kInt32);
  if (in.slot_mapping) check.dtype("slot_mapping", *in.slot_mapping, DType::kInt32);
}

// [tokens, heads, head_dim] or, as ONNX spells it, [tokens, heads · head_dim].
void check_rows(Checker& check, std::string_view argument, const Tensor& tensor, std::int64_t heads,
                Geometry& g) {
  if (tensor.rank == 3) {
    check.shape(argument, tensor, {&g.tokens, &heads, &g.head_dim});
    return;
  }
  std::int64_t row = g.head_dim == kUnknown ? kUnknown : heads * g.head_dim;
  check.shape(argument, tensor, {&g.tokens, &row});
  if (!check.ok() || row == kUnknown || g.head_dim != kUnknown) return;
  check.require(row % heads == 0, "{} has rows of {}, expected a multiple of {} heads", argument,
                row, heads);
  g.head_dim = row / heads;
}

void check_tokens(Checker& check, const Operands& in, Geometry& g) {
  check.shape("key_cache", in.key_cache, {&g.blocks, &g.block_size, &g.kv_heads, &g.head_dim});
  check.shape("value_cache", in.value_cache, {&g.blocks, &g.block_size, &g.kv_heads, &g.head_dim});
  check.together("value", in.value.has_value(), in.key.has_value(),
                 "key and value come together, or packed in query");
  g.packed = !in.key.has_value();
  if (!check.ok()) return;
  check_rows(check, "query", in.query, g.heads + (g.packed ? 2 * g.kv_heads : 0), g);
  if (in.key) check_rows(check, "key", *in.key, g.kv_heads, g);
  if (in.value) check_rows(check, "value", *in.value, g.kv_heads, g);
  if (in.output) check_rows(check, "output", *in.output, g.heads, g);
}

void check_sequences(Checker& check, const Operands& in, Geometry& g) {
  std::int64_t offsets = kUnknown;
  check.shape("cu_seqlens", in.cu_seqlens, {&offsets});
  check.require(offsets != 0, "cu_seqlens is empty, expected sequences + 1 offsets");
  if (offsets != kUnknown) g.sequences = offsets - 1;
  check.shape("past_seqlens", in.past_seqlens, {&g.sequences});
  check.shape("block_table", in.block_table, {&g.sequences, &g.max_blocks});
  check.shape("slot_mapping", in.slot_mapping, {&g.tokens});
}

void check_rotary(Checker& check, const Operands& in, Geometry& g) {
  if (in.do_rotary == 0) return;  // the schema lets a node carry tables that it does not use
  check.together("cos_cache", in.cos_cache.has_value(), true, "do_rotary is 1");
  check.together("sin_cache", in.sin_cache.has_value(), true, "do_rotary is 1");
  std::int64_t pairs = kUnknown;
  check.shape("cos_cache", in.cos_cache, {&g.max_positions, &pairs});
  check.shape("sin_cache", in.sin_cache, {&g.max_positions, &pairs});
  if (pairs == kUnknown || !check.ok()) {
    g.rotary_dim = kUnknown;
    return;
  }
  check.require(pairs <= kMaxHeadDim / 2, "cos_cache has {} columns, expected at most {}", pairs,
                kMaxHeadDim / 2);
  g.rotary_dim = 2 * pairs;
  check.require(g.head_dim == kUnknown || in.rotary_offset + g.rotary_dim <= g.head_dim,
                "cos_cache has {} columns and rotary_offset is {}, expected rotary_offset + 2 · "
                "columns <= {}, the width of a head",
                pairs, in.rotary_offset, g.head_dim);
}

}  // namespace

Outcome<PagedAttentionGeometry> paged_attention(std::string_view op,
                                                const PagedAttentionOperands& operands) {
  Checker check(op);
  Geometry g;
  check_cache_kind(check, operands);
  check_attributes(check, operands);
  check_dtypes(check, operands);
  if (!check.ok()) return check.complaint();
  g.heads = operands.num_heads;
  g.kv_heads = operands.kv_num_heads;
  check_tokens(check, operands, g);
  check.require(g.head_dim == kUnknown || (g.head_dim >= 1 && g.head_dim <= kMaxHeadDim),
                "head_dim is {}, expected 1 to {}", g.head_dim, kMaxHeadDim);
  check.require(
      operands.v_head_size == 0 || g.head_dim == kUnknown || operands.v_head_size == g.head_dim,
      "v_head_size is {}, expected 0 or {}, the width of a head", operands.v_head_size, g.head_dim);
  check.require(g.block_size != 0, "key_cache has a block_size of 0, expected at least 1");
  check_sequences(check, operands, g);
  check_rotary(check, operands, g);
  check.shape("head_sink", operands.head_sink, {&g.heads});
  check.together("k_norm_weight", operands.k_norm_weight.has_value(),
                 operands.q_norm_weight.has_value(), "both norms or none");
  check.shape("q_norm_weight", operands.q_norm_weight, {&g.head_dim});
  check.shape("k_norm_weight", operands.k_norm_weight, {&g.head_dim});
  if (!check.ok()) return check.complaint();
  return g;
}

}  // namespace deltaworks::contract

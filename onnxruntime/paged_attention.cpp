// com.microsoft::PagedAttention
#include "deltaworks/paged_attention.hpp"

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "contract/memory.hpp"
#include "contract/paged_attention.hpp"
#include "contract/values.hpp"
#include "operator.hpp"
#include "paged_attention.hpp"

namespace deltaworks::ort {

namespace {

constexpr const char* kName = "PagedAttention";

enum Input {
  kQuery,
  kKey,
  kValue,
  kKeyCache,
  kValueCache,
  kOffsets,
  kPastSeqlens,
  kBlockTable,
  kCosCache,
  kSinCache,
  kSlotMapping,
  kHeadSink,
  kQNorm,
  kKNorm,
  kKScale,
  kVScale,
  kMetadata
};
enum Output { kOutput, kKeyCacheOut, kValueCacheOut };

struct Attributes {
  std::int64_t num_heads, kv_num_heads, local_window_size, is_causal, do_rotary, rotary_interleaved,
      rotary_offset, v_head_size;
  float scale, softcap, qk_norm_epsilon;
  std::string kv_cache_layout, k_quant_type, v_quant_type, k_cache_dtype, v_cache_dtype;

  explicit Attributes(const Node& node)
      : num_heads(node.required_attribute("num_heads")),
        kv_num_heads(node.required_attribute("kv_num_heads")),
        local_window_size(node.attribute("local_window_size", std::int64_t{-1})),
        is_causal(node.attribute("is_causal", std::int64_t{1})),
        do_rotary(node.attribute("do_rotary", std::int64_t{0})),
        rotary_interleaved(node.attribute("rotary_interleaved", std::int64_t{0})),
        rotary_offset(node.attribute("rotary_offset", std::int64_t{0})),
        v_head_size(node.attribute("v_head_size", std::int64_t{0})),
        scale(node.attribute("scale", 0.0f)),
        softcap(node.attribute("softcap", 0.0f)),
        qk_norm_epsilon(node.attribute("qk_norm_epsilon", 1e-6f)),
        kv_cache_layout(node.attribute("kv_cache_layout", "SEPARATE")),
        k_quant_type(node.attribute("k_quant_type", "NONE")),
        v_quant_type(node.attribute("v_quant_type", "NONE")),
        k_cache_dtype(node.attribute("k_cache_dtype", "")),
        v_cache_dtype(node.attribute("v_cache_dtype", "")) {}
};

template <class Source>
contract::PagedAttentionGeometry geometry_of(const Attributes& a, const Source& source) {
  return contract::value_or_throw(
      contract::paged_attention(kName, {.query = *source.input(kQuery, 2),
                                        .key = source.input(kKey, 2),
                                        .value = source.input(kValue, 2),
                                        .key_cache = *source.input(kKeyCache, 4),
                                        .value_cache = source.input(kValueCache, 4),
                                        .cu_seqlens = *source.input(kOffsets, 1),
                                        .past_seqlens = *source.input(kPastSeqlens, 1),
                                        .block_table = *source.input(kBlockTable, 2),
                                        .cos_cache = source.input(kCosCache, 2),
                                        .sin_cache = source.input(kSinCache, 2),
                                        .slot_mapping = source.input(kSlotMapping, 1),
                                        .head_sink = source.input(kHeadSink, 1),
                                        .q_norm_weight = source.input(kQNorm, 1),
                                        .k_norm_weight = source.input(kKNorm, 1),
                                        .k_scale = source.input(kKScale, 1),
                                        .v_scale = source.input(kVScale, 1),
                                        .attention_metadata = source.input(kMetadata, 1),
                                        .output = {},
                                        .num_heads = a.num_heads,
                                        .kv_num_heads = a.kv_num_heads,
                                        .scale = a.scale,
                                        .softcap = a.softcap,
                                        .local_window_size = a.local_window_size,
                                        .is_causal = a.is_causal,
                                        .do_rotary = a.do_rotary,
                                        .rotary_interleaved = a.rotary_interleaved,
                                        .rotary_offset = a.rotary_offset,
                                        .qk_norm_epsilon = a.qk_norm_epsilon,
                                        .kv_cache_layout = a.kv_cache_layout,
                                        .v_head_size = a.v_head_size,
                                        .k_quant_type = a.k_quant_type,
                                        .v_quant_type = a.v_quant_type,
                                        .k_cache_dtype = a.k_cache_dtype,
                                        .v_cache_dtype = a.v_cache_dtype}));
}

template <class T>
class PagedAttention final : public Kernel {
 public:
  explicit PagedAttention(const Node& node)
      : attributes_(node), known_(geometry_of(attributes_, node)) {
    for (const auto& [input, output, argument] :
         {std::tuple{kKeyCache, kKeyCacheOut, "key_cache"},
          std::tuple{kValueCache, kValueCacheOut, "value_cache"}}) {
      if (node.has_output(output) || !node.is_constant(input)) continue;
      throw InvalidArgument(fmt::format(
          "{} is a constant, expected memory to update, or the output {}_out", argument, argument));
    }
  }

  void compute(Call& call) const override {
    const auto g = geometry_of(attributes_, call);
    const auto rows = [&](Input input, std::int64_t first, std::int64_t heads) {
      const std::int64_t stride =
          g.packed ? (g.heads + 2 * g.kv_heads) * g.head_dim : heads * g.head_dim;
      return View<const T, 3>(call.data<T>(input) + first * g.head_dim,
                              {g.tokens, heads, g.head_dim}, stride);
    };
    const auto output = call.output<T, 2>(kOutput, {g.tokens, g.heads * g.head_dim});
    PagedAttentionArgs<T> args{
        .query = rows(kQuery, 0, g.heads),
        .key = g.packed ? rows(kQuery, g.heads, g.kv_heads) : rows(kKey, 0, g.kv_heads),
        .value =
            g.packed ? rows(kQuery, g.heads + g.kv_heads, g.kv_heads) : rows(kValue, 0, g.kv_heads),
        .key_cache = input_cache(call, kKeyCache),
        .value_cache = input_cache(call, kValueCache),
        .cu_seqlens = call.view<std::int32_t, 1>(kOffsets),
        .past_seqlens = call.view<std::int32_t, 1>(kPastSeqlens),
        .block_table = call.view<std::int32_t, 2>(kBlockTable),
        .output = {output.data(), {g.tokens, g.heads, g.head_dim}},
        .slot_mapping = call.optional_view<std::int32_t, 1>(kSlotMapping),
        .head_sink = call.optional_view<T, 1>(kHeadSink),
        .q_norm_weight = call.optional_view<T, 1>(kQNorm),
        .k_norm_weight = call.optional_view<T, 1>(kKNorm),
        .scale = attributes_.scale,
        .softcap = attributes_.softcap,
        .local_window_size = attributes_.local_window_size,
        .is_causal = attributes_.is_causal != 0,
        .rotary_interleaved = attributes_.rotary_interleaved != 0,
        .rotary_offset = attributes_.rotary_offset,
        .qk_norm_epsilon = attributes_.qk_norm_epsilon};
    if (attributes_.do_rotary != 0) {
      args.cos_cache = call.view<T, 2>(kCosCache);
      args.sin_cache = call.view<T, 2>(kSinCache);
    }
    move_caches(call, args);
    paged_attention(call.device(), args);
  }

  Plan plan() const override {
    const auto& g = known_;
    return {{{"sequences", g.sequences},
             {"tokens", g.tokens},
             {"heads", g.heads},
             {"kv_heads", g.kv_heads},
             {"head_dim", g.head_dim, contract::kMaxHeadDim},
             {"blocks", g.blocks},
             {"block_size", g.block_size},
             {"rotary_dim", g.rotary_dim}},
            "tiled",
            bytes_of({2, g.kv_heads, g.head_dim}, sizeof(T)),
            "cached token"};
  }

 private:
  // Without a cache output the input itself is updated, as on CUDA.
  static View<T, 4> input_cache(const Call& call, Input input) {
    const View<const T, 4> cache = call.view<T, 4>(input);
    return {const_cast<T*>(cache.data()), cache.extents()};
  }

  // The operator updates its caches in place, so an output with memory of its own starts as a copy
  // of the input. A call that will be refused copies nothing.
  static void move_caches(Call& call, PagedAttentionArgs<T>& args) {
    const View<T, 4> key = args.key_cache, value = args.value_cache;
    const auto key_out = call.optional_output<T, 4>(kKeyCacheOut, key.extents());
    const auto value_out = call.optional_output<T, 4>(kValueCacheOut, value.extents());
    const auto moves = [](const auto& out, const View<T, 4>& in) {
      return out && out->data() != in.data() && in.size() > 0;
    };
    if (!moves(key_out, key) && !moves(value_out, value)) return;
    check_paged_attention(args);
    contract::CallMemory memory(kName);
    memory.add("query", args.query).add("key", args.key).add("value", args.value);
    memory.add("key_cache", key, Access::kRead).add("value_cache", value, Access::kRead);
    memory.add("key_cache_out", key_out).add("value_cache_out", value_out);
    memory.add("output", args.output);
    memory.check_apart({{"key_cache", "key_cache_out"}, {"value_cache", "value_cache_out"}});
    for (const auto& [out, cache] :
         {std::pair{key_out, &args.key_cache}, std::pair{value_out, &args.value_cache}}) {
      if (!moves(out, *cache)) continue;
      const auto bytes = static_cast<std::size_t>(cache->size()) * sizeof(T);
      std::memcpy(out->data(), cache->data(), bytes);
      *cache = *out;
    }
  }

  Attributes attributes_;
  contract::PagedAttentionGeometry known_;  // as the graph tells it
};

Operator variant(ONNXTensorElementDataType type, ONNXTensorElementDataType cache,
                 std::unique_ptr<Kernel> (*create)(const Node&)) {
  constexpr auto kInt = element_type<std::int32_t>(), kReal = element_type<float>();
  return {kName,
          {{type},
           {type, true},
           {type, true},
           {cache},
           {cache, true},
           {kInt},
           {kInt},
           {kInt},
           {type, true},
           {type, true},
           {kInt, true},
           {type, true},
           {type, true},
           {type, true},
           {kReal, true},
           {kReal, true},
           {kInt, true}},
          {{type}, {cache, true}, {cache, true}},
          create,
          in_place<kKeyCache, kKeyCacheOut, 2>};
}

// ONNX Runtime would refuse such a node with a list of types; this says why.
std::unique_ptr<Kernel> refuse_quantised_cache(const Node&) {
  throw InvalidArgument(
      "key_cache is quantised, expected the type of query: quantised caches are not served on the "
      "CPU");
}

template <class T>
void add_variants(std::vector<Operator>& variants) {
  constexpr auto kType = element_type<T>();
  variants.push_back(variant(kType, kType, [](const Node& node) -> std::unique_ptr<Kernel> {
    return std::make_unique<PagedAttention<T>>(node);
  }));
  for (const auto cache : {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
                           ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN}) {
    variants.push_back(variant(kType, cache, refuse_quantised_cache));
  }
}

}  // namespace

std::vector<Operator> paged_attention_operators() {
  std::vector<Operator> variants;
  add_variants<float>(variants);
  add_variants<Float16>(variants);
  add_variants<BFloat16>(variants);
  return variants;
}

}  // namespace deltaworks::ort

#include "deltaworks/paged_attention.hpp"

#include "call.hpp"
#include "module.hpp"

namespace deltaworks::python {

namespace {

constexpr const char* kOp = "paged_attention";

enum Result { kOutput, kKeyCache, kValueCache };

// The caches are results that the caller always hands in: they are updated where they are.
template <class T>
nb::tuple run(Call& call) {
  const View<const T, 3> query = call.view<T, 3>("query");
  const PagedAttentionArgs<T> args{
      .query = query,
      .key = call.view<T, 3>("key"),
      .value = call.view<T, 3>("value"),
      .key_cache = call.handed_in(kKeyCache).view<T, 4>(),
      .value_cache = call.handed_in(kValueCache).view<T, 4>(),
      .cu_seqlens = call.view<std::int32_t, 1>("cu_seqlens"),
      .past_seqlens = call.view<std::int32_t, 1>("past_seqlens"),
      .block_table = call.view<std::int32_t, 2>("block_table"),
      .output = call.result<T, 3>(kOutput, query.extents()),
      .cos_cache = call.optional_view<T, 2>("cos_cache"),
      .sin_cache = call.optional_view<T, 2>("sin_cache"),
      .slot_mapping = call.optional_view<std::int32_t, 1>("slot_mapping"),
      .head_sink = call.optional_view<T, 1>("head_sink"),
      .q_norm_weight = call.optional_view<T, 1>("q_norm_weight"),
      .k_norm_weight = call.optional_view<T, 1>("k_norm_weight"),
      .scale = call.real("scale"),
      .softcap = call.real("softcap"),
      .local_window_size = call.integer("local_window_size"),
      .is_causal = call.flag("is_causal"),
      .rotary_interleaved = call.flag("rotary_interleaved"),
      .rotary_offset = call.integer("rotary_offset"),
      .qk_norm_epsilon = call.real("qk_norm_epsilon")};
  return call.run([&](const Cpu& device) { paged_attention(device, args); });
}

nb::tuple attention(const nb::kwargs& arguments) {
  Call call(kOp, arguments, {"output", "key_cache", "value_cache"});
  const DType element = call.tensor("query").dtype;
  if (element == DType::kInt32) {
    throw InvalidArgument(
        fmt::format("{}: query has type int32, expected float32, float16 or bfloat16", kOp));
  }
  return visit_element(element, [&]<class T>(T) { return run<T>(call); });
}

}  // namespace

void define_paged_attention(nb::module_& module) { module.def(kOp, &attention); }

}  // namespace deltaworks::python

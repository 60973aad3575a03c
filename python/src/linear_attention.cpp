#include "deltaworks/linear_attention.hpp"

#include "call.hpp"
#include "contract/linear_attention.hpp"
#include "module.hpp"

namespace deltaworks::python {

namespace {

constexpr const char* kOp = "linear_attention";

enum Result { kOutput, kPresentState };

struct Attributes {
  std::int64_t q_num_heads, kv_num_heads;
  UpdateRule update_rule;
  float scale;
};

contract::LinearAttentionGeometry geometry_of(Call& call, const Attributes& attributes) {
  return contract::value_or_throw(
      contract::linear_attention(kOp, {.query = call.tensor("query"),
                                       .key = call.tensor("key"),
                                       .value = call.tensor("value"),
                                       .past_state = call.operand("past_state"),
                                       .decay = call.operand("decay"),
                                       .beta = call.operand("beta"),
                                       .q_num_heads = attributes.q_num_heads,
                                       .kv_num_heads = attributes.kv_num_heads,
                                       .update_rule = attributes.update_rule,
                                       .scale = attributes.scale}));
}

template <class T, class S>
nb::tuple run(Call& call, const contract::LinearAttentionGeometry& g,
              const Attributes& attributes) {
  const LinearAttentionArgs<T, S> args{
      .query = call.view<T, 3>("query"),
      .key = call.view<T, 3>("key"),
      .value = call.view<T, 3>("value"),
      .output = call.result<T, 3>(kOutput, {g.sequences, g.length, g.output_width()}),
      .present_state =
          call.result<S, 4>(kPresentState, {g.sequences, g.kv_num_heads, g.key_dim, g.value_dim}),
      .q_num_heads = attributes.q_num_heads,
      .kv_num_heads = attributes.kv_num_heads,
      .past_state = call.optional_view<S, 4>("past_state"),
      .decay = call.optional_view<T, 3>("decay"),
      .beta = call.optional_view<T, 3>("beta"),
      .update_rule = attributes.update_rule,
      .scale = attributes.scale};
  return call.run([&](const Cpu& device) { linear_attention(device, args); });
}

// Without a state to begin with, the one at the end is of the type that is handed in for it, or T.
bool has_float_state(Call& call) {
  if (call.has("past_state")) return call.tensor("past_state").dtype == DType::kFloat32;
  return call.is_handed_in(kPresentState) &&
         call.handed_in(kPresentState).tensor().dtype == DType::kFloat32;
}

nb::tuple attention(const nb::kwargs& arguments) {
  Call call(kOp, arguments, {"output", "present_state"});
  const Attributes attributes{
      call.integer("q_num_heads"), call.integer("kv_num_heads"),
      contract::value_or_throw(contract::parse_update_rule(kOp, call.text("update_rule"))),
      call.real("scale")};
  const auto geometry = geometry_of(call, attributes);
  return visit_element(call.tensor("query").dtype, [&]<class T>(T) {
    return has_float_state(call) ? run<T, float>(call, geometry, attributes)
                                 : run<T, T>(call, geometry, attributes);
  });
}

}  // namespace

void define_linear_attention(nb::module_& module) { module.def(kOp, &attention); }

}  // namespace deltaworks::python

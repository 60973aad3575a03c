// com.microsoft::LinearAttention
#include "deltaworks/linear_attention.hpp"

#include <fmt/format.h>

#include "contract/linear_attention.hpp"
#include "contract/values.hpp"
#include "operator.hpp"

namespace deltaworks::ort {

namespace {

constexpr const char* kName = "LinearAttention";

enum Input { kQuery, kKey, kValue, kPastState, kDecay, kBeta };
enum Output { kOutput, kPresentState };

template <class T, class S>
class LinearAttention final : public Kernel {
 public:
  explicit LinearAttention(const Node& node)
      : update_rule_(contract::value_or_throw(
            contract::parse_update_rule(kName, node.attribute("update_rule", "gated_delta")))),
        scale_(node.attribute("scale", 0.0f)),
        q_num_heads_(node.required_attribute("q_num_heads")),
        kv_num_heads_(node.required_attribute("kv_num_heads")) {
    const std::int64_t window = node.attribute("state_window", std::int64_t{0});
    if (window != 0) {
      throw InvalidArgument(fmt::format(
          "state_window is {}, expected 0: states per token are not available on the CPU", window));
    }
    known_ = geometry(node);
  }

  void compute(Call& call) const override {
    const auto g = geometry(call);
    linear_attention(
        call.device(),
        LinearAttentionArgs<T, S>{
            .query = call.view<T, 3>(kQuery),
            .key = call.view<T, 3>(kKey),
            .value = call.view<T, 3>(kValue),
            .output = call.output<T, 3>(kOutput, {g.sequences, g.length, g.output_width()}),
            .present_state = call.output<S, 4>(
                kPresentState, {g.sequences, g.kv_num_heads, g.key_dim, g.value_dim}),
            .q_num_heads = q_num_heads_,
            .kv_num_heads = kv_num_heads_,
            .past_state = call.optional_view<S, 4>(kPastState),
            .decay = call.optional_view<T, 3>(kDecay),
            .beta = call.optional_view<T, 3>(kBeta),
            .update_rule = update_rule_,
            .scale = scale_});
  }

  Plan plan() const override {
    const auto& g = known_;
    return {{{"sequences", g.sequences},
             {"length", g.length},
             {"q_num_heads", g.q_num_heads},
             {"kv_num_heads", g.kv_num_heads},
             {"key_heads", g.key_heads},
             {"key_dim", g.key_dim},
             {"value_dim", g.value_dim}},
            "recurrent",
            bytes_of({g.kv_num_heads, g.key_dim, g.value_dim}, sizeof(S)),
            "sequence"};
  }

 private:
  template <class Source>
  contract::LinearAttentionGeometry geometry(const Source& source) const {
    return contract::value_or_throw(
        contract::linear_attention(kName, {.query = *source.input(kQuery, 3),
                                           .key = *source.input(kKey, 3),
                                           .value = *source.input(kValue, 3),
                                           .past_state = source.input(kPastState, 4),
                                           .decay = source.input(kDecay, 3),
                                           .beta = source.input(kBeta, 3),
                                           .q_num_heads = q_num_heads_,
                                           .kv_num_heads = kv_num_heads_,
                                           .update_rule = update_rule_,
                                           .scale = scale_}));
  }

  UpdateRule update_rule_;
  float scale_;
  std::int64_t q_num_heads_, kv_num_heads_;
  contract::LinearAttentionGeometry known_;  // as the graph tells it
};

template <class T, class S>
Operator variant() {
  constexpr auto kType = element_type<T>(), kState = element_type<S>();
  return {kName,
          {{kType}, {kType}, {kType}, {kState, true}, {kType, true}, {kType, true}},
          {{kType}, {kState, true}},
          [](const Node& node) -> std::unique_ptr<Kernel> {
            return std::make_unique<LinearAttention<T, S>>(node);
          },
          in_place<kPastState, kPresentState>};
}

}  // namespace

// ONNX Runtime takes the first row that a node's types fit: a 16-bit node without past_state has a
// 16-bit state, as its own shape inference has it.
std::vector<Operator> linear_attention_operators() {
  return {variant<float, float>(), variant<Float16, Float16>(), variant<BFloat16, BFloat16>(),
          variant<Float16, float>(), variant<BFloat16, float>()};
}

}  // namespace deltaworks::ort

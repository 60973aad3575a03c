// deltaworks::GatedDeltaRates
#include "deltaworks/gated_delta_rates.hpp"

#include <fmt/format.h>

#include "contract/gated_delta_rates.hpp"
#include "contract/values.hpp"
#include "operator.hpp"

namespace deltaworks::ort {

namespace {

constexpr const char* kName = "GatedDeltaRates";

enum Input { kUpdateLogits, kDecayInputs, kALog, kDtBias };
enum Output { kUpdateRates, kDecayFactors };

bool log_decay_of(const Node& node) {
  const std::int64_t value = node.attribute("log_decay", std::int64_t{0});
  if (value != 0 && value != 1) {
    throw InvalidArgument(fmt::format("log_decay is {}, expected 0 or 1", value));
  }
  return value == 1;
}

template <class T>
class GatedDeltaRates final : public Kernel {
 public:
  explicit GatedDeltaRates(const Node& node)
      : arithmetic_(contract::value_or_throw(contract::parse_gated_delta_rates_arithmetic(
            kName, node.attribute("arithmetic", "float32")))),
        log_decay_(log_decay_of(node)),
        known_(geometry(node)) {}

  void compute(Call& call) const override {
    const auto g = geometry(call);
    const std::array<std::int64_t, 2> extents{g.tokens, g.value_heads};
    gated_delta_rates(
        call.device(),
        GatedDeltaRatesArgs<T>{
            .update_logits = {call.data<T>(kUpdateLogits), extents},
            .decay_inputs = {call.data<T>(kDecayInputs), extents},
            .a_log = call.view<float, 1>(kALog),
            .dt_bias = call.view<float, 1>(kDtBias),
            .update_rates = {call.output_like<T>(kUpdateRates, kUpdateLogits), extents},
            .decay_factors = {call.output_like<float>(kDecayFactors, kUpdateLogits), extents},
            .arithmetic = arithmetic_,
            .log_decay = log_decay_});
  }

  Plan plan() const override {
    return {.geometry = {{"tokens", known_.tokens}, {"value_heads", known_.value_heads}},
            .engine = "direct"};
  }

 private:
  // Either of the large inputs tells the rank where a graph leaves the other's open.
  template <class Source>
  contract::GatedDeltaRatesGeometry geometry(const Source& source) const {
    const contract::Tensor decay_inputs = *source.input(kDecayInputs, 1);
    const contract::Tensor update_logits = *source.input(kUpdateLogits, decay_inputs.rank);
    return contract::value_or_throw(contract::gated_delta_rates(
        kName, {.update_logits = update_logits,
                .decay_inputs = *source.input(kDecayInputs, update_logits.rank),
                .a_log = *source.input(kALog, 1),
                .dt_bias = *source.input(kDtBias, 1)}));
  }

  GatedDeltaRatesArithmetic arithmetic_;
  bool log_decay_;
  contract::GatedDeltaRatesGeometry known_;  // as the graph tells it
};

template <class T>
Operator variant() {
  constexpr auto kType = element_type<T>(), kFloat = element_type<float>();
  return {kName,
          {{kType}, {kType}, {kFloat}, {kFloat}},
          {{kType}, {kFloat}},
          [](const Node& node) -> std::unique_ptr<Kernel> {
            return std::make_unique<GatedDeltaRates<T>>(node);
          }};
}

}  // namespace

std::vector<Operator> gated_delta_rates_operators() {
  return {variant<float>(), variant<Float16>(), variant<BFloat16>()};
}

}  // namespace deltaworks::ort

// deltaworks::DFlash2DynamicConv
#include "deltaworks/dflash2_dynamic_conv.hpp"

#include "contract/dflash2_dynamic_conv.hpp"
#include "contract/values.hpp"
#include "operator.hpp"

namespace deltaworks::ort {

namespace {

constexpr const char* kName = "DFlash2DynamicConv";

enum Input { kInput, kDynamic, kBase, kResidual };

template <class T, class R, class Base>
class DFlash2DynamicConv final : public Kernel {
 public:
  explicit DFlash2DynamicConv(const Node& node)
      : stage_(contract::value_or_throw(
            contract::parse_dflash2_stage(kName, node.attribute("stage", "prepare")))),
        arithmetic_(contract::value_or_throw(
            contract::parse_dflash2_arithmetic(kName, node.attribute("arithmetic", "float32")))),
        rows_per_lane_(node.required_attribute("rows_per_lane")),
        groups_(node.required_attribute("groups")),
        known_(geometry(node)) {}

  void compute(Call& call) const override {
    const auto g = geometry(call);
    dflash2_dynamic_conv(call.device(), DFlash2DynamicConvArgs<T, R, Base>{
                                            .input = call.view<T, 2>(kInput),
                                            .dynamic = call.view<T, 2>(kDynamic),
                                            .base = call.view<Base, 3>(kBase),
                                            .output = call.output<R, 2>(0, {g.rows, g.channels}),
                                            .residual = call.optional_view<R, 2>(kResidual),
                                            .stage = stage_,
                                            .rows_per_lane = rows_per_lane_,
                                            .groups = groups_,
                                            .arithmetic = arithmetic_});
  }

  Plan plan() const override {
    const auto& g = known_;
    return {.geometry = {{"rows", g.rows},
                         {"channels", g.channels},
                         {"taps", g.taps, contract::kMaxTaps},
                         {"groups", g.groups},
                         {"rows_per_lane", g.rows_per_lane}},
            .engine = "direct"};
  }

 private:
  template <class Source>
  contract::DFlash2DynamicConvGeometry geometry(const Source& source) const {
    return contract::value_or_throw(
        contract::dflash2_dynamic_conv(kName, {.input = *source.input(kInput, 2),
                                               .dynamic = *source.input(kDynamic, 2),
                                               .base = *source.input(kBase, 3),
                                               .residual = source.input(kResidual, 2),
                                               .stage = stage_,
                                               .rows_per_lane = rows_per_lane_,
                                               .groups = groups_}));
  }

  DFlash2Stage stage_;
  DFlash2Arithmetic arithmetic_;
  std::int64_t rows_per_lane_, groups_;
  contract::DFlash2DynamicConvGeometry known_;  // as the graph tells it
};

// Beside a 16-bit input the output is float32 where the residual is: ONNX Runtime takes the first row
// below that a node's types fit.
template <class T, class R = T, class Base = T>
Operator variant() {
  constexpr auto kType = element_type<T>(), kResult = element_type<R>();
  return {kName,
          {{kType}, {kType}, {element_type<Base>()}, {kResult, true}},
          {{kResult}},
          [](const Node& node) -> std::unique_ptr<Kernel> {
            return std::make_unique<DFlash2DynamicConv<T, R, Base>>(node);
          }};
}

}  // namespace

std::vector<Operator> dflash2_dynamic_conv_operators() {
  return {variant<float>(),          variant<float, float, BFloat16>(),
          variant<Float16>(),        variant<Float16, Float16, BFloat16>(),
          variant<Float16, float>(), variant<Float16, float, BFloat16>(),
          variant<BFloat16>(),       variant<BFloat16, float>()};
}

}  // namespace deltaworks::ort

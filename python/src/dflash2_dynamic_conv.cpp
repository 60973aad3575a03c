#include "deltaworks/dflash2_dynamic_conv.hpp"

#include "call.hpp"
#include "contract/dflash2_dynamic_conv.hpp"
#include "module.hpp"

namespace deltaworks::python {

namespace {

constexpr const char* kOp = "dflash2_dynamic_conv";

using Geometry = contract::DFlash2DynamicConvGeometry;

struct Attributes {
  DFlash2Stage stage;
  DFlash2Arithmetic arithmetic;
};

template <class T, class R, class Base>
nb::tuple run(Call& call, const Geometry& g, const Attributes& attributes) {
  const DFlash2DynamicConvArgs<T, R, Base> args{
      .input = call.view<T, 2>("input"),
      .dynamic = call.view<T, 2>("dynamic"),
      .base = call.view<Base, 3>("base"),
      .output = call.result<R, 2>(0, {g.rows, g.channels}),
      .residual = call.optional_view<R, 2>("residual"),
      .stage = attributes.stage,
      .rows_per_lane = g.rows_per_lane,
      .groups = g.groups,
      .arithmetic = attributes.arithmetic};
  return call.run([&](const Cpu& device) { dflash2_dynamic_conv(device, args); });
}

// The output has the residual's type; without one that of `out`, else the input's.
DType result_type(Call& call) {
  if (call.has("residual")) return call.tensor("residual").dtype;
  if (call.is_handed_in(0)) return call.handed_in(0).tensor().dtype;
  return call.tensor("input").dtype;
}

nb::tuple conv(const nb::kwargs& arguments) {
  Call call(kOp, arguments, {"output"});
  const Attributes attributes{
      contract::value_or_throw(contract::parse_dflash2_stage(kOp, call.text("stage"))),
      contract::value_or_throw(contract::parse_dflash2_arithmetic(kOp, call.text("arithmetic")))};
  contract::Operand output;
  if (call.is_handed_in(0)) output = call.handed_in(0).tensor();
  const Geometry geometry = contract::value_or_throw(
      contract::dflash2_dynamic_conv(kOp, {.input = call.tensor("input"),
                                           .dynamic = call.tensor("dynamic"),
                                           .base = call.tensor("base"),
                                           .residual = call.operand("residual"),
                                           .output = output,
                                           .stage = attributes.stage,
                                           .rows_per_lane = call.integer("rows_per_lane"),
                                           .groups = call.integer("groups")}));
  // The contract has left these combinations.
  return visit_element(call.tensor("input").dtype, [&]<class T>(T) {
    const bool wide = result_type(call) == DType::kFloat32;
    const auto with_base = [&]<class Base>(Base) {
      return wide ? run<T, float, Base>(call, geometry, attributes)
                  : run<T, T, Base>(call, geometry, attributes);
    };
    return call.tensor("base").dtype == DType::kBFloat16 ? with_base(BFloat16{}) : with_base(T{});
  });
}

}  // namespace

void define_dflash2_dynamic_conv(nb::module_& module) { module.def(kOp, &conv); }

}  // namespace deltaworks::python

#include "deltaworks/gated_delta_rates.hpp"

#include "call.hpp"
#include "contract/gated_delta_rates.hpp"
#include "module.hpp"

namespace deltaworks::python {

namespace {

constexpr const char* kOp = "gated_delta_rates";

using Geometry = contract::GatedDeltaRatesGeometry;

enum Result { kUpdateRates, kDecayFactors };

struct Attributes {
  GatedDeltaRatesArithmetic arithmetic;
  bool log_decay;
};

// A result like update_logits, as [tokens, value_heads]. Only an array of just these dims may have
// rows that lie apart.
template <class R>
View<R, 2> result_like_logits(Call& call, Result result, const Geometry& g) {
  contract::Tensor expected = call.tensor("update_logits");
  expected.dtype = dtype_of<R>();
  const Array& array = call.result(result, expected);
  if (expected.rank == 2) return array.view<R, 2>();
  return {array.elements<R>(), {g.tokens, g.value_heads}};
}

template <class T>
nb::tuple run(Call& call, const Geometry& g, const Attributes& attributes) {
  const std::array<std::int64_t, 2> extents{g.tokens, g.value_heads};
  const GatedDeltaRatesArgs<T> args{
      .update_logits = call.view_as<T, 2>("update_logits", extents),
      .decay_inputs = call.view_as<T, 2>("decay_inputs", extents),
      .a_log = call.view<float, 1>("a_log"),
      .dt_bias = call.view<float, 1>("dt_bias"),
      .update_rates = result_like_logits<T>(call, kUpdateRates, g),
      .decay_factors = result_like_logits<float>(call, kDecayFactors, g),
      .arithmetic = attributes.arithmetic,
      .log_decay = attributes.log_decay};
  return call.run([&](const Cpu& device) { gated_delta_rates(device, args); });
}

nb::tuple rates(const nb::kwargs& arguments) {
  Call call(kOp, arguments, {"update_rates", "decay_factors"});
  const Attributes attributes{contract::value_or_throw(contract::parse_gated_delta_rates_arithmetic(
                                  kOp, call.text("arithmetic"))),
                              call.flag("log_decay")};
  const Geometry geometry = contract::value_or_throw(
      contract::gated_delta_rates(kOp, {.update_logits = call.tensor("update_logits"),
                                        .decay_inputs = call.tensor("decay_inputs"),
                                        .a_log = call.tensor("a_log"),
                                        .dt_bias = call.tensor("dt_bias")}));
  return visit_element(call.tensor("update_logits").dtype,
                       [&]<class T>(T) { return run<T>(call, geometry, attributes); });
}

}  // namespace

void define_gated_delta_rates(nb::module_& module) { module.def(kOp, &rates); }

}  // namespace deltaworks::python

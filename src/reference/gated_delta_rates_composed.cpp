#include "reference/gated_delta_rates_composed.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <variant>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reference/gated_delta_rates_composed.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/gates-inl.h"
#include "cpu/load-inl.h"
#include "cpu/math-inl.h"
#include "cpu/target.hpp"

#ifndef DELTAWORKS_REFERENCE_GATED_DELTA_RATES_COMPOSED_ONCE_
#define DELTAWORKS_REFERENCE_GATED_DELTA_RATES_COMPOSED_ONCE_
namespace deltaworks::reference {

template <class T>
struct ComposedRatesCall {
  const GatedDeltaRatesArgs<T>* args;
  ComposedRatesArrays<T>* arrays;
};
using AnyComposedRatesCall =
    std::variant<ComposedRatesCall<float>, ComposedRatesCall<Float16>, ComposedRatesCall<BFloat16>>;

}  // namespace deltaworks::reference
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// to[i] = function(from[i])
template <class From, class To, class Function>
void map(const From* from, To* to, std::int64_t size, const Function& function) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < size; i += lanes) {
    const auto n = static_cast<std::size_t>(std::min(lanes, size - i));
    store_float_n(function(d, load_float_n(d, from + i, n)), d, to + i, n);
  }
}

// to[i] = function(from[i], second[i])
template <class From, class To, class Function>
void map(const From* from, const float* second, To* to, std::int64_t size,
         const Function& function) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < size; i += lanes) {
    const auto n = static_cast<std::size_t>(std::min(lanes, size - i));
    const auto y = function(d, load_float_n(d, from + i, n), load_float_n(d, second + i, n));
    store_float_n(y, d, to + i, n);
  }
}

// The operators of the graph, in its order. `Step` is the type that the sum and softplus have.
template <class Step, class T>
void run_graph(const GatedDeltaRatesArgs<T>& args, reference::ComposedRatesSteps<Step>& steps,
               reference::ComposedRatesArrays<T>& arrays) {
  const auto sigmoid_of = [](auto d, auto x) HWY_ATTR { return sigmoid(d, x); };
  const auto add = [](auto d, auto a, auto b)
                       HWY_ATTR { return hn::Add(finite(d, a), finite(d, b)); };
  const auto softplus_of = [](auto d, auto x) HWY_ATTR { return softplus(d, x); };
  const auto exp_of = [](auto d, auto x) HWY_ATTR { return exp(d, x); };
  const auto multiply = [](auto d, auto a, auto b)
                            HWY_ATTR { return hn::Mul(finite(d, a), finite(d, b)); };
  const auto negate = [](auto, auto x) HWY_ATTR { return hn::Neg(x); };

  const std::int64_t tokens = args.update_logits.extent(0), heads = args.update_logits.extent(1);
  const std::int64_t size = tokens * heads;
  for (std::int64_t t = 0; t < tokens; ++t) {
    map(args.update_logits.row(t), args.update_rates.row(t), heads, sigmoid_of);
  }
  for (std::int64_t t = 0; t < tokens; ++t) {
    map(args.decay_inputs.row(t), args.dt_bias.data(), steps.sum.data() + t * heads, heads, add);
  }
  map(steps.sum.data(), steps.softplus.data(), size, softplus_of);
  map(args.a_log.data(), arrays.scale.data(), heads, exp_of);
  for (std::int64_t t = 0; t < tokens; ++t) {
    map(steps.softplus.data() + t * heads, arrays.scale.data(), arrays.product.data() + t * heads,
        heads, multiply);
  }
  map(arrays.product.data(), arrays.negated.data(), size, negate);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float* const log_decay = arrays.negated.data() + t * heads;
    float* const to = args.decay_factors.row(t);
    if (args.log_decay) {
      std::copy_n(log_decay, heads, to);
    } else {
      map(log_decay, to, heads, exp_of);
    }
  }
}

void run_composed(const reference::AnyComposedRatesCall& call) {
  std::visit(
      [](const auto& typed) {
        auto& arrays = *typed.arrays;
        if (typed.args->arithmetic == GatedDeltaRatesArithmetic::kActivation) {
          run_graph(*typed.args, arrays.activation, arrays);
        } else {
          run_graph(*typed.args, arrays.float32, arrays);
        }
      },
      call);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaworks {

HWY_EXPORT(run_composed);

namespace reference {

template <class T>
void gated_delta_rates_composed(const GatedDeltaRatesArgs<T>& args,
                                ComposedRatesArrays<T>& arrays) {
  const auto size = static_cast<std::size_t>(args.update_logits.size());
  const auto fit = [size](auto& array) { array.resize(size); };
  if (args.arithmetic == GatedDeltaRatesArithmetic::kActivation) {
    fit(arrays.activation.sum), fit(arrays.activation.softplus);
  } else {
    fit(arrays.float32.sum), fit(arrays.float32.softplus);
  }
  fit(arrays.product), fit(arrays.negated);
  arrays.scale.resize(static_cast<std::size_t>(args.a_log.size()));
  cpu::ensure_target();
  HWY_DYNAMIC_DISPATCH(run_composed)(ComposedRatesCall<T>{&args, &arrays});
}

template void gated_delta_rates_composed(const GatedDeltaRatesArgs<float>&,
                                         ComposedRatesArrays<float>&);
template void gated_delta_rates_composed(const GatedDeltaRatesArgs<Float16>&,
                                         ComposedRatesArrays<Float16>&);
template void gated_delta_rates_composed(const GatedDeltaRatesArgs<BFloat16>&,
                                         ComposedRatesArrays<BFloat16>&);

}  // namespace reference
}  // namespace deltaworks
#endif  // HWY_ONCE

// Log decay and update rate from the raw projections: formulas in
// include/deltaworks/gated_delta_net.hpp and gated_delta_rates.hpp.
#include <hwy/highway.h>

#include <limits>

#include "cpu/math-inl.h"

#if defined(DELTAWORKS_CPU_GATES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_GATES_INL_H_
#undef DELTAWORKS_CPU_GATES_INL_H_
#else
#define DELTAWORKS_CPU_GATES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// An infinity becomes the largest finite number, so that it never meets a zero in a product.
template <class D>
HWY_INLINE hn::Vec<D> finite(D d, hn::Vec<D> x) {
  const auto largest = hn::Set(d, std::numeric_limits<float>::max());
  return at_least(d, at_most(d, x, largest), hn::Neg(largest));
}

// exp(a_log), kept finite so that its product with a zero is a zero.
template <class D>
HWY_INLINE hn::Vec<D> finite_exp(D d, hn::Vec<D> x) {
  return finite(d, exp(d, x));
}

// −exp(a_log) · softplus(decay + dt_bias)
template <class D>
HWY_INLINE hn::Vec<D> softplus_log_decay(D d, hn::Vec<D> decay, hn::Vec<D> a_log,
                                         hn::Vec<D> dt_bias) {
  const auto x = hn::Add(finite(d, decay), finite(d, dt_bias));
  return hn::Neg(hn::Mul(finite_exp(d, a_log), finite(d, softplus(d, x))));
}

// gate_lower_bound · sigmoid(exp(a_log) · (decay + dt_bias))
template <class D>
HWY_INLINE hn::Vec<D> sigmoid_log_decay(D d, hn::Vec<D> decay, hn::Vec<D> a_log, hn::Vec<D> dt_bias,
                                        float gate_lower_bound) {
  const auto x = finite(d, hn::Add(finite(d, decay), finite(d, dt_bias)));
  return hn::Mul(hn::Set(d, gate_lower_bound), sigmoid(d, hn::Mul(finite_exp(d, a_log), x)));
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

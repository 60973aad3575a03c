// The elementary functions of all operators, so that equal inputs give equal bits in every one of
// them.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <limits>

#if defined(DELTAWORKS_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_MATH_INL_H_
#undef DELTAWORKS_CPU_MATH_INL_H_
#else
#define DELTAWORKS_CPU_MATH_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 0 below −104, infinity above 88.73; a NaN stays one.
template <class D>
HWY_INLINE hn::Vec<D> exp(D d, hn::Vec<D> x) {
  // Highway's exponent arithmetic wraps far above the overflow, and its clamp would lose a NaN.
  const auto y = hn::Exp(d, hn::Min(x, hn::Set(d, 89.0f)));
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

// 1 / (1 + exp(−x))
template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, exp(d, hn::Neg(x))));
}

// x / (1 + exp(−x))
template <class D>
HWY_INLINE hn::Vec<D> silu(D d, hn::Vec<D> x) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), exp(d, hn::Neg(x))));
}

// log(1 + exp(x)) = max(x, 0) + log1p(exp(−|x|)); a NaN stays one.
template <class D>
HWY_INLINE hn::Vec<D> softplus(D d, hn::Vec<D> x) {
  const auto tail = hn::Log1p(d, exp(d, hn::Neg(hn::Abs(x))));
  const auto y = hn::Add(hn::Max(x, hn::Zero(d)), tail);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

template <class D>
HWY_INLINE hn::Vec<D> tanh(D d, hn::Vec<D> x) {
  // ±1 to the last bit from 9.02 on; a NaN passes neither bound.
  const auto bound = hn::Set(d, 10.0f);
  const auto clamped = hn::Max(hn::Min(x, bound), hn::Neg(bound));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, clamped));
}

// exp(a_log), kept finite so that its product with a zero is one.
template <class D>
HWY_INLINE hn::Vec<D> finite_exp(D d, hn::Vec<D> x) {
  const auto y = exp(d, x);
  const auto largest = hn::Set(d, std::numeric_limits<float>::max());
  return hn::IfThenElse(hn::IsNaN(y), y, hn::Min(y, largest));
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

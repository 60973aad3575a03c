// The elementary functions of all operators, so that equal inputs give equal bits in every one of
// them.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

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

// x / (1 + exp(−x)); −0 below −88.73; a NaN stays one, through the numerator. Half the operations of
// exp: the exponent is read from the low bits of a sum with 1.5 · 2^23, and n counts halves so that
// exp(89) overflows only in the denominator.
template <class D>
HWY_INLINE hn::Vec<D> silu(D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto one = hn::Set(d, 1.0f);
  const auto z = hn::Max(hn::Min(x, hn::Set(d, 87.0f)), hn::Set(d, -89.0f));
  const auto magic = hn::Set(d, 0x1.8p23f + 126);
  const auto shifted = hn::MulAdd(z, hn::Set(d, -0x1.715476p0f), magic);  // −log2(e)
  const auto n = hn::Sub(shifted, magic);
  // s = z + n · ln 2 in [−0.347, 0.347], ln 2 in two parts; exp(−s) = 1 − s + s² · q(s), q fitted to
  // 4.4e-9 of exp(−s).
  const auto rough = hn::MulAdd(n, hn::Set(d, 0x1.63p-1f), z);
  const auto s = hn::MulAdd(n, hn::Set(d, -0x1.bd0106p-13f), rough);
  const auto s2 = hn::Mul(s, s);
  const auto low = hn::MulAdd(s, hn::Set(d, -0x1.55549p-3f), hn::Set(d, 0x1.fffffcp-2f));
  const auto middle = hn::MulAdd(s, hn::Set(d, -0x1.123a6cp-7f), hn::Set(d, 0x1.5558f4p-5f));
  const auto high = hn::MulAdd(s2, hn::Set(d, 0x1.6a235p-10f), middle);
  const auto q = hn::MulAdd(s2, high, low);
  const auto p = hn::Add(hn::MulSub(s2, q, s), one);
  const auto half = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));  // 2^(n − 1)
  return hn::Div(x, hn::MulAdd(hn::Mul(p, half), hn::Set(d, 2.0f), one));
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

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

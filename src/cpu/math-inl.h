// The elementary functions of all operators, so that equal inputs give equal bits in every one of
// them. Errors are in units in the last place of the exact result, the largest over every float32
// (tests/math_test.cpp); the unit of a subnormal is 2^−149. A NaN stays one. Instruction sets with a
// fused multiply-add give equal bits; the others (SSE4, SCALAR) round its product and may differ.
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

// Minimum and maximum of x86 return their second operand when one is a NaN.
constexpr bool kBoundKeepsNan = HWY_ARCH_X86 && HWY_TARGET <= HWY_SSSE3;  // lower is better

// The smaller of x and a number; a NaN stays one.
template <class D>
HWY_INLINE hn::Vec<D> at_most(D, hn::Vec<D> x, hn::Vec<D> bound) {
  if constexpr (kBoundKeepsNan) return hn::Min(bound, x);
  return hn::IfThenElse(hn::Gt(x, bound), bound, x);
}

// The larger of x and a number; a NaN stays one.
template <class D>
HWY_INLINE hn::Vec<D> at_least(D, hn::Vec<D> x, hn::Vec<D> bound) {
  if constexpr (kBoundKeepsNan) return hn::Max(bound, x);
  return hn::IfThenElse(hn::Lt(x, bound), bound, x);
}

// exp(±z) = p / unit · 2^n, p / unit in [0.70, 1.42]. The last places of `shifted` are n + bias.
template <class D>
struct Power {
  hn::Vec<D> p;
  hn::Vec<D> shifted;
};

// For |z| up to 104. kSign is that of ±; both give the same bits for the same power.
template <int kSign, class D>
HWY_INLINE Power<D> power_of_e(D d, hn::Vec<D> z, float bias, float unit = 1) {
  constexpr float kOdd = kSign;
  // The sum with 1.5 · 2^23 has no places behind the point.
  const auto magic = hn::Set(d, 0x1.8p23f + bias);
  const auto shifted = hn::MulAdd(z, hn::Set(d, kOdd * 0x1.715476p0f), magic);  // log2(e)
  const auto n = hn::Sub(shifted, magic);
  // s = z ∓ n · ln 2 in [−0.347, 0.347], ln 2 in two parts; exp(±s) as a polynomial, fitted to
  // 4.4e-9.
  const auto rough = hn::MulAdd(n, hn::Set(d, kOdd * -0x1.63p-1f), z);
  const auto s = hn::MulAdd(n, hn::Set(d, kOdd * 0x1.bd0106p-13f), rough);
  auto p =
      hn::MulAdd(s, hn::Set(d, unit * 0x1.6a235p-10f), hn::Set(d, kOdd * unit * 0x1.123a6cp-7f));
  p = hn::MulAdd(s, p, hn::Set(d, unit * 0x1.5558f4p-5f));
  p = hn::MulAdd(s, p, hn::Set(d, kOdd * unit * 0x1.55549p-3f));
  p = hn::MulAdd(s, p, hn::Set(d, unit * 0x1.fffffcp-2f));
  p = hn::MulAdd(s, p, hn::Set(d, kOdd * unit));
  return {hn::MulAdd(s, p, hn::Set(d, unit)), shifted};
}

// 2^(n + bias − 127), from the sum above.
template <class D>
HWY_INLINE hn::Vec<D> power_of_two(D d, hn::Vec<D> shifted) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted)));
}

// Within 1 unit. 0 below −103.97, infinity above 88.72.
template <class D>
HWY_INLINE hn::Vec<D> exp(D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto z = at_least(d, at_most(d, x, hn::Set(d, 89.0f)), hn::Set(d, -104.0f));
  // n goes from −150 to 128, too far for one factor: the last product alone may round or overflow.
  const Power<D> power = power_of_e<1>(d, z, 254);
  const auto biased = hn::BitCast(du, power.shifted);
  const auto half = hn::ShiftRight<1>(biased);
  const auto first = hn::BitCast(d, hn::ShiftLeft<23>(half));
  const auto second = hn::BitCast(d, hn::ShiftLeft<23>(hn::Sub(biased, half)));
  return hn::Mul(hn::Mul(power.p, first), second);
}

// exp(−z) for z >= 0, the bits of exp in five operations less: n + 48 is never too large.
template <class D>
HWY_INLINE hn::Vec<D> exp_of_minus(D d, hn::Vec<D> z) {
  const auto power = power_of_e<-1>(d, at_most(d, z, hn::Set(d, 104.0f)), 127 + 48, 0x1p-48f);
  return hn::Mul(power.p, power_of_two(d, power.shifted));
}

// (1 + exp(−x)) / 2; infinity below −89.07, where n − 1 is infinity's exponent.
template <class D>
HWY_INLINE hn::Vec<D> half_of_one_plus_exp_of_minus(D d, hn::Vec<D> x) {
  const auto z = at_least(d, at_most(d, x, hn::Set(d, 87.0f)), hn::Set(d, -89.5f));
  const auto power = power_of_e<-1>(d, z, 126);
  return hn::MulAdd(power.p, power_of_two(d, power.shifted), hn::Set(d, 0.5f));
}

// 1 / (1 + exp(−x)) within 3 units; 0 below −89.07.
template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D d, hn::Vec<D> x) {
  return hn::Div(hn::Set(d, 0.5f), half_of_one_plus_exp_of_minus(d, x));
}

// x / (1 + exp(−x)) within 3 units; −0 below −89.07.
template <class D>
HWY_INLINE hn::Vec<D> silu(D d, hn::Vec<D> x) {
  return hn::Div(hn::Mul(hn::Set(d, 0.5f), x), half_of_one_plus_exp_of_minus(d, x));
}

// log(1 + x) for x in [0, 1], within 2 units: x + x² · q(x), q fitted to 3.3e-8 of log(1 + x).
template <class D>
HWY_INLINE hn::Vec<D> log1p(D d, hn::Vec<D> x) {
  auto q = hn::MulAdd(x, hn::Set(d, 0x1.5f96d8p-8f), hn::Set(d, -0x1.ec991ap-6f));
  q = hn::MulAdd(x, q, hn::Set(d, 0x1.446bfcp-4f));
  q = hn::MulAdd(x, q, hn::Set(d, -0x1.19ad8ap-3f));
  q = hn::MulAdd(x, q, hn::Set(d, 0x1.88445p-3f));
  q = hn::MulAdd(x, q, hn::Set(d, -0x1.fd132p-3f));
  q = hn::MulAdd(x, q, hn::Set(d, 0x1.5535dap-2f));
  q = hn::MulAdd(x, q, hn::Set(d, -0x1.ffff14p-2f));
  return hn::MulAdd(hn::Mul(x, x), q, x);
}

// softplus(x) from e = exp(−|x|).
template <class D>
HWY_INLINE hn::Vec<D> softplus_of(D d, hn::Vec<D> x, hn::Vec<D> e) {
  return hn::Add(at_least(d, x, hn::Zero(d)), log1p(d, e));
}

// log(1 + exp(x)) = max(x, 0) + log1p(exp(−|x|)) within 3 units; 0 below −103.97.
template <class D>
HWY_INLINE hn::Vec<D> softplus(D d, hn::Vec<D> x) {
  return softplus_of(d, x, exp_of_minus(d, hn::Abs(x)));
}

// Within 4 units.
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

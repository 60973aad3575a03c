// Eight partial sums, whatever the vector width: the one order of summation of this library.
// Element i belongs to partial i mod 8, partials take their elements in ascending order by fma, and
// one tree adds the partials. Every target with fma gives the same bits.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/load-inl.h"

#if defined(DELTAWORKS_CPU_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_SUM_INL_H_
#undef DELTAWORKS_CPU_SUM_INL_H_
#else
#define DELTAWORKS_CPU_SUM_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D8 = hn::CappedTag<float, 8>;
using V8 = hn::Vec<D8>;
constexpr D8 d8;
constexpr std::size_t kLanes8 = hn::MaxLanes(d8);  // 8, 4 or 1
constexpr std::size_t kParts8 = 8 / kLanes8;

// Eight floats in one vector of 8 lanes, two of 4, or eight of one.
struct Eight {
  V8 part[kParts8];
};

HWY_INLINE Eight set8(float x) {
  Eight r;
  for (std::size_t p = 0; p < kParts8; ++p) r.part[p] = hn::Set(d8, x);
  return r;
}

template <class T>
HWY_INLINE Eight load8(const T* from) {
  Eight r;
  for (std::size_t p = 0; p < kParts8; ++p) r.part[p] = load_float(d8, from + p * kLanes8);
  return r;
}

// The first n of eight elements, zeros behind them.
template <class T>
HWY_INLINE Eight load8_n(const T* from, std::size_t n) {
  if (n >= 8) return load8(from);
  T padded[8] = {};
  for (std::size_t i = 0; i < n; ++i) padded[i] = from[i];
  return load8(padded);
}

template <class T>
HWY_INLINE void store8(const Eight& a, T* to) {
  for (std::size_t p = 0; p < kParts8; ++p) store_float(a.part[p], d8, to + p * kLanes8);
}

HWY_INLINE Eight mul8(const Eight& a, const Eight& b) {
  Eight r;
  for (std::size_t p = 0; p < kParts8; ++p) r.part[p] = hn::Mul(a.part[p], b.part[p]);
  return r;
}

// a b + c; one rounding where the target has fma
HWY_INLINE Eight mul_add8(const Eight& a, const Eight& b, const Eight& c) {
  Eight r;
  for (std::size_t p = 0; p < kParts8; ++p) r.part[p] = hn::MulAdd(a.part[p], b.part[p], c.part[p]);
  return r;
}

// ((0+4) + (2+6)) + ((1+5) + (3+7))
HWY_INLINE float sum8(const Eight& a) {
  HWY_ALIGN float x[8];
  store8(a, x);
  return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

// sum of a[i] b[i] for i < n
template <class A, class B>
HWY_INLINE float dot8(const A* a, const B* b, std::size_t n) {
  Eight sum = set8(0.0f);
  for (std::size_t i = 0; i < n; i += 8) {
    sum = mul_add8(load8_n(a + i, n - i), load8_n(b + i, n - i), sum);
  }
  return sum8(sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

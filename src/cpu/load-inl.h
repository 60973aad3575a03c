// Vectors of float32 from and to elements of any type, whole or the first n. One rounding, to
// nearest even, the same on every target.
#include <hwy/highway.h>

#include "deltaworks/dtype.hpp"

#if defined(DELTAWORKS_CPU_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_LOAD_INL_H_
#undef DELTAWORKS_CPU_LOAD_INL_H_
#else
#define DELTAWORKS_CPU_LOAD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Targets with instructions for binary16; the others convert element by element.
constexpr bool kHasHalfConversion =
    (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_TARGET == HWY_NEON;  // lower is better

template <class D>
HWY_INLINE hn::Vec<D> load_float(D d, const float* from) {
  return hn::LoadU(d, from);
}

// The values of elements that lie in a register as their bits.
template <class D>
HWY_INLINE hn::Vec<D> widen(D, hn::Vec<D> value, float) {
  return value;
}

template <class D>
HWY_INLINE hn::Vec<D> widen(D d, hn::Vec<hn::Rebind<std::uint16_t, D>> bits, BFloat16) {
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

template <class D>
HWY_INLINE hn::Vec<D> widen(D d, hn::Vec<hn::Rebind<std::uint16_t, D>> bits, Float16) {
  if constexpr (kHasHalfConversion) {
    const hn::Rebind<hwy::float16_t, D> dhalf;
    return hn::PromoteTo(d, hn::BitCast(dhalf, bits));
  } else {
    const hn::Rebind<std::uint16_t, D> d16;
    HWY_ALIGN std::uint16_t half[hn::MaxLanes(d16)];
    HWY_ALIGN float lane[hn::MaxLanes(d)];
    hn::Store(bits, d16, half);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) lane[i] = to_float(Float16{half[i]});
    return hn::Load(d, lane);
  }
}

template <class D, class T>
HWY_INLINE hn::Vec<D> load_float(D d, const T* from) {
  const hn::Rebind<std::uint16_t, D> d16;
  return widen(d, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)), T{});
}

template <class D>
HWY_INLINE void store_float(hn::Vec<D> v, D d, float* to) {
  hn::StoreU(v, d, to);
}

// The upper half of each lane, rounded to nearest even: a bfloat16's bits. A NaN stays a (quiet) NaN.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> bfloat16_bits(D, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto nearest = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff))));
  const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, nearest);
}

template <class D>
HWY_INLINE void store_float(hn::Vec<D> v, D d, BFloat16* to) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto half = hn::BitCast(di, bfloat16_bits(d, v));
  hn::StoreU(hn::DemoteTo(d16, half), d16, reinterpret_cast<std::uint16_t*>(to));
}

template <class D>
HWY_INLINE void store_float(hn::Vec<D> v, D d, Float16* to) {
  if constexpr (kHasHalfConversion) {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> dhalf;
    const auto half = hn::BitCast(d16, hn::DemoteTo(dhalf, v));
    hn::StoreU(half, d16, reinterpret_cast<std::uint16_t*>(to));
  } else {
    HWY_ALIGN float lane[hn::MaxLanes(d)];
    hn::Store(v, d, lane);
    for (std::size_t i = 0; i < hn::Lanes(d); ++i) to[i] = from_float<Float16>(lane[i]);
  }
}

// v rounded to an element type, as a value: what a store and a load would give.
template <class D>
HWY_INLINE hn::Vec<D> round_to(D, hn::Vec<D> v, float) {
  return v;
}

template <class D>
HWY_INLINE hn::Vec<D> round_to(D d, hn::Vec<D> v, BFloat16) {
  return hn::BitCast(d, hn::ShiftLeft<16>(bfloat16_bits(d, v)));
}

template <class D>
HWY_INLINE hn::Vec<D> round_to(D d, hn::Vec<D> v, Float16) {
  HWY_ALIGN Float16
      half[hn::MaxLanes(d)];  // a compiler with the instructions keeps it in a register
  store_float(v, d, half);
  return load_float(d, half);
}

// The first n <= Lanes(d) elements, zeros behind them; memory behind them is not touched.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_float_n(D d, const T* from, std::size_t n) {
  if (n == hn::Lanes(d)) return load_float(d, from);
  T padded[hn::MaxLanes(d)] = {};
  for (std::size_t i = 0; i < n; ++i) padded[i] = from[i];
  return load_float(d, padded);
}

template <class D, class T>
HWY_INLINE void store_float_n(hn::Vec<D> v, D d, T* to, std::size_t n) {
  if (n == hn::Lanes(d)) {
    store_float(v, d, to);
    return;
  }
  T padded[hn::MaxLanes(d)];
  store_float(v, d, padded);
  for (std::size_t i = 0; i < n; ++i) to[i] = padded[i];
}

// Copies `size` elements between types through float32, which loses nothing on the way.
template <class From, class To>
HWY_INLINE void convert(const From* from, To* to, std::size_t size) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < size; i += lanes) {
    const std::size_t n = size - i < lanes ? size - i : lanes;
    store_float_n(load_float_n(d, from + i, n), d, to + i, n);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

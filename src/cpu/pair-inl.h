// Two vectors of consecutive channels at a time. Sixteen-bit elements then fill whole registers, and
// bfloat16 needs no shuffle: even channels in one vector, odd ones in the other, a shift and a mask
// take a register apart, a shift and a select put it together.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "cpu/load-inl.h"

#if defined(DELTAWORKS_CPU_PAIR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_PAIR_INL_H_
#undef DELTAWORKS_CPU_PAIR_INL_H_
#else
#define DELTAWORKS_CPU_PAIR_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

// A result of bfloat16 values, rounded in its upper half; what the lower half holds has no meaning.
// The NaNs of such values end in zeros, so that no rounding carries into them.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> nearest_bfloat16(D, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  if constexpr (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) {  // masks: three operations, not four
    const auto is_odd = hn::TestBit(bits, hn::Set(du, 0x10000));
    return hn::Add(bits, hn::IfThenElse(is_odd, hn::Set(du, 0x8000), hn::Set(du, 0x7fff)));
  }
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  return hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
}

// Whether inputs in T and results in R lie in pairs of even and odd channels. One lane has no pairs.
template <class T, class R>
constexpr bool kEvenOdd =
    std::is_same_v<T, BFloat16>&& std::is_same_v<R, BFloat16>&& HWY_TARGET != HWY_SCALAR;

template <bool kOdd, class D, class T, class V = hn::Vec<D>>
HWY_INLINE void load_pair(D d, const T* from, V& a, V& b) {
  if constexpr (!kOdd) {
    a = load_float(d, from);
    b = load_float(d, from + hn::Lanes(d));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    const hn::RebindToUnsigned<D> du;
    const hn::Repartition<std::uint16_t, D> d16;
    const auto both = hn::BitCast(du, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)));
    a = hn::BitCast(d, hn::ShiftLeft<16>(both));
    b = hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff0000u)));
  } else {
    static_assert(std::is_same_v<T, float>);
    hn::LoadInterleaved2(d, from, a, b);
  }
}

template <bool kOdd, class D, class R, class V = hn::Vec<D>>
HWY_INLINE void store_pair(D d, V a, V b, R* to) {
  if constexpr (!kOdd) {
    store_float(a, d, to);
    store_float(b, d, to + hn::Lanes(d));
  } else {
    static_assert(std::is_same_v<R, BFloat16>);
    const hn::RebindToUnsigned<D> du;
    const hn::Repartition<std::uint16_t, D> d16;
    const auto low = hn::ShiftRight<16>(nearest_bfloat16(d, a));
    const auto both = hn::OrAnd(low, nearest_bfloat16(d, b), hn::Set(du, 0xffff0000u));
    hn::StoreU(hn::BitCast(d16, both), d16, reinterpret_cast<std::uint16_t*>(to));
  }
}

// Widens to the order of the pairs; behind `size` up to a whole pair, zeros.
template <bool kOdd, class T>
HWY_INLINE void widen_pairs(const T* from, std::int64_t size, float* to) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t c = 0; c < size; c += 2 * lanes) {
    T padded[2 * hn::MaxLanes(d)];
    const T* pair = from + c;
    if (size - c < 2 * lanes) {
      std::fill(std::copy_n(pair, size - c, padded), std::end(padded), T{});
      pair = padded;
    }
    auto a = hn::Zero(d), b = a;
    load_pair<kOdd>(d, pair, a, b);
    hn::StoreU(a, d, to + c);
    hn::StoreU(b, d, to + c + lanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

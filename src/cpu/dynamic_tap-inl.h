// The arithmetic of taps whose weights depend on the row: one place, so that dflash2_dynamic_conv
// and the dynamic mode of varlen_causal_conv give equal bits. Nothing is fused.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "cpu/load-inl.h"
#include "cpu/pair-inl.h"

#if defined(DELTAWORKS_CPU_DYNAMIC_TAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_DYNAMIC_TAP_INL_H_
#undef DELTAWORKS_CPU_DYNAMIC_TAP_INL_H_
#else
#define DELTAWORKS_CPU_DYNAMIC_TAP_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

// A result of values of type T, rounded to T.
template <class D>
HWY_INLINE hn::Vec<D> rounded(D d, hn::Vec<D> v, BFloat16) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::And(nearest_bfloat16(d, v), hn::Set(du, 0xffff0000u)));
}

template <class D>
HWY_INLINE hn::Vec<D> rounded(D d, hn::Vec<D> v, Float16) {
  if constexpr (kHasHalfConversion) {
    const hn::Rebind<hwy::float16_t, D> dhalf;
    return hn::PromoteTo(d, hn::DemoteTo(dhalf, v));
  } else {
    return round_to(d, v, Float16{});
  }
}

template <class D>
HWY_INLINE hn::Vec<D> rounded(D, hn::Vec<D> v, float) {
  return v;
}

template <bool kRounds, class T, class D>
HWY_INLINE hn::Vec<D> step(D d, hn::Vec<D> v) {
  if constexpr (kRounds) return rounded(d, v, T{});
  return v;
}

template <bool kRounds, class T, class D, class V = hn::Vec<D>>
HWY_INLINE V product(D d, V base, V coefficient, V x) {
  const V weight = step<kRounds, T>(d, hn::Add(base, coefficient));
  return step<kRounds, T>(d, hn::Mul(weight, x));
}

// The coefficients of the groups, each repeated for its channels in [begin, end). A store may run
// over into the next group, which comes later and overwrites it; behind `end` there is room.
HWY_INLINE void spread(const float* wide, std::int64_t group_size, std::int64_t begin,
                       std::int64_t end, float* to) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t first = begin / group_size, last = (end - 1) / group_size;
  for (std::int64_t group = first; group <= last; ++group) {
    const auto value = hn::Set(d, wide[group - first]);
    const std::int64_t stop = std::min((group + 1) * group_size, end);
    for (std::int64_t c = std::max(group * group_size, begin); c < stop; c += lanes) {
      hn::StoreU(value, d, to + (c - begin));
    }
  }
}

// The first group of the channels [begin, end), how many there are, and, where groups are whole vectors, each vector's,
// counted from the first: one vector more than the channels fill.
struct GroupRange {
  std::int64_t first, count;
};
HWY_INLINE GroupRange find_groups(std::int64_t begin, std::int64_t end, std::int64_t group_size,
                                  std::int32_t* group_of) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const std::int64_t first = begin / group_size, count = (end - 1) / group_size - first + 1;
  std::int64_t stop = (first + 1) * group_size - begin;
  std::int32_t group = 0;
  for (std::int64_t c = 0; c < end - begin + lanes; c += lanes) {
    if (c >= stop && group + 1 < count) {
      ++group;
      stop += group_size;
    }
    group_of[c / lanes] = group;
  }
  return {first, count};
}

// The coefficients of channels c … c + 2 · lanes − 1 as pairs: kSpread: one for each channel, else one for each group.
template <bool kOdd, bool kSpread, class D, class V = hn::Vec<D>>
HWY_INLINE void load_coefficients(D d, const float* of_tap, const std::int32_t* group_of,
                                  std::int64_t c, V& a, V& b) {
  if constexpr (kSpread) {
    load_pair<kOdd>(d, of_tap + c, a, b);
  } else {
    const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
    a = hn::Set(d, of_tap[group_of[c / lanes]]);
    b = hn::Set(d, of_tap[group_of[c / lanes + 1]]);
    if constexpr (kOdd) a = b = hn::IfThenElse(hn::FirstN(d, hn::Lanes(d) / 2), a, b);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

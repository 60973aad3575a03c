// Few columns of a row-major matrix as vectors: states and weights of a convolution lie channel by channel.
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(DELTAWORKS_CPU_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_COLUMNS_INL_H_
#undef DELTAWORKS_CPU_COLUMNS_INL_H_
#else
#define DELTAWORKS_CPU_COLUMNS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Elements as they are stored: copying them changes no bit, of a NaN neither.
template <class D>
HWY_INLINE D bits_tag(D d, float) {
  return d;
}
template <class D, class T>
HWY_INLINE hn::Rebind<std::uint16_t, D> bits_tag(D, T) {
  return {};
}
template <class D, class T>
using Bits = decltype(bits_tag(D(), T()));

HWY_INLINE const float* as_bits(const float* from) { return from; }
HWY_INLINE float* as_bits(float* from) { return from; }
template <class T>
HWY_INLINE const std::uint16_t* as_bits(const T* from) {
  return reinterpret_cast<const std::uint16_t*>(from);
}
template <class T>
HWY_INLINE std::uint16_t* as_bits(T* from) {
  return reinterpret_cast<std::uint16_t*>(from);
}

template <class T, class D>
HWY_INLINE hn::Vec<Bits<D, T>> load_bits(D d, const T* from, std::size_t n) {
  const Bits<D, T> d_bits;
  if (n == hn::Lanes(d)) return hn::LoadU(d_bits, as_bits(from));
  T padded[hn::MaxLanes(d)] = {};
  for (std::size_t i = 0; i < n; ++i) padded[i] = from[i];
  return hn::LoadU(d_bits, as_bits(padded));
}

// Highway's transposition of four goes through 128-bit blocks; even and odd elements of two vectors are one
// instruction each with AVX-512, two with AVX2: 0.6 and 0.9 cycles a channel instead of 1.0 and 1.3. (Their names are
// looked up with the vectors: SCALAR has none.)
template <class D, class V = hn::Vec<D>>
HWY_INLINE void load_four_columns(D d, const hn::TFromD<D>* from, V& a, V& b, V& c, V& e) {
  if constexpr (HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && sizeof(hn::TFromD<D>) == 4) {
    const std::size_t lanes = hn::Lanes(d);
    const auto low_0 = hn::LoadU(d, from), low_1 = hn::LoadU(d, from + lanes);
    const auto high_0 = hn::LoadU(d, from + 2 * lanes), high_1 = hn::LoadU(d, from + 3 * lanes);
    const auto low_even = ConcatEven(d, low_1, low_0), low_odd = ConcatOdd(d, low_1, low_0);
    const auto high_even = ConcatEven(d, high_1, high_0);
    const auto high_odd = ConcatOdd(d, high_1, high_0);
    a = ConcatEven(d, high_even, low_even);
    b = ConcatEven(d, high_odd, low_odd);
    c = ConcatOdd(d, high_even, low_even);
    e = ConcatOdd(d, high_odd, low_odd);
  } else {
    hn::LoadInterleaved4(d, from, a, b, c, e);
  }
}

// Transposes [n, Count], Count = 1 … 4: the last of the four results is the last column, unused
// ones are left as they are.
template <int Count, class D, class T, class V = hn::Vec<Bits<D, T>>>
HWY_INLINE void load_columns(D d, const T* from, std::size_t n, V& a, V& b, V& c, V& e) {
  const Bits<D, T> d_bits;
  T padded[Count * hn::MaxLanes(d)];
  if (n != hn::Lanes(d)) {
    std::memset(padded, 0, sizeof(padded));
    std::memcpy(padded, from, n * Count * sizeof(T));
    from = padded;
  }
  const auto* bits = as_bits(from);
  if constexpr (Count == 1) e = hn::LoadU(d_bits, bits);
  if constexpr (Count == 2) hn::LoadInterleaved2(d_bits, bits, c, e);
  if constexpr (Count == 3) hn::LoadInterleaved3(d_bits, bits, b, c, e);
  if constexpr (Count == 4) load_four_columns(d_bits, bits, a, b, c, e);
}

template <int Count, class D, class T, class V = hn::Vec<Bits<D, T>>>
HWY_INLINE void store_columns(D d, [[maybe_unused]] V a, V b, V c, V e, T* to, std::size_t n) {
  const Bits<D, T> d_bits;
  T padded[Count * hn::MaxLanes(d)];
  const bool whole = n == hn::Lanes(d);
  auto* bits = as_bits(whole ? to : padded);
  if constexpr (Count == 1) hn::StoreU(e, d_bits, bits);
  if constexpr (Count == 2) hn::StoreInterleaved2(c, e, d_bits, bits);
  if constexpr (Count == 3) hn::StoreInterleaved3(b, c, e, d_bits, bits);
  if constexpr (Count == 4) hn::StoreInterleaved4(a, b, c, e, d_bits, bits);
  if (!whole) std::memcpy(to, padded, n * Count * sizeof(T));
}

// Count columns, one row a channel, to rows of channels and back. `rows` hold whole vectors; zeros stand behind the last
// channel.
template <class T>
using RowTag = hn::ScalableTag<std::conditional_t<std::is_same_v<T, float>, float, std::uint16_t>>;

template <int Count, class T>
HWY_INLINE void columns_to_rows(const T* from, std::int64_t size, T* rows, std::int64_t stride) {
  static_assert(1 <= Count && Count <= 4);
  const RowTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < size; i += lanes) {
    T padded[Count * hn::MaxLanes(d)];
    const T* columns = from + i * Count;
    if (size - i < lanes) {
      std::memset(padded, 0, sizeof(padded));
      std::memcpy(padded, columns, static_cast<std::size_t>((size - i) * Count) * sizeof(T));
      columns = padded;
    }
    const auto* bits = as_bits(columns);
    auto* to = as_bits(rows + i);
    auto a = hn::Zero(d), b = a, c = a, e = a;
    if constexpr (Count == 1) e = hn::LoadU(d, bits);
    if constexpr (Count == 2) hn::LoadInterleaved2(d, bits, c, e);
    if constexpr (Count == 3) hn::LoadInterleaved3(d, bits, b, c, e);
    if constexpr (Count == 4) load_four_columns(d, bits, a, b, c, e);
    if constexpr (Count == 4) hn::StoreU(a, d, to);
    if constexpr (Count >= 3) hn::StoreU(b, d, to + (Count - 3) * stride);
    if constexpr (Count >= 2) hn::StoreU(c, d, to + (Count - 2) * stride);
    hn::StoreU(e, d, to + (Count - 1) * stride);
  }
}

// Each row is read for `size` elements, no further.
template <int Count, class T>
HWY_INLINE void rows_to_columns(const T* const (&rows)[Count], std::int64_t size, T* to) {
  static_assert(1 <= Count && Count <= 3);
  const RowTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto store = [&](const T* oldest, const T* middle, const T* newest, T* columns) HWY_ATTR {
    const auto c = hn::LoadU(d, as_bits(newest));
    auto* bits = as_bits(columns);
    if constexpr (Count == 1) hn::StoreU(c, d, bits);
    if constexpr (Count == 2) hn::StoreInterleaved2(hn::LoadU(d, as_bits(middle)), c, d, bits);
    if constexpr (Count == 3) {
      const auto a = hn::LoadU(d, as_bits(oldest)), b = hn::LoadU(d, as_bits(middle));
      hn::StoreInterleaved3(a, b, c, d, bits);
    }
  };
  const T *const oldest = rows[0], *const newest = rows[Count - 1];
  const T* const middle = rows[Count == 3 ? 1 : 0];
  std::int64_t i = 0;
  for (; i + lanes <= size; i += lanes) store(oldest + i, middle + i, newest + i, to + i * Count);
  if (i == size) return;
  T padded[3][hn::MaxLanes(d)] = {}, columns[Count * hn::MaxLanes(d)];
  std::copy_n(oldest + i, size - i, padded[0]);
  std::copy_n(middle + i, size - i, padded[1]);
  std::copy_n(newest + i, size - i, padded[2]);
  store(padded[0], padded[1], padded[2], columns);
  std::copy_n(columns, (size - i) * Count, to + i * Count);
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

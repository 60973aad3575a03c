// Few columns of a row-major matrix as vectors: states and weights of a convolution lie channel by channel.
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

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
  if constexpr (Count == 4) hn::LoadInterleaved4(d_bits, bits, a, b, c, e);
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

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

// Four-by-four floats in the blocks of vectors, transposed; and the vectors' way from and to the rows of a matrix.
#include <hwy/highway.h>

#include <cstdint>

#if defined(DELTAWORKS_CPU_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_TRANSPOSE_INL_H_
#undef DELTAWORKS_CPU_TRANSPOSE_INL_H_
#else
#define DELTAWORKS_CPU_TRANSPOSE_INL_H_
#endif

#if HWY_TARGET != HWY_SCALAR  // which has no blocks

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Four floats of each of the rows 0, 4, 8 …, in the order of a vector's blocks.
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const float* from, std::int64_t row_stride) {
  if constexpr (hn::MaxLanes(d) == 4) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    const float* const upper = from + static_cast<std::int64_t>(hn::MaxLanes(half)) * row_stride;
    return hn::Combine(d, load_blocks(half, upper, row_stride),
                       load_blocks(half, from, row_stride));
  }
}

template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> blocks, float* to, std::int64_t row_stride) {
  if constexpr (hn::MaxLanes(d) == 4) {
    hn::StoreU(blocks, d, to);
  } else {
    const hn::Half<D> half;
    float* const upper = to + static_cast<std::int64_t>(hn::MaxLanes(half)) * row_stride;
    store_blocks(half, hn::LowerHalf(half, blocks), to, row_stride);
    store_blocks(half, hn::UpperHalf(half, blocks), upper, row_stride);
  }
}

// Transposes the four-by-four floats of each block.
template <class D>
HWY_INLINE void transpose_blocks(D d, hn::Vec<D> (&x)[4]) {
  const hn::Repartition<double, D> pairs;
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, x[0], x[1]));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, x[0], x[1]));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, x[2], x[3]));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, x[2], x[3]));
  x[0] = hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23));
  x[1] = hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23));
  x[2] = hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23));
  x[3] = hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23));
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif

#endif  // per target

// The dynamic mode of varlen_causal_conv: two taps, their weights widened once for a chunk of
// channels, their coefficients repeated for the channels of their group token by token.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/dynamic_tap-inl.h"
#include "deltaworks/varlen_causal_conv.hpp"

#if defined(DELTAWORKS_CPU_VARLEN_CAUSAL_CONV_DYNAMIC_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_VARLEN_CAUSAL_CONV_DYNAMIC_INL_H_
#undef DELTAWORKS_CPU_VARLEN_CAUSAL_CONV_DYNAMIC_INL_H_
#else
#define DELTAWORKS_CPU_VARLEN_CAUSAL_CONV_DYNAMIC_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

// A chunk of a row is too short for the processor to guess the next, which is fetched meanwhile: 0.7 of the time for 512
// rows of 5120 float32 with AVX2. Few rows are in the caches already; 8 took 1.1 times as long.
constexpr std::int64_t kFewRows = 32;
constexpr std::int64_t kDynamicChunk = 512;  // channels; four float32 rows of it are 8 KiB

// Weights and coefficients of a chunk, for the token itself and for the one before it. Whole vectors
// may be read and stored from any channel on.
struct DynamicChunk {
  static constexpr std::int64_t kSize =
      kDynamicChunk + static_cast<std::int64_t>(hn::MaxLanes(hn::ScalableTag<float>()));

  std::int64_t begin, end;
  HWY_ALIGN float now_weight[kSize], before_weight[kSize];
  HWY_ALIGN float now_delta[kSize], before_delta[kSize];
};

template <class T>
HWY_INLINE void load_deltas(const VarlenCausalConvArgs<T>& args, std::int64_t row,
                            std::int64_t groups, DynamicChunk& chunk) {
  const std::int64_t first = chunk.begin / args.group_size;
  const std::int64_t count = (chunk.end - 1) / args.group_size - first + 1;
  const T* now = args.kernel_delta->row(row) + args.delta_offset * groups + first;
  float wide[kDynamicChunk];
  convert(now, wide, static_cast<std::size_t>(count));
  spread(wide, args.group_size, chunk.begin, chunk.end, chunk.now_delta);
  convert(now + groups, wide, static_cast<std::size_t>(count));
  spread(wide, args.group_size, chunk.begin, chunk.end, chunk.before_delta);
}

// A value of type T: nothing is left to round.
template <class D, class T>
HWY_INLINE void store_value_n(hn::Vec<D> v, D d, T* to, std::size_t n) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (n == hn::Lanes(d)) {
      const hn::RebindToSigned<D> di;
      const hn::Rebind<std::uint16_t, D> d16;
      const auto upper = hn::ShiftRight<16>(hn::BitCast(hn::RebindToUnsigned<D>(), v));
      const auto half = hn::DemoteTo(d16, hn::BitCast(di, upper));
      return hn::StoreU(half, d16, reinterpret_cast<std::uint16_t*>(to));
    }
  }
  store_float_n(v, d, to, n);
}

// One token; x, before (null: zeros) and y begin at the chunk's first channel. With kFetches the rows behind them, the
// strides ahead, are fetched meanwhile.
template <bool kFetches, class T>
HWY_NOINLINE void dynamic_token(const DynamicChunk& chunk, float previous_mask, const T* x,
                                const T* before, T* y, std::int64_t x_ahead, std::int64_t y_ahead) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d)), size = chunk.end - chunk.begin;
  const auto mask = hn::Set(d, previous_mask);
  const auto outputs_at = [&](std::int64_t c, std::size_t n) HWY_ATTR {
    const auto of_now =
        product<true, T>(d, hn::LoadU(d, chunk.now_weight + c), hn::LoadU(d, chunk.now_delta + c),
                         load_float_n(d, x + c, n));
    const auto of_before = product<true, T>(
        d, hn::LoadU(d, chunk.before_weight + c), hn::LoadU(d, chunk.before_delta + c),
        before == nullptr ? hn::Zero(d) : load_float_n(d, before + c, n));
    const auto masked = step<true, T>(d, hn::Mul(of_before, mask));
    store_value_n(step<true, T>(d, hn::Add(of_now, masked)), d, y + c, n);
  };
  std::int64_t c = 0;
  for (; c + lanes <= size; c += lanes) {
    if constexpr (kFetches) {
      hwy::Prefetch(x + x_ahead + c);
      hwy::Prefetch(y + y_ahead + c);
    }
    outputs_at(c, hn::Lanes(d));
  }
  if (c < size) outputs_at(c, static_cast<std::size_t>(size - c));
}

// Input rows [begin_row, end_row) of one sequence, channels [begin, end). `state` holds the samples
// before row `first`; null: zeros.
template <class T>
void dynamic_outputs(const VarlenCausalConvArgs<T>& args, std::int64_t first, const T* state,
                     std::int64_t begin_row, std::int64_t end_row, std::int64_t begin,
                     std::int64_t end) noexcept {
  const std::int64_t groups = args.weight.extent(0) / args.group_size;
  DynamicChunk chunk;
  for (chunk.begin = begin; chunk.begin < end; chunk.begin = chunk.end) {
    chunk.end = std::min(chunk.begin + kDynamicChunk, end);
    for (std::int64_t c = chunk.begin; c < chunk.end; ++c) {
      chunk.before_weight[c - chunk.begin] = to_float(args.weight.row(c)[0]);
      chunk.now_weight[c - chunk.begin] = to_float(args.weight.row(c)[1]);
    }
    for (std::int64_t row = begin_row; row < end_row; ++row) {
      load_deltas(args, row, groups, chunk);
      const T* const x = args.input.row(row) + chunk.begin;
      const T* before = state == nullptr ? nullptr : state + chunk.begin;
      if (row > first) before = args.input.row(row - 1) + chunk.begin;
      T* const y = args.output.row(row) + chunk.begin;
      const float mask = to_float(*args.previous_mask->row(row));
      if (end_row - begin_row < kFewRows || row + 1 == end_row) {
        dynamic_token<false>(chunk, mask, x, before, y, 0, 0);
      } else {
        const std::int64_t ahead = args.input.row_stride();
        dynamic_token<true>(chunk, mask, x, before, y, ahead, args.output.row_stride());
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

// The dynamic mode of varlen_causal_conv: two taps, their weights widened once for a chunk of
// channels, their coefficients repeated for the channels of their group token by token.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

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

constexpr std::int64_t kDynamicChunk = 256;  // channels; four float32 rows of it are 4 KiB

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

// One token; x, before (null: zeros) and y begin at the chunk's first channel.
template <class T>
HWY_INLINE void dynamic_token(const DynamicChunk& chunk, float previous_mask, const T* x,
                              const T* before, T* y) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d)), size = chunk.end - chunk.begin;
  const auto mask = hn::Set(d, previous_mask);
  for (std::int64_t c = 0; c < size; c += lanes) {
    const auto n = static_cast<std::size_t>(std::min(lanes, size - c));
    const auto of_now =
        product<true, T>(d, hn::LoadU(d, chunk.now_weight + c), hn::LoadU(d, chunk.now_delta + c),
                         load_float_n(d, x + c, n));
    const auto of_before = product<true, T>(
        d, hn::LoadU(d, chunk.before_weight + c), hn::LoadU(d, chunk.before_delta + c),
        before == nullptr ? hn::Zero(d) : load_float_n(d, before + c, n));
    const auto masked = step<true, T>(d, hn::Mul(of_before, mask));
    store_float_n(step<true, T>(d, hn::Add(of_now, masked)), d, y + c, n);
  }
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
      const T* before = row > first ? args.input.row(row - 1) : state;
      dynamic_token(
          chunk, to_float(*args.previous_mask->row(row)), args.input.row(row) + chunk.begin,
          before == nullptr ? before : before + chunk.begin, args.output.row(row) + chunk.begin);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

// The dynamic mode of varlen_causal_conv: two taps, two vectors of channels at a time; their weights are widened once for
// a chunk of channels, the coefficients of their groups token by token.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/columns-inl.h"
#include "cpu/dynamic_tap-inl.h"
#include "cpu/pair-inl.h"
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

enum DynamicTap { kBefore, kNow, kDynamicTaps };

// Weights and one token's coefficients of a chunk. Whole pairs of vectors may be read and stored from any channel on.
template <class T>
struct DynamicChunk {
  static constexpr std::int64_t kMaxStep = 2 * hn::MaxLanes(hn::ScalableTag<float>());
  static constexpr std::int64_t kSize = kDynamicChunk + kMaxStep;

  std::int64_t begin, end;
  GroupRange groups;
  HWY_ALIGN float weight[kDynamicTaps][kSize];  // in the order of pairs
  HWY_ALIGN float delta[kDynamicTaps][kSize];   // one for each channel or group
  std::int32_t group_of[kSize];                 // of each vector
  HWY_ALIGN T zeros[kSize] = {};
};

template <class T>
void load_weights(const View<const T, 3>& weight, DynamicChunk<T>& chunk) {
  HWY_ALIGN T taps[kDynamicTaps * kDynamicChunk];
  const std::int64_t size = chunk.end - chunk.begin;
  if (weight.row_stride() == kDynamicTaps) {
    columns_to_rows<kDynamicTaps>(weight.row(chunk.begin), size, taps, kDynamicChunk);
  } else {
    for (std::int64_t c = 0; c < size; ++c) {
      const T* const row = weight.row(chunk.begin + c);
      taps[kBefore * kDynamicChunk + c] = row[kBefore], taps[kNow * kDynamicChunk + c] = row[kNow];
    }
  }
  for (int tap = 0; tap < kDynamicTaps; ++tap) {
    widen_pairs<kEvenOdd<T, T>>(taps + tap * kDynamicChunk, size, chunk.weight[tap]);
  }
}

// The coefficients of one row.
template <bool kSpread, class T>
HWY_INLINE void load_deltas(const VarlenCausalConvArgs<T>& args, std::int64_t row,
                            std::int64_t groups, DynamicChunk<T>& chunk) {
  const T* const now =
      args.kernel_delta->row(row) + args.delta_offset * groups + chunk.groups.first;
  const auto count = static_cast<std::size_t>(chunk.groups.count);
  for (const auto& [from, to] :
       {std::pair(now, chunk.delta[kNow]), std::pair(now + groups, chunk.delta[kBefore])}) {
    if constexpr (kSpread) {
      float wide[kDynamicChunk];
      convert(from, wide, count);
      spread(wide, args.group_size, chunk.begin, chunk.end, to);
    } else {
      convert(from, to, count);
    }
  }
}

// The rows of one token, from the first channel of a chunk or from some other on. The rows `ahead` are fetched meanwhile.
template <class T>
struct DynamicRows {
  const T *now, *before;
  T* output;
  const T *now_ahead, *output_ahead;
};

// Channels c … c + 2 · lanes − 1; the rows begin at c. kMasks: the mask is not 1.
template <bool kSpread, bool kMasks, class T>
HWY_INLINE void dynamic_pair(const DynamicChunk<T>& chunk, std::int64_t c, float mask,
                             const DynamicRows<T>& rows) {
  constexpr bool kOdd = kEvenOdd<T, T>;
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> product_a[kDynamicTaps], product_b[kDynamicTaps];
  for (int tap = 0; tap < kDynamicTaps; ++tap) {
    auto a = hn::Zero(d), b = a, x_a = a, x_b = a;
    load_coefficients<kOdd, kSpread>(d, chunk.delta[tap], chunk.group_of, c, a, b);
    load_pair<kOdd>(d, tap == kNow ? rows.now : rows.before, x_a, x_b);
    const float* const weight = chunk.weight[tap] + c;
    product_a[tap] = product<true, T>(d, hn::LoadU(d, weight), a, x_a);
    product_b[tap] = product<true, T>(d, hn::LoadU(d, weight + lanes), b, x_b);
  }
  if constexpr (kMasks) {
    const auto factor = hn::Set(d, mask);
    product_a[kBefore] = step<true, T>(d, hn::Mul(product_a[kBefore], factor));
    product_b[kBefore] = step<true, T>(d, hn::Mul(product_b[kBefore], factor));
  }
  store_pair<kOdd>(d, hn::Add(product_a[kNow], product_a[kBefore]),
                   hn::Add(product_b[kNow], product_b[kBefore]), rows.output);
}

template <bool kSpread, bool kMasks, bool kFetches, class T>
HWY_NOINLINE void dynamic_token(const DynamicChunk<T>& chunk, float mask,
                                const DynamicRows<T>& rows) {
  const auto step = 2 * static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const std::int64_t size = chunk.end - chunk.begin;
  std::int64_t c = 0;
  for (; c + step <= size; c += step) {
    if constexpr (kFetches) {
      hwy::Prefetch(rows.now_ahead + c);
      hwy::Prefetch(rows.output_ahead + c);
      if constexpr (sizeof(T) == 4) {  // whose pairs of whole registers fill two cache lines
        hwy::Prefetch(rows.now_ahead + c + step / 2);
        hwy::Prefetch(rows.output_ahead + c + step / 2);
      }
    }
    dynamic_pair<kSpread, kMasks>(chunk, c, mask,
                                  {rows.now + c, rows.before + c, rows.output + c, {}, {}});
  }
  if (c == size) return;
  T now[DynamicChunk<T>::kMaxStep] = {}, before[DynamicChunk<T>::kMaxStep] = {},
    output[DynamicChunk<T>::kMaxStep];
  std::copy_n(rows.now + c, size - c, now);
  std::copy_n(rows.before + c, size - c, before);
  dynamic_pair<kSpread, kMasks>(chunk, c, mask, {now, before, output, {}, {}});
  std::copy_n(output, size - c, rows.output + c);
}

// All rows of a chunk, before which lie the samples at `state`.
template <bool kSpread, class T>
void dynamic_rows(const VarlenCausalConvArgs<T>& args, const T* state, std::int64_t first,
                  std::int64_t begin, std::int64_t end, DynamicChunk<T>& chunk) noexcept {
  const std::int64_t groups = args.weight.extent(0) / args.group_size;
  for (std::int64_t row = begin; row < end; ++row) {
    load_deltas<kSpread>(args, row, groups, chunk);
    const std::int64_t next = std::min(row + 1, end - 1);
    const auto input = [&](std::int64_t r) { return args.input.row(r) + chunk.begin; };
    const auto output = [&](std::int64_t r) { return args.output.row(r) + chunk.begin; };
    const DynamicRows<T> rows{input(row), row > first ? input(row - 1) : state, output(row),
                              input(next), output(next)};
    const float mask = to_float(*args.previous_mask->row(row));
    const bool fetches = end - begin >= kFewRows;
    // A product with 1 is what it was: of 16-bit types, rounded already.
    const auto run = mask == 1.0f ? (fetches ? dynamic_token<kSpread, false, true, T>
                                             : dynamic_token<kSpread, false, false, T>)
                                  : (fetches ? dynamic_token<kSpread, true, true, T>
                                             : dynamic_token<kSpread, true, false, T>);
    run(chunk, mask, rows);
  }
}

// Input rows [begin_row, end_row) of one sequence, channels [begin, end). `state` holds the samples
// before row `first`; null: zeros.
template <class T>
void dynamic_outputs(const VarlenCausalConvArgs<T>& args, std::int64_t first, const T* state,
                     std::int64_t begin_row, std::int64_t end_row, std::int64_t begin,
                     std::int64_t end) noexcept {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const auto run = args.group_size % lanes == 0 ? dynamic_rows<false, T> : dynamic_rows<true, T>;
  DynamicChunk<T> chunk;
  for (chunk.begin = begin; chunk.begin < end; chunk.begin = chunk.end) {
    chunk.end = std::min(chunk.begin + kDynamicChunk, end);
    chunk.groups = find_groups(chunk.begin, chunk.end, args.group_size, chunk.group_of);
    load_weights(args.weight, chunk);
    run(args, state == nullptr ? chunk.zeros : state + chunk.begin, first, begin_row, end_row,
        chunk);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

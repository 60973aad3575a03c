// Few tokens of channels that lie one after another: a vector of channels is transposed, there and back, and
// the lanes are channels. (Along the tokens a channel would fill no vector, and its window costs more than
// its outputs: 8 tokens took 1.7 times as long with AVX-512, 2.7 times with AVX2.)
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "contract/causal_conv_with_state.hpp"
#include "cpu/columns-inl.h"
#include "cpu/load-inl.h"
#include "cpu/math-inl.h"
#include "deltaworks/causal_conv_with_state.hpp"

#if defined(DELTAWORKS_CPU_CAUSAL_CONV_WITH_STATE_SHORT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_CAUSAL_CONV_WITH_STATE_SHORT_INL_H_
#undef DELTAWORKS_CPU_CAUSAL_CONV_WITH_STATE_SHORT_INL_H_
#else
#define DELTAWORKS_CPU_CAUSAL_CONV_WITH_STATE_SHORT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Geometry = contract::CausalConvWithStateGeometry;
using F = hn::ScalableTag<float>;

constexpr F kF;
constexpr std::int64_t kMaxLanes = hn::MaxLanes(kF);
constexpr std::int64_t kMaxTaps = 32;     // that a task keeps; a longer row is read from memory
constexpr std::int64_t kMaxHistory = 64;  // that a window holds; a longer one is read in place
constexpr std::int64_t kShort = 16;       // tokens at most, for which channels go across the lanes

std::int64_t lanes() { return static_cast<std::int64_t>(hn::Lanes(kF)); }

bool can_halve(std::int64_t count, std::size_t n) {
  return n == hn::Lanes(kF) && count % 2 == 0 && count <= kMaxTaps;
}

template <bool kSilu, class T>
HWY_INLINE void store_output(hn::Vec<F> sum, T* to, std::size_t n) {
  if constexpr (kSilu) sum = silu(kF, sum);
  store_float_n(sum, kF, to, n);
}

// Rows of n channels, `count` elements each, to columns `stride` apart, and back. Up to four go through registers, 6 and
// more in even numbers by halves, even and odd columns (kHalvings times at most); zeros stand behind a vector's last
// channel.
template <int kHalvings = 2, class T>
HWY_INLINE void to_columns(const T* rows, std::int64_t count, std::size_t n, T* columns,
                           std::int64_t stride = kMaxLanes) {
  const Bits<F, T> d_bits;
  auto a = hn::Zero(d_bits), b = a, c = a, e = a;
  const auto load = [&]<int kCount>() HWY_ATTR {
    load_columns<kCount>(kF, rows, n, a, b, c, e);
    auto* const to = as_bits(columns);
    if constexpr (kCount >= 4) hn::StoreU(a, d_bits, to + (kCount - 4) * stride);
    if constexpr (kCount >= 3) hn::StoreU(b, d_bits, to + (kCount - 3) * stride);
    if constexpr (kCount >= 2) hn::StoreU(c, d_bits, to + (kCount - 2) * stride);
    hn::StoreU(e, d_bits, to + (kCount - 1) * stride);
  };
  switch (count) {
    case 0: return;
    case 1: return load.template operator()<1>();
    case 2: return load.template operator()<2>();
    case 3: return load.template operator()<3>();
    case 4: return load.template operator()<4>();
  }
  if constexpr (kHalvings > 0) {
    if (can_halve(count, n)) {
      HWY_ALIGN T even[kMaxTaps / 2 * kMaxLanes], odd[kMaxTaps / 2 * kMaxLanes];
      for (std::int64_t i = 0; i < count / 2 * lanes(); i += lanes()) {
        hn::LoadInterleaved2(d_bits, as_bits(rows + 2 * i), a, b);
        hn::StoreU(a, d_bits, as_bits(even + i));
        hn::StoreU(b, d_bits, as_bits(odd + i));
      }
      to_columns<kHalvings - 1>(even, count / 2, n, columns, 2 * stride);
      to_columns<kHalvings - 1>(odd, count / 2, n, columns + stride, 2 * stride);
      return;
    }
  }
  for (std::int64_t j = 0; j < count; ++j) {
    if (n < hn::Lanes(kF)) std::fill_n(columns + j * stride, kMaxLanes, T{});
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(n); ++i)
      columns[j * stride + i] = rows[i * count + j];
  }
}

template <int kHalvings = 2, class T>
HWY_INLINE void to_rows(const T* columns, std::int64_t count, std::size_t n, T* rows,
                        std::int64_t stride = kMaxLanes) {
  const auto store = [&]<int kCount>() HWY_ATTR {
    const auto column = [&](std::int64_t back) HWY_ATTR {
      const std::int64_t j = std::max<std::int64_t>(0, kCount - back);
      return load_bits(kF, columns + j * stride, hn::Lanes(kF));
    };
    store_columns<kCount>(kF, column(4), column(3), column(2), column(1), rows, n);
  };
  switch (count) {
    case 0: return;
    case 1: return store.template operator()<1>();
    case 2: return store.template operator()<2>();
    case 3: return store.template operator()<3>();
    case 4: return store.template operator()<4>();
  }
  if constexpr (kHalvings > 0) {
    if (can_halve(count, n)) {
      const Bits<F, T> d_bits;
      HWY_ALIGN T even[kMaxTaps / 2 * kMaxLanes], odd[kMaxTaps / 2 * kMaxLanes];
      to_rows<kHalvings - 1>(columns, count / 2, n, even, 2 * stride);
      to_rows<kHalvings - 1>(columns + stride, count / 2, n, odd, 2 * stride);
      for (std::int64_t i = 0; i < count / 2 * lanes(); i += lanes()) {
        const auto a = hn::LoadU(d_bits, as_bits(even + i)),
                   b = hn::LoadU(d_bits, as_bits(odd + i));
        hn::StoreInterleaved2(a, b, d_bits, as_bits(rows + 2 * i));
      }
      return;
    }
  }
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(n); ++i) {
    for (std::int64_t j = 0; j < count; ++j) rows[i * count + j] = columns[j * stride + i];
  }
}

// All tokens of n channels, and their state.
template <bool kSilu, class T>
void run_short(const CausalConvWithStateArgs<T>& args, const Geometry& g, std::int64_t b,
               std::int64_t channel, std::size_t n) noexcept {
  HWY_ALIGN T taps[kMaxTaps * kMaxLanes];
  HWY_ALIGN T window[(kMaxHistory + kShort) * kMaxLanes];  // state, then input
  HWY_ALIGN T outputs[kShort * kMaxLanes];
  if (args.weight.is_dense()) {
    to_columns(args.weight.row(channel), g.width, n, taps);
  } else {
    std::fill_n(taps, g.width * kMaxLanes, T{});
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(n); ++i) {
      const T* const row = args.weight.row(channel + i);
      for (std::int64_t j = 0; j < g.width; ++j) taps[j * kMaxLanes + i] = row[j];
    }
  }
  HWY_ALIGN float bias[kMaxLanes] = {};
  for (std::int64_t i = 0; args.bias && i < static_cast<std::int64_t>(n); ++i)
    bias[i] = to_float(*args.bias->row(channel + i));
  if (args.past_state) {
    to_columns(args.past_state->row(b) + channel * g.history, g.history, n, window);
  } else {
    std::fill_n(window, g.history * kMaxLanes, T{});
  }
  to_columns(args.input.row(b) + channel * g.length, g.length, n, window + g.history * kMaxLanes);
  for (std::int64_t t = 0; t < g.length; ++t) {
    auto sum = hn::Load(kF, bias);
    for (std::int64_t j = 0; j < g.width; ++j) {
      const auto sample = load_float(kF, window + (t + j * g.dilation) * kMaxLanes);
      sum = hn::MulAdd(load_float(kF, taps + j * kMaxLanes), sample, sum);
    }
    store_output<kSilu>(sum, outputs + t * kMaxLanes, hn::Lanes(kF));
  }
  to_rows(outputs, g.length, n, args.output.row(b) + channel * g.length);
  if (g.history > 0)
    to_rows(window + g.length * kMaxLanes, g.history, n,
            args.present_state.row(b) + channel * g.history);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

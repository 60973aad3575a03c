// Channels lie across the lanes, a tile of rows shares the base in registers. A tile's coefficients
// are first widened into a buffer of the first-level cache; where groups are no whole vectors each
// is repeated there for its channels. Products and sums are rounded one by one, never fused: the
// same bits on every instruction set.
#include "cpu/dflash2_dynamic_conv.hpp"

#include <algorithm>
#include <type_traits>
#include <variant>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/dflash2_dynamic_conv.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/dynamic_tap-inl.h"
#include "cpu/load-inl.h"

#ifndef DELTAWORKS_CPU_DFLASH2_DYNAMIC_CONV_ONCE_
#define DELTAWORKS_CPU_DFLASH2_DYNAMIC_CONV_ONCE_
namespace deltaworks::cpu {

// One name for every type: dispatch takes no template.
using DFlash2Args = std::variant<const DFlash2DynamicConvArgs<float>*,
                                 const DFlash2DynamicConvArgs<float, float, BFloat16>*,
                                 const DFlash2DynamicConvArgs<Float16>*,
                                 const DFlash2DynamicConvArgs<Float16, Float16, BFloat16>*,
                                 const DFlash2DynamicConvArgs<Float16, float, Float16>*,
                                 const DFlash2DynamicConvArgs<Float16, float, BFloat16>*,
                                 const DFlash2DynamicConvArgs<BFloat16>*,
                                 const DFlash2DynamicConvArgs<BFloat16, float, BFloat16>*>;

}  // namespace deltaworks::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kTile = 4;     // rows that share one load of the base
constexpr std::int64_t kChunk = 256;  // channels; a tile's coefficients fill at most 16 KiB

// A tile of `count` rows that have the same number of taps.
template <class T, class R>
struct Rows {
  View<const T, 2> input, dynamic;   // dynamic: this stage's columns
  const View<const R, 2>* residual;  // null: none
  View<R, 2> output;
  std::int64_t channels, groups;
  std::int64_t first, count;
};

// A chunk of channels, widened: the base [taps, kTapStep] and coefficients [kTile, taps, kTapStep].
template <int kTaps>
struct Chunk {
  // Whole vectors may be stored from any channel on.
  static constexpr std::int64_t kTapStep =
      kChunk + static_cast<std::int64_t>(hn::MaxLanes(hn::ScalableTag<float>()));

  std::int64_t begin, end;
  HWY_ALIGN float base[kTaps * kTapStep];
  HWY_ALIGN float coefficients[kTile * kTaps * kTapStep];
};

// n channels from `channel` on, of every row of the tile: a window of samples slides down it. The
// coefficients, from `at` on in each row, are one number for all of them, or one for each.
template <int kTaps, bool kRounds, bool kSpread, class T, class R>
HWY_INLINE void slide(const Rows<T, R>& rows, const Chunk<kTaps>& chunk, std::int64_t channel,
                      std::size_t n, std::int64_t at) {
  constexpr std::int64_t kTapStep = Chunk<kTaps>::kTapStep;
  const hn::ScalableTag<float> d;
  const float* base = chunk.base + (channel - chunk.begin);
  const auto zero = hn::Zero(d);
  const auto b0 = hn::LoadU(d, base);
  const auto b1 = kTaps > 1 ? hn::LoadU(d, base + kTapStep) : zero;
  const auto b2 = kTaps > 2 ? hn::LoadU(d, base + 2 * kTapStep) : zero;
  const auto b3 = kTaps > 3 ? hn::LoadU(d, base + 3 * kTapStep) : zero;
  const T* input = rows.input.row(rows.first) + channel;
  const std::int64_t stride = rows.input.row_stride();
  auto x1 = kTaps > 1 ? load_float_n(d, input - stride, n) : zero;
  auto x2 = kTaps > 2 ? load_float_n(d, input - 2 * stride, n) : zero;
  auto x3 = kTaps > 3 ? load_float_n(d, input - 3 * stride, n) : zero;
  R* output = rows.output.row(rows.first) + channel;
  const float* weight = chunk.coefficients + at;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const auto of = [&](std::int64_t tap) {
      const float* from = weight + tap * kTapStep;
      return kSpread ? hn::LoadU(d, from) : hn::Set(d, *from);
    };
    const auto x0 = load_float_n(d, input, n);
    auto sum = product<kRounds, T>(d, b0, of(0), x0);
    if constexpr (kTaps > 1) {
      sum = step<kRounds, T>(d, hn::Add(sum, product<kRounds, T>(d, b1, of(1), x1)));
    }
    if constexpr (kTaps > 2) {
      sum = step<kRounds, T>(d, hn::Add(sum, product<kRounds, T>(d, b2, of(2), x2)));
    }
    if constexpr (kTaps > 3) {
      sum = step<kRounds, T>(d, hn::Add(sum, product<kRounds, T>(d, b3, of(3), x3)));
    }
    if (rows.residual != nullptr) {
      sum = hn::Add(sum, load_float_n(d, rows.residual->row(rows.first + i) + channel, n));
    }
    store_float_n(sum, d, output, n);
    x3 = x2;
    x2 = x1;
    x1 = x0;
    input += stride;
    output += rows.output.row_stride();
    weight += kTaps * kTapStep;
  }
}

// Groups of whole vectors: each vector has one coefficient a tap. Not inlined: one copy serves every
// type of the base.
template <int kTaps, bool kRounds, class T, class R>
HWY_NOINLINE void run_vectors(const Rows<T, R>& rows, const Chunk<kTaps>& chunk,
                              std::int64_t group_size) {
  const std::size_t lanes = hn::Lanes(hn::ScalableTag<float>());
  const std::int64_t first = chunk.begin / group_size;
  std::int64_t c = chunk.begin;
  for (std::int64_t group = first; c < chunk.end; ++group) {
    const std::int64_t stop = std::min((group + 1) * group_size, chunk.end);
    for (; c < stop; c += static_cast<std::int64_t>(lanes)) {
      slide<kTaps, kRounds, false>(rows, chunk, c, lanes, group - first);
    }
  }
}

template <int kTaps, bool kRounds, class T, class R>
HWY_NOINLINE void run_channels(const Rows<T, R>& rows, const Chunk<kTaps>& chunk) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  for (std::int64_t c = chunk.begin; c < chunk.end; c += lanes) {
    const auto n = static_cast<std::size_t>(std::min(lanes, chunk.end - c));
    slide<kTaps, kRounds, true>(rows, chunk, c, n, c - chunk.begin);
  }
}

// The published drafters have two taps: more of them take the loop for any group size.
template <int kTaps, bool kRounds, class T, class R, class Base>
void run_tile(const Rows<T, R>& rows, const Base* base) noexcept {
  constexpr std::int64_t kTapStep = Chunk<kTaps>::kTapStep;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const std::int64_t group_size = rows.channels / rows.groups;
  const bool is_whole = kTaps <= 2 && group_size % lanes == 0;
  Chunk<kTaps> chunk;
  for (chunk.begin = 0; chunk.begin < rows.channels; chunk.begin = chunk.end) {
    chunk.end = std::min(chunk.begin + kChunk, rows.channels);
    const std::int64_t size = chunk.end - chunk.begin, first = chunk.begin / group_size;
    const std::int64_t groups = (chunk.end - 1) / group_size - first + 1;
    for (std::int64_t tap = 0; tap < kTaps; ++tap) {
      convert(base + tap * rows.channels + chunk.begin, chunk.base + tap * kTapStep,
              static_cast<std::size_t>(size));
    }
    for (std::int64_t i = 0; i < rows.count * kTaps; ++i) {
      const T* from = rows.dynamic.row(rows.first + i / kTaps) + i % kTaps * rows.groups + first;
      float* to = chunk.coefficients + i * kTapStep;
      float wide[kChunk];
      convert(from, is_whole ? to : wide, static_cast<std::size_t>(groups));
      if (!is_whole) spread(wide, group_size, chunk.begin, chunk.end, to);
    }
    if constexpr (kTaps <= 2) {
      if (is_whole) {
        run_vectors<kTaps, kRounds>(rows, chunk, group_size);
        continue;
      }
    }
    run_channels<kTaps, kRounds>(rows, chunk);
  }
}

template <bool kRounds, class T, class R, class Base>
void run_rows(const DFlash2DynamicConvArgs<T, R, Base>& args,
              const contract::DFlash2DynamicConvGeometry& geometry, std::int64_t begin,
              std::int64_t end) noexcept {
  const std::int64_t stage = args.stage == DFlash2Stage::kPrepare ? 0 : 1;
  const View<const T, 2> dynamic(args.dynamic.data() + stage * geometry.taps * geometry.groups,
                                 args.dynamic.extents(), args.dynamic.row_stride());
  for (std::int64_t r = begin; r < end;) {
    const std::int64_t place = r % geometry.rows_per_lane;
    const std::int64_t taps = std::min(geometry.taps, place + 1);
    // The first rows of a lane have fewer taps, each its own number.
    const std::int64_t alike = taps < geometry.taps ? 1 : geometry.rows_per_lane - place;
    const std::int64_t count = std::min({kTile, alike, end - r});
    const Rows<T, R> rows{args.input,
                          dynamic,
                          args.residual ? &*args.residual : nullptr,
                          args.output,
                          geometry.channels,
                          geometry.groups,
                          r,
                          count};
    const Base* base = args.base.row(stage);
    switch (taps) {
      case 1: run_tile<1, kRounds>(rows, base); break;
      case 2: run_tile<2, kRounds>(rows, base); break;
      case 3: run_tile<3, kRounds>(rows, base); break;
      default: run_tile<4, kRounds>(rows, base); break;
    }
    r += count;
  }
}

template <class T, class R, class Base>
void run_typed(const DFlash2DynamicConvArgs<T, R, Base>& args,
               const contract::DFlash2DynamicConvGeometry& geometry, std::int64_t begin,
               std::int64_t end) noexcept {
  if constexpr (!std::is_same_v<T, float>) {  // rounding to float32 changes nothing
    if (args.arithmetic == DFlash2Arithmetic::kActivation) {
      return run_rows<true>(args, geometry, begin, end);
    }
  }
  run_rows<false>(args, geometry, begin, end);
}

void rows_task(const cpu::DFlash2Args& args, const contract::DFlash2DynamicConvGeometry& geometry,
               std::int64_t begin, std::int64_t end) {
  std::visit([&](const auto* typed) { run_typed(*typed, geometry, begin, end); }, args);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaworks {

HWY_EXPORT(rows_task);

namespace cpu {

template <class T, class R, class Base>
void dflash2_dynamic_conv(const Cpu& device, const contract::DFlash2DynamicConvGeometry& geometry,
                          const DFlash2DynamicConvArgs<T, R, Base>& args) noexcept {
  constexpr std::int64_t kTaskElements = 1 << 16;  // about 20 us
  if (geometry.rows == 0 || geometry.channels == 0) return;
  const DFlash2Args any = &args;
  const bool is_small = geometry.rows <= 2 * kTaskElements / geometry.channels;
  const std::int64_t rows =  // of a task; a small call costs less than starting a thread
      is_small ? geometry.rows : std::max<std::int64_t>(1, kTaskElements / geometry.channels);
  device.parallel_for((geometry.rows + rows - 1) / rows, [&](std::int64_t task) {
    const std::int64_t begin = task * rows;
    HWY_DYNAMIC_DISPATCH(rows_task)(any, geometry, begin, std::min(begin + rows, geometry.rows));
  });
}

#define DELTAWORKS_KERNEL(...)                                                                \
  template void dflash2_dynamic_conv(const Cpu&, const contract::DFlash2DynamicConvGeometry&, \
                                     const DFlash2DynamicConvArgs<__VA_ARGS__>&) noexcept
DELTAWORKS_KERNEL(float, float, float);
DELTAWORKS_KERNEL(float, float, BFloat16);
DELTAWORKS_KERNEL(Float16, Float16, Float16);
DELTAWORKS_KERNEL(Float16, Float16, BFloat16);
DELTAWORKS_KERNEL(Float16, float, Float16);
DELTAWORKS_KERNEL(Float16, float, BFloat16);
DELTAWORKS_KERNEL(BFloat16, BFloat16, BFloat16);
DELTAWORKS_KERNEL(BFloat16, float, BFloat16);
#undef DELTAWORKS_KERNEL

}  // namespace cpu
}  // namespace deltaworks
#endif  // HWY_ONCE

// Channels lie across the lanes, two vectors at a time; rows pass one after another over a chunk of
// channels, whose base is widened once for a tile of rows. (Four rows at once in registers were
// slower where memory does not begin at a cache line, as malloc's does not: docs/ops.) Products and
// sums are rounded one by one, never fused: the same bits on every instruction set.
#include "cpu/dflash2_dynamic_conv.hpp"

#include <hwy/cache_control.h>

#include <algorithm>
#include <type_traits>
#include <variant>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/dflash2_dynamic_conv.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/dynamic_tap-inl.h"
#include "cpu/load-inl.h"
#include "cpu/pair-inl.h"
#include "cpu/parallel.hpp"

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

constexpr std::int64_t kTile = 16;  // rows that share a widened chunk of the base
constexpr std::int64_t kMaxTaps = 4;

// The base and one row's coefficients for the channels [begin, end), widened. A page of a row: with
// two taps, base and rows fill 28 KiB at most. Whole pairs of vectors may be read and stored from any
// channel on.
template <class T>
struct Chunk {
  static constexpr std::int64_t kSize = 4096 / sizeof(T);
  static constexpr std::int64_t kTapStep =
      kSize + 2 * static_cast<std::int64_t>(hn::MaxLanes(hn::ScalableTag<float>()));

  std::int64_t begin, end;
  GroupRange groups;
  HWY_ALIGN float base[kMaxTaps * kTapStep];
  HWY_ALIGN float coefficients[kMaxTaps * kTapStep];  // one for each channel or group
  std::int32_t group_of[kTapStep];                    // of each vector
};

// What every row shares; `dynamic` begins at the stage's columns.
template <class T, class R>
struct Rows {
  View<const T, 2> input, dynamic;
  const View<const R, 2>* residual;  // null: none
  View<R, 2> output;
  std::int64_t groups, group_size;
};

// One row's memory from some channel of the chunk on.
template <class T, class R>
struct Row {
  const T* input[kMaxTaps];  // of tap 0, 1, …; behind the row's taps any row
  const R* residual;         // read where `adds`; else any row
  R* output;
  bool adds;

  Row from(std::int64_t c) const {
    Row rest{{}, residual + c, output + c, adds};
    for (std::size_t tap = 0; tap < kMaxTaps; ++tap) rest.input[tap] = input[tap] + c;
    return rest;
  }
};

// The channels c … c + 2 · lanes − 1 of a chunk; `row` begins at c.
template <int kTaps, bool kRounds, bool kSpread, class T, class R>
HWY_INLINE void run_pair(const Chunk<T>& chunk, std::int64_t c, const Row<T, R>& row) {
  constexpr bool kOdd = kEvenOdd<T, R>;
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum_a = hn::Zero(d), sum_b = sum_a;
  for (int tap = 0; tap < kTaps; ++tap) {
    const float* base = chunk.base + tap * Chunk<T>::kTapStep + c;
    const float* of_tap = chunk.coefficients + tap * Chunk<T>::kTapStep;
    auto a = hn::Zero(d), b = a, x_a = a, x_b = a;
    load_coefficients<kOdd, kSpread>(d, of_tap, chunk.group_of, c, a, b);
    load_pair<kOdd>(d, row.input[tap], x_a, x_b);
    a = hn::Mul(step<kRounds, T>(d, hn::Add(hn::LoadU(d, base), a)), x_a);
    b = hn::Mul(step<kRounds, T>(d, hn::Add(hn::LoadU(d, base + lanes), b)), x_b);
    sum_a = tap == 0 ? a : hn::Add(step<kRounds, T>(d, sum_a), step<kRounds, T>(d, a));
    sum_b = tap == 0 ? b : hn::Add(step<kRounds, T>(d, sum_b), step<kRounds, T>(d, b));
  }
  // The store rounds the last sum, unless something is added first or R is wider.
  if (row.adds || !std::is_same_v<T, R>) {
    sum_a = step<kRounds, T>(d, sum_a);
    sum_b = step<kRounds, T>(d, sum_b);
  }
  if (row.adds) {
    auto a = hn::Zero(d), b = a;
    load_pair<kOdd>(d, row.residual, a, b);
    sum_a = hn::Add(sum_a, a);
    sum_b = hn::Add(sum_b, b);
  }
  store_pair<kOdd>(d, sum_a, sum_b, row.output);
}

// A chunk of one row; `next_input` and `next_output` begin that of the row behind it.
template <int kTaps, bool kRounds, bool kSpread, class T, class R>
HWY_INLINE void run_row(const Chunk<T>& chunk, const Row<T, R>& row, const T* next_input,
                        const R* next_output) {
  constexpr std::int64_t kMaxStep = 2 * hn::MaxLanes(hn::ScalableTag<float>());
  const auto step = 2 * static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const std::int64_t size = chunk.end - chunk.begin;
  std::int64_t c = 0;
  for (; c + step <= size; c += step) {
    // Sixteen-bit calls spend as long on arithmetic as on memory; what is in flight does not reach
    // far enough ahead for both to overlap.
    if constexpr (sizeof(T) == 2 && sizeof(R) == 2) {
      hwy::Prefetch(next_input + c);
      hwy::Prefetch(next_output + c);
    }
    run_pair<kTaps, kRounds, kSpread>(chunk, c, row.from(c));
  }
  if (c == size) return;
  T inputs[kTaps][kMaxStep] = {};
  R residual[kMaxStep] = {}, output[kMaxStep];
  const Row<T, R> last = row.from(c);
  Row<T, R> padded{{}, residual, output, row.adds};
  for (int tap = 0; tap < kTaps; ++tap) {
    std::copy_n(last.input[tap], size - c, inputs[tap]);
    padded.input[tap] = inputs[tap];
  }
  if (row.adds) std::copy_n(last.residual, size - c, residual);
  run_pair<kTaps, kRounds, kSpread>(chunk, c, padded);
  std::copy_n(output, size - c, last.output);
}

// The coefficients of one row.
template <int kTaps, bool kSpread, class T>
HWY_INLINE void load_coefficients(const T* from, std::int64_t groups, std::int64_t group_size,
                                  Chunk<T>& chunk) {
  const hn::ScalableTag<float> d;
  const auto count = static_cast<std::size_t>(chunk.groups.count);
  for (std::int64_t tap = 0; tap < kTaps; ++tap) {
    float* to = chunk.coefficients + tap * Chunk<T>::kTapStep;
    const T* of_tap = from + tap * groups + chunk.groups.first;
    if constexpr (kSpread) {
      float wide[Chunk<T>::kSize];
      convert(of_tap, wide, count);
      float* behind = to + (chunk.end - chunk.begin);
      hn::StoreU(hn::Zero(d), d, behind);
      hn::StoreU(hn::Zero(d), d, behind + hn::Lanes(d));
      spread(wide, group_size, chunk.begin, chunk.end, to);
    } else {
      convert(of_tap, to, count);
    }
  }
}

// Rows [begin, end) of one lane that have kTaps taps. Not inlined: one copy serves every type of the
// base.
template <int kTaps, bool kRounds, bool kSpread, class T, class R>
HWY_NOINLINE void run_alike(const Rows<T, R>& rows, Chunk<T>& chunk, std::int64_t begin,
                            std::int64_t end) noexcept {
  const std::int64_t stride = rows.input.row_stride();
  for (std::int64_t r = begin; r < end; ++r) {
    load_coefficients<kTaps, kSpread>(rows.dynamic.row(r), rows.groups, rows.group_size, chunk);
    R* output = rows.output.row(r) + chunk.begin;
    Row<T, R> row{{}, output, output, rows.residual != nullptr};
    if (row.adds) row.residual = rows.residual->row(r) + chunk.begin;
    for (std::int64_t tap = 0; tap < kMaxTaps; ++tap) {
      row.input[tap] = rows.input.row(r) + chunk.begin - (tap < kTaps ? tap * stride : 0);
    }
    const std::int64_t next = std::min(r + 1, rows.input.extent(0) - 1);
    run_row<kTaps, kRounds, kSpread>(chunk, row, rows.input.row(next) + chunk.begin,
                                     rows.output.row(next) + chunk.begin);
  }
}

// The published drafters have two taps: more of them take the loop for any group size.
template <bool kRounds, class T, class R>
void run_taps(const Rows<T, R>& rows, Chunk<T>& chunk, std::int64_t begin, std::int64_t end,
              std::int64_t taps, bool is_spread) noexcept {
  switch (taps) {
    case 1:
      return is_spread ? run_alike<1, kRounds, true>(rows, chunk, begin, end)
                       : run_alike<1, kRounds, false>(rows, chunk, begin, end);
    case 2:
      return is_spread ? run_alike<2, kRounds, true>(rows, chunk, begin, end)
                       : run_alike<2, kRounds, false>(rows, chunk, begin, end);
    case 3: return run_alike<3, kRounds, true>(rows, chunk, begin, end);
    default: return run_alike<4, kRounds, true>(rows, chunk, begin, end);
  }
}

template <bool kRounds, class T, class R, class Base>
void run_tile(const DFlash2DynamicConvArgs<T, R, Base>& args,
              const contract::DFlash2DynamicConvGeometry& g, std::int64_t begin,
              std::int64_t end) noexcept {
  const std::int64_t stage = args.stage == DFlash2Stage::kPrepare ? 0 : 1;
  const View<const T, 2> dynamic(args.dynamic.data() + stage * g.taps * g.groups,
                                 args.dynamic.extents(), args.dynamic.row_stride());
  const Rows<T, R> rows{args.input,  dynamic,  args.residual ? &*args.residual : nullptr,
                        args.output, g.groups, g.channels / g.groups};
  const std::int64_t most = std::min(g.taps, g.rows_per_lane);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const bool is_spread = most > 2 || rows.group_size % lanes != 0;
  Chunk<T> chunk;
  for (chunk.begin = 0; chunk.begin < g.channels; chunk.begin = chunk.end) {
    chunk.end = std::min(chunk.begin + Chunk<T>::kSize, g.channels);
    for (std::int64_t tap = 0; tap < most; ++tap) {
      widen_pairs<kEvenOdd<T, R>>(args.base.row(stage) + tap * g.channels + chunk.begin,
                                  chunk.end - chunk.begin, chunk.base + tap * Chunk<T>::kTapStep);
    }
    chunk.groups = find_groups(chunk.begin, chunk.end, rows.group_size, chunk.group_of);
    for (std::int64_t r = begin; r < end;) {
      const std::int64_t place = r % g.rows_per_lane, taps = std::min(most, place + 1);
      // The first rows of a lane have fewer taps, each its own number.
      const std::int64_t alike = taps < most ? 1 : g.rows_per_lane - place;
      const std::int64_t stop = most == 1 ? end : std::min(r + alike, end);
      run_taps<kRounds>(rows, chunk, r, stop, taps, is_spread);
      r = stop;
    }
  }
}

template <bool kRounds, class T, class R, class Base>
void run_rows(const DFlash2DynamicConvArgs<T, R, Base>& args,
              const contract::DFlash2DynamicConvGeometry& geometry, std::int64_t begin,
              std::int64_t end) noexcept {
  for (std::int64_t r = begin; r < end; r += kTile) {
    run_tile<kRounds>(args, geometry, r, std::min(r + kTile, end));
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
  const DFlash2Args any = &args;
  for_rows(device, geometry.rows, geometry.channels, kTaskElements,
           [&](std::int64_t begin, std::int64_t end) {
             HWY_DYNAMIC_DISPATCH(rows_task)(any, geometry, begin, end);
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

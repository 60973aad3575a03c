// Channels lie across the lanes. Widths 2 to 4 slide a window of samples through registers over a
// tile of tokens; any other geometry sums taps through memory. Every output is the same chain of
// fused multiply-adds in both, so that no cut of a call changes a bit.
#include "cpu/varlen_causal_conv.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/varlen_causal_conv_plan.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/varlen_causal_conv.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/columns-inl.h"
#include "cpu/load-inl.h"
#include "cpu/math-inl.h"
#include "cpu/varlen_causal_conv_dynamic-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kTile = 8;  // tokens that share one load of the weights

// Samples of one sequence: rows of input, before them the columns of a state.
template <class T>
struct Samples {
  const T* rows;
  std::int64_t row_stride;
  const T* state;  // [channels, history]; null: zeros
  std::int64_t history;
  std::int64_t length;

  const T* row(std::int64_t token) const { return rows + token * row_stride; }
};

template <class T>
struct Weights {
  const T* taps;
  std::int64_t row_stride;
  std::int64_t width, dilation;
  const T* bias;  // null: zeros
  std::int64_t bias_stride;
  const float* prepared;  // [width, channels]; null: taps
  std::int64_t prepared_stride;
  bool silu;
};

template <class T>
HWY_INLINE void gather(const T* from, std::int64_t stride, std::size_t n, T* to) {
  for (std::size_t i = 0; i < n; ++i) to[i] = from[static_cast<std::int64_t>(i) * stride];
}

template <class D, class T>
HWY_INLINE hn::Vec<D> load_strided(D d, const T* from, std::int64_t stride, std::size_t n) {
  T lane[hn::MaxLanes(d)] = {};
  gather(from, stride, n, lane);
  return load_float(d, lane);
}

template <class D, class T>
HWY_INLINE hn::Vec<D> load_bias(D d, const Weights<T>& weights, std::int64_t channel,
                                std::size_t n) {
  if (weights.bias == nullptr) return hn::Zero(d);
  const T* from = weights.bias + channel * weights.bias_stride;
  return weights.bias_stride == 1 ? load_float_n(d, from, n)
                                  : load_strided(d, from, weights.bias_stride, n);
}

// The taps of n channels: the last of the four results is the last tap, unused ones are left as they
// are.
template <int Width, class D, class T, class V = hn::Vec<D>>
HWY_INLINE void load_taps(D d, const Weights<T>& weights, std::int64_t channel, std::size_t n,
                          V& w0, V& w1, V& w2, V& w3) {
  if (weights.prepared != nullptr) {
    const float* last = weights.prepared + (Width - 1) * weights.prepared_stride + channel;
    if constexpr (Width >= 4) w0 = load_float_n(d, last - 3 * weights.prepared_stride, n);
    if constexpr (Width >= 3) w1 = load_float_n(d, last - 2 * weights.prepared_stride, n);
    w2 = load_float_n(d, last - weights.prepared_stride, n);
    w3 = load_float_n(d, last, n);
    return;
  }
  const Bits<D, T> d_bits;
  auto a = hn::Zero(d_bits), b = a, c = a, e = a;
  load_columns<Width>(d, weights.taps + channel * Width, n, a, b, c, e);
  w0 = widen(d, a, T{});
  w1 = widen(d, b, T{});
  w2 = widen(d, c, T{});
  w3 = widen(d, e, T{});
}

// Outputs of `count` tokens, `dilation` apart, from `token` on, for n channels from `channel` on.
template <int Width, bool kSilu, class T>
HWY_INLINE void slide(const Samples<T>& x, const Weights<T>& weights, std::int64_t token,
                      std::int64_t count, std::int64_t channel, std::size_t n, T* output,
                      std::int64_t output_step) {
  constexpr int kHistory = Width - 1;
  const hn::ScalableTag<float> d;
  const Bits<decltype(d), T> d_bits;
  auto a = hn::Zero(d_bits), b = a, c = a, e = a;
  auto w0 = hn::Zero(d), w1 = w0, w2 = w0, w3 = w0;
  load_taps<Width>(d, weights, channel, n, w0, w1, w2, w3);
  const auto bias = load_bias(d, weights, channel, n);
  auto x0 = hn::Zero(d), x1 = x0, x2 = x0;
  const std::int64_t step = weights.dilation * x.row_stride;
  const T* row = x.row(token) + channel;
  if (token >= x.history) {
    if constexpr (kHistory >= 3) x0 = load_float_n(d, row - 3 * step, n);
    if constexpr (kHistory >= 2) x1 = load_float_n(d, row - 2 * step, n);
    x2 = load_float_n(d, row - step, n);
  } else if (x.state != nullptr) {  // dilation 1, token 0
    load_columns<kHistory>(d, x.state + channel * kHistory, n, a, b, c, e);
    x0 = widen(d, b, T{});
    x1 = widen(d, c, T{});
    x2 = widen(d, e, T{});
  }
  for (std::int64_t i = 0; i < count; ++i, row += step, output += output_step) {
    const auto now = load_float_n(d, row, n);
    auto sum = bias;
    if constexpr (Width >= 4) sum = hn::MulAdd(w0, x0, sum);
    if constexpr (Width >= 3) sum = hn::MulAdd(w1, x1, sum);
    sum = hn::MulAdd(w2, x2, sum);
    sum = hn::MulAdd(w3, now, sum);
    if constexpr (kSilu) sum = silu(d, sum);
    store_float_n(sum, d, output, n);
    x0 = x1;
    x1 = x2;
    x2 = now;
  }
}

template <int Width, bool kSilu, class T>
void slide_channels(const Samples<T>& x, const Weights<T>& weights, std::int64_t token,
                    std::int64_t count, std::int64_t begin, std::int64_t end, T* output,
                    std::int64_t output_step) noexcept {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto step = static_cast<std::int64_t>(lanes);
  std::int64_t channel = begin;
  for (; channel + step <= end; channel += step) {
    slide<Width, kSilu>(x, weights, token, count, channel, lanes, output + channel, output_step);
  }
  if (channel < end) {
    slide<Width, kSilu>(x, weights, token, count, channel, static_cast<std::size_t>(end - channel),
                        output + channel, output_step);
  }
}

// Any width and dilation: a tile of sums lies in memory while the taps pass by, in order.
template <class T>
void sum_taps(const Samples<T>& x, const Weights<T>& weights, std::int64_t token,
              std::int64_t count, std::int64_t channel, std::size_t n, T* output,
              std::int64_t output_stride) noexcept {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN float sums[kTile * hn::MaxLanes(d)];
  const auto bias = load_bias(d, weights, channel, n);
  const auto sum_of = [&](std::int64_t i) { return sums + static_cast<std::size_t>(i) * lanes; };
  for (std::int64_t i = 0; i < count; ++i) hn::Store(bias, d, sum_of(i));
  for (std::int64_t tap = 0; tap < weights.width; ++tap) {
    const auto weight =
        weights.prepared != nullptr
            ? load_float_n(d, weights.prepared + tap * weights.prepared_stride + channel, n)
            : load_strided(d, weights.taps + channel * weights.row_stride + tap, weights.row_stride,
                           n);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = token + i - x.history + tap * weights.dilation;
      auto sample = hn::Zero(d);
      if (at >= 0) {
        sample = load_float_n(d, x.row(at) + channel, n);
      } else if (x.state != nullptr) {
        sample = load_strided(d, x.state + channel * x.history + x.history + at, x.history, n);
      }
      hn::Store(hn::MulAdd(weight, sample, hn::Load(d, sum_of(i))), d, sum_of(i));
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    auto sum = hn::Load(d, sum_of(i));
    if (weights.silu) sum = silu(d, sum);
    store_float_n(sum, d, output + i * output_stride, n);
  }
}

template <class T>
void sum_taps_channels(const Samples<T>& x, const Weights<T>& weights, std::int64_t begin_token,
                       std::int64_t end_token, std::int64_t begin, std::int64_t end, T* output,
                       std::int64_t output_stride) noexcept {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  for (std::int64_t token = begin_token; token < end_token; token += kTile) {
    const std::int64_t count = std::min(kTile, end_token - token);
    for (std::int64_t channel = begin; channel < end; channel += lanes) {
      const auto n = static_cast<std::size_t>(std::min(lanes, end - channel));
      sum_taps(x, weights, token, count, channel, n, output + token * output_stride + channel,
               output_stride);
    }
  }
}

template <int Width, bool kSilu, class T>
void outputs_of_width(const Samples<T>& x, const Weights<T>& weights, std::int64_t begin_token,
                      std::int64_t end_token, std::int64_t begin, std::int64_t end, T* output,
                      std::int64_t output_stride) noexcept {
  const std::int64_t dilation = weights.dilation;
  std::int64_t first = begin_token;
  if (dilation > 1 && first < x.history) {  // windows that reach into the state with a stride
    first = std::min(x.history, end_token);
    sum_taps_channels(x, weights, begin_token, first, begin, end, output, output_stride);
  }
  for (; first < end_token; first += kTile * dilation) {
    for (std::int64_t token = first; token < std::min(first + dilation, end_token); ++token) {
      const std::int64_t left = (end_token - token + dilation - 1) / dilation;
      slide_channels<Width, kSilu>(x, weights, token, std::min(kTile, left), begin, end,
                                   output + token * output_stride, output_stride * dilation);
    }
  }
}

template <class T>
void outputs(const Samples<T>& x, const Weights<T>& weights, std::int64_t begin_token,
             std::int64_t end_token, std::int64_t begin, std::int64_t end, T* output,
             std::int64_t output_stride) noexcept {
  const auto of_width = [&]<int Width>() {
    const auto run =
        weights.silu ? outputs_of_width<Width, true, T> : outputs_of_width<Width, false, T>;
    run(x, weights, begin_token, end_token, begin, end, output, output_stride);
  };
  const bool dense = weights.row_stride == weights.width || weights.prepared != nullptr;
  switch (dense ? weights.width : 0) {
    case 2: of_width.template operator()<2>(); break;
    case 3: of_width.template operator()<3>(); break;
    case 4: of_width.template operator()<4>(); break;
    default:
      sum_taps_channels(x, weights, begin_token, end_token, begin, end, output, output_stride);
  }
}

// The last `history` samples; `to` may be x.state.
template <int History, class T>
void carry_columns(const Samples<T>& x, std::int64_t begin, std::int64_t end, T* to) noexcept {
  const hn::ScalableTag<float> d;
  const Bits<decltype(d), T> d_bits;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t channel = begin; channel < end; channel += lanes) {
    const auto n = static_cast<std::size_t>(std::min(lanes, end - channel));
    auto unused = hn::Zero(d_bits), s0 = unused, s1 = unused, s2 = unused;
    if (x.length < History && x.state != nullptr) {
      load_columns<History>(d, x.state + channel * History, n, unused, s0, s1, s2);
    }
    const std::int64_t shift = std::min<std::int64_t>(x.length, History);
    for (std::int64_t i = 0; i < shift; ++i) {
      s0 = s1;
      s1 = s2;
      s2 = load_bits(d, x.row(x.length - shift + i) + channel, n);
    }
    store_columns<History>(d, unused, s0, s1, s2, to + channel * History, n);
  }
}

template <class T>
void carry(const Samples<T>& x, std::int64_t begin, std::int64_t end, T* to) noexcept {
  switch (x.history) {
    case 1: return carry_columns<1>(x, begin, end, to);
    case 2: return carry_columns<2>(x, begin, end, to);
    case 3: return carry_columns<3>(x, begin, end, to);
    default: break;
  }
  const std::int64_t kept = std::max<std::int64_t>(0, x.history - x.length);
  const auto kept_bytes = static_cast<std::size_t>(kept) * sizeof(T);
  for (std::int64_t channel = begin; channel < end; ++channel) {
    T* column = to + channel * x.history;
    if (x.state != nullptr) {
      std::memmove(column, x.state + channel * x.history + (x.history - kept), kept_bytes);
    } else {
      std::memset(column, 0, kept_bytes);
    }
    if (x.length == 0) continue;
    const T* newest = x.rows + (x.length - (x.history - kept)) * x.row_stride + channel;
    gather(newest, x.row_stride, static_cast<std::size_t>(x.history - kept), column + kept);
  }
}

template <class T>
void capture(const Samples<T>& x, std::int64_t count, std::int64_t capacity, std::int64_t channels,
             std::int64_t begin, std::int64_t end, T* to) noexcept {
  const auto bytes = static_cast<std::size_t>(end - begin) * sizeof(T);
  for (std::int64_t slot = 0; slot < capacity; ++slot) {
    T* row = to + slot * channels + begin;
    if (slot < count) {
      std::memcpy(row, x.row(slot) + begin, bytes);
    } else {
      std::memset(row, 0, bytes);
    }
  }
}

template <class T>
void run_unit(const VarlenCausalConvArgs<T>& args,
              const contract::VarlenCausalConvGeometry& geometry, const cpu::ConvUnit& unit,
              std::int64_t begin, std::int64_t end) noexcept {
  const std::int64_t b = unit.sequence, first = args.cu_seqlens(b);
  const std::int64_t slot_in = args.slots_in ? (*args.slots_in)(b) : b;
  const std::int64_t slot_out = args.slots_out ? (*args.slots_out)(b) : b;
  const bool skipped = slot_in < 0 || slot_out < 0;
  const bool fresh = args.fresh && (*args.fresh)(b) != 0;
  const Samples<T> x{
      args.input.row(first), args.input.row_stride(),
      skipped || fresh || geometry.history == 0 ? nullptr : args.initial_state.row(slot_in),
      geometry.history, args.cu_seqlens(b + 1) - first};
  T* output = args.output.row(first);
  if (skipped) {
    for (std::int64_t token = unit.begin; token < unit.end; ++token) {
      std::memset(output + token * args.output.row_stride() + begin, 0,
                  static_cast<std::size_t>(end - begin) * sizeof(T));
    }
  } else if (args.kernel_delta) {
    dynamic_outputs(args, first, x.state, first + unit.begin, first + unit.end, begin, end);
  } else {
    const Weights<T> weights{args.weight.data(),
                             args.weight.row_stride(),
                             geometry.width,
                             geometry.dilation,
                             args.bias ? args.bias->data() : nullptr,
                             args.bias ? args.bias->row_stride() : 0,
                             args.prepared_weight ? args.prepared_weight->data() : nullptr,
                             args.prepared_weight ? args.prepared_weight->row_stride() : 0,
                             args.activation == ConvActivation::kSilu};
    outputs(x, weights, unit.begin, unit.end, begin, end, output, args.output.row_stride());
  }
  if (unit.begin > 0) return;
  if (args.state_update) {
    const std::int64_t wanted = args.capture_count ? (*args.capture_count)(b) : 0;
    const std::int64_t captured = skipped ? 0 : std::min(wanted, x.length);
    capture(x, captured, geometry.capacity, geometry.channels, begin, end,
            args.state_update->row(b));
  }
  if (!skipped && geometry.history > 0) carry(x, begin, end, args.final_state.row(slot_out));
}

template <class T>
void run_task(const VarlenCausalConvArgs<T>& args,
              const contract::VarlenCausalConvGeometry& geometry, const cpu::ConvPlan& plan,
              std::int64_t task) noexcept {
  plan.for_each_unit(args.cu_seqlens, task, [&](const cpu::ConvUnit& unit) {
    run_unit(args, geometry, unit, plan.channel_begin(task), plan.channel_end(task));
  });
}

template <class T>
void replay(const ReplayConvStateArgs<T>& args, const contract::ReplayConvStateGeometry& geometry,
            std::int64_t b) noexcept {
  const Samples<T> x{args.state_update.row(b), geometry.channels, args.initial_state.row(b),
                     geometry.history, args.count(b)};
  carry(x, 0, geometry.channels, args.final_state.row(b));
}

void conv_task(const cpu::ConvArgs& args, const contract::VarlenCausalConvGeometry& geometry,
               const cpu::ConvPlan& plan, std::int64_t task) {
  std::visit([&](const auto* typed) { run_task(*typed, geometry, plan, task); }, args);
}

void replay_task(const cpu::ReplayArgs& args, const contract::ReplayConvStateGeometry& geometry,
                 std::int64_t sequence) {
  std::visit([&](const auto* typed) { replay(*typed, geometry, sequence); }, args);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaworks {

HWY_EXPORT(conv_task);
HWY_EXPORT(replay_task);

namespace cpu {

template <class T>
void varlen_causal_conv(const Cpu& device, const contract::VarlenCausalConvGeometry& geometry,
                        const VarlenCausalConvArgs<T>& args) noexcept {
  const ConvPlan plan(geometry);
  const ConvArgs any = &args;
  device.parallel_for(plan.tasks(), [&](std::int64_t task) {
    HWY_DYNAMIC_DISPATCH(conv_task)(any, geometry, plan, task);
  });
}

template <class T>
void replay_conv_state(const Cpu& device, const contract::ReplayConvStateGeometry& geometry,
                       const ReplayConvStateArgs<T>& args) noexcept {
  const ReplayArgs any = &args;
  device.parallel_for(geometry.sequences, [&](std::int64_t sequence) {
    HWY_DYNAMIC_DISPATCH(replay_task)(any, geometry, sequence);
  });
}

template void varlen_causal_conv(const Cpu&, const contract::VarlenCausalConvGeometry&,
                                 const VarlenCausalConvArgs<float>&) noexcept;
template void varlen_causal_conv(const Cpu&, const contract::VarlenCausalConvGeometry&,
                                 const VarlenCausalConvArgs<Float16>&) noexcept;
template void varlen_causal_conv(const Cpu&, const contract::VarlenCausalConvGeometry&,
                                 const VarlenCausalConvArgs<BFloat16>&) noexcept;
template void replay_conv_state(const Cpu&, const contract::ReplayConvStateGeometry&,
                                const ReplayConvStateArgs<float>&) noexcept;
template void replay_conv_state(const Cpu&, const contract::ReplayConvStateGeometry&,
                                const ReplayConvStateArgs<Float16>&) noexcept;
template void replay_conv_state(const Cpu&, const contract::ReplayConvStateGeometry&,
                                const ReplayConvStateArgs<BFloat16>&) noexcept;

}  // namespace cpu
}  // namespace deltaworks
#endif  // HWY_ONCE

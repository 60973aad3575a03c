// Channels first: the tokens of a channel lie across the lanes. Its first outputs, which reach into
// the state, come from a window in float32 that joins the two; the others from the input itself. Few
// tokens are transposed, a vector of channels at a time; one token is what varlen_causal_conv calls a row,
// with the same state: it does that work.
// Channels last: channels lie across the lanes, a row of the output at a time.
// Every output is the chain of fused multiply-adds of varlen_causal_conv, with the same silu.
#include "cpu/causal_conv_with_state.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/causal_conv_with_state.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <variant>

#include "cpu/causal_conv_with_state_short-inl.h"
#include "cpu/load-inl.h"
#include "cpu/varlen_causal_conv.hpp"

#ifndef DELTAWORKS_CPU_CAUSAL_CONV_WITH_STATE_PLAN_
#define DELTAWORKS_CPU_CAUSAL_CONV_WITH_STATE_PLAN_
namespace deltaworks::cpu {

using DenseConvArgs =
    std::variant<const CausalConvWithStateArgs<float>*, const CausalConvWithStateArgs<Float16>*,
                 const CausalConvWithStateArgs<BFloat16>*>;

// A task owns all tokens of a range of channels of one sequence: it reads their state before it
// writes it. No result depends on the cut.
struct DenseConvPlan {
  static constexpr std::int64_t kTaskElements = 1 << 16;  // about 30 us
  static constexpr std::int64_t kChannelStep = 64;        // whole vectors on every target

  std::int64_t sequences, channels, task_channels;

  DenseConvPlan(const contract::CausalConvWithStateGeometry& g, bool channels_last)
      : sequences(g.sequences), channels(g.channels) {
    const std::int64_t steps = kTaskElements / std::max<std::int64_t>(1, g.length) / kChannelStep;
    // Rows that lie apart should not be touched for a cache line each.
    task_channels = std::max<std::int64_t>(channels_last ? 4 : 1, steps) * kChannelStep;
    // Starting a thread for less would cost more.
    if (channels * g.length < 2 * kTaskElements)
      task_channels = std::max<std::int64_t>(1, channels);
  }
  std::int64_t per_sequence() const { return (channels + task_channels - 1) / task_channels; }
  std::int64_t tasks() const { return sequences * per_sequence(); }
};

}  // namespace deltaworks::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kMaxVectors = 16;  // of channels that pass together, channels last
constexpr std::int64_t kAhead = 4;        // rows

// One channel of a sequence.
template <class T>
struct Channel {
  const T* x;
  const T* state;    // null: zeros
  const T* weights;  // [width]
  float bias;
  std::int64_t width, dilation, history, length;
  float taps[kMaxTaps];
  // State and first samples of one that has at most kMaxHistory. Whole vectors are read from it: what
  // lies behind its samples reaches no output.
  float window[kMaxHistory + std::max(kMaxHistory, kMaxLanes) + kMaxLanes];

  float tap(std::int64_t j) const { return width <= kMaxTaps ? taps[j] : to_float(weights[j]); }
};

// Outputs of n tokens; `first` is the sample of their first tap. kWidth 0: any.
template <int kWidth, bool kSilu, class T>
HWY_INLINE void outputs_at(const Channel<T>& channel, const T* first, std::size_t n, T* to) {
  auto sum = hn::Set(kF, channel.bias);
  const std::int64_t width = kWidth ? kWidth : channel.width;
  for (std::int64_t j = 0; j < width; ++j) {
    const auto sample = load_float_n(kF, first + j * channel.dilation, n);
    sum = hn::MulAdd(hn::Set(kF, channel.tap(j)), sample, sum);
  }
  store_output<kSilu>(sum, to, n);
}

// The same, sample by sample across the border between state and input.
template <bool kSilu, class T>
HWY_INLINE void outputs_across(const Channel<T>& channel, std::int64_t token, std::size_t n,
                               T* to) {
  auto sum = hn::Set(kF, channel.bias);
  for (std::int64_t j = 0; j < channel.width; ++j) {
    T sample[kMaxLanes] = {};
    for (std::size_t i = 0; i < n; ++i) {
      const std::int64_t at =
          token + static_cast<std::int64_t>(i) - channel.history + j * channel.dilation;
      if (at >= 0) {
        sample[i] = channel.x[at];
      } else if (channel.state != nullptr) {
        sample[i] = channel.state[channel.history + at];
      }
    }
    sum = hn::MulAdd(hn::Set(kF, channel.tap(j)), load_float(kF, sample), sum);
  }
  store_output<kSilu>(sum, to, n);
}

// The outputs that reach into the state, and a vector at least; returns how many.
template <int kWidth, bool kSilu, class T>
HWY_INLINE std::int64_t head_outputs(Channel<T>& channel, T* output) {
  const std::int64_t step = lanes();
  const std::int64_t count = std::min(channel.length, std::max(channel.history, step));
  if (channel.history > kMaxHistory) {
    for (std::int64_t t = 0; t < count; t += step) {
      const auto n = static_cast<std::size_t>(std::min(step, count - t));
      outputs_across<kSilu>(channel, t, n, output + t);
    }
    return count;
  }
  if (channel.state != nullptr) {
    convert(channel.state, channel.window, static_cast<std::size_t>(channel.history));
  } else {
    std::fill_n(channel.window, channel.history, 0.0f);
  }
  convert(channel.x, channel.window + channel.history, static_cast<std::size_t>(count));
  for (std::int64_t t = 0; t < count; t += step) {
    auto sum = hn::Set(kF, channel.bias);
    const std::int64_t width = kWidth ? kWidth : channel.width;
    for (std::int64_t j = 0; j < width; ++j) {
      const auto sample = hn::LoadU(kF, channel.window + t + j * channel.dilation);
      sum = hn::MulAdd(hn::Set(kF, channel.tap(j)), sample, sum);
    }
    store_output<kSilu>(sum, output + t, static_cast<std::size_t>(std::min(step, count - t)));
  }
  return count;
}

template <int kWidth, bool kSilu, class T>
void channel_outputs(Channel<T>& channel, T* output) noexcept {
  const std::int64_t step = lanes();
  std::int64_t t = head_outputs<kWidth, kSilu>(channel, output);
  const auto from = [&](std::int64_t token, std::int64_t count) HWY_ATTR {
    outputs_at<kWidth, kSilu>(channel, channel.x + (token - channel.history),
                              static_cast<std::size_t>(count), output + token);
  };
  for (; t + step <= channel.length; t += step) from(t, step);
  if (t == channel.length) return;
  if (channel.length - step >= channel.history) {
    from(channel.length - step, step);  // again what is there already, with its bits
  } else {
    from(t, channel.length - t);
  }
}

// The last `history` samples; `to` may be channel.state. (Few: calls that copy them would cost more.)
template <class T>
HWY_INLINE void carry_channel(const Channel<T>& channel, T* to) {
  const std::int64_t kept = std::max<std::int64_t>(0, channel.history - channel.length);
  for (std::int64_t p = 0; p < kept; ++p) {
    to[p] = channel.state != nullptr ? channel.state[p + channel.length] : T{};
  }
  for (std::int64_t p = kept; p < channel.history; ++p) {
    to[p] = channel.x[p + channel.length - channel.history];
  }
}

// Weights and bias of a vector of channels, transposed once for all tokens.
struct Taps {
  HWY_ALIGN float weight[kMaxTaps * kMaxLanes];
  HWY_ALIGN float bias[kMaxLanes];
};

template <class T>
HWY_INLINE void load_tap(const CausalConvWithStateArgs<T>& args, std::int64_t channel,
                         std::size_t n, std::int64_t j, float* to) {
  for (std::size_t i = 0; i < n; ++i) {
    to[i] = to_float(args.weight.row(channel + static_cast<std::int64_t>(i))[j]);
  }
}

template <class T>
HWY_INLINE void load_taps(const CausalConvWithStateArgs<T>& args, const Geometry& g,
                          std::int64_t channel, std::size_t n, Taps& taps) {
  if (n < hn::Lanes(kF)) taps = {};
  for (std::int64_t j = 0; j < std::min(g.width, kMaxTaps); ++j)
    load_tap(args, channel, n, j, taps.weight + j * kMaxLanes);
  for (std::size_t i = 0; i < n; ++i) {
    const auto at = channel + static_cast<std::int64_t>(i);
    taps.bias[i] = args.bias ? to_float(*args.bias->row(at)) : 0;
  }
}

template <class T>
void run_channels_first(const CausalConvWithStateArgs<T>& args, const Geometry& g, std::int64_t b,
                        std::int64_t begin, std::int64_t end) noexcept {
  const bool is_silu = args.activation == ConvActivation::kSilu;
  const auto of_width = [&]<int kWidth>() {
    return is_silu ? channel_outputs<kWidth, true, T> : channel_outputs<kWidth, false, T>;
  };
  const auto run = g.width == 2   ? of_width.template operator()<2>()
                   : g.width == 3 ? of_width.template operator()<3>()
                   : g.width == 4 ? of_width.template operator()<4>()
                                  : of_width.template operator()<0>();
  if (g.length > 0 && g.length <= kShort && g.history <= kMaxHistory && g.width <= kMaxTaps) {
    const auto transpose = is_silu ? run_short<true, T> : run_short<false, T>;
    for (std::int64_t c = begin; c < end; c += lanes())
      transpose(args, g, b, c, static_cast<std::size_t>(std::min(lanes(), end - c)));
    return;
  }
  Channel<T> channel{};
  channel.width = g.width;
  channel.dilation = g.dilation;
  channel.history = g.history;
  channel.length = g.length;
  for (std::int64_t c = begin; c < end; ++c) {
    channel.x = args.input.row(b) + c * g.length;
    channel.state =
        args.past_state && g.history > 0 ? args.past_state->row(b) + c * g.history : nullptr;
    if (g.length > 0) {
      channel.weights = args.weight.row(c);
      for (std::int64_t j = 0; j < std::min(g.width, kMaxTaps); ++j)
        channel.taps[j] = to_float(channel.weights[j]);
      channel.bias = args.bias ? to_float(*args.bias->row(c)) : 0;
      run(channel, args.output.row(b) + c * g.length);
    }
    if (g.history > 0) carry_channel(channel, args.present_state.row(b) + c * g.history);
  }
}

// A stretch of channels of one sequence, rows of all channels apart.
template <class T>
struct Rows {
  const CausalConvWithStateArgs<T>& args;
  const Geometry& g;
  std::int64_t b;

  // The sample row at a position of the sequence; null: zeros.
  const T* at(std::int64_t position) const {
    if (position >= 0) return args.input.row(b) + position * g.channels;
    if (!args.past_state) return nullptr;
    return args.past_state->row(b) + (g.history + position) * g.channels;
  }
};

// Outputs of a vector of channels. Taps that are not kept (null) come from memory.
template <bool kSilu, class T>
HWY_INLINE void row_outputs(const Rows<T>& rows, const float* taps, const float* bias,
                            std::int64_t t, std::int64_t channel, std::size_t n) {
  const Geometry& g = rows.g;
  HWY_ALIGN float far[kMaxLanes] = {};
  auto sum = hn::Load(kF, bias);
  for (std::int64_t j = 0; j < g.width; ++j) {
    if (taps == nullptr) load_tap(rows.args, channel, n, j, far);
    const float* const weight = taps == nullptr ? far : taps + j * kMaxLanes;
    const T* const row = rows.at(t - g.history + j * g.dilation);
    const auto sample = row ? load_float_n(kF, row + channel, n) : hn::Zero(kF);
    sum = hn::MulAdd(hn::Load(kF, weight), sample, sum);
  }
  T* const output = rows.args.output.row(rows.b) + t * g.channels + channel;
  // Rows lie too far apart for the processor to guess the next.
  hwy::Prefetch(rows.args.input.row(rows.b) + (t + kAhead) * g.channels + channel);
  hwy::Prefetch(output + kAhead * g.channels);
  store_output<kSilu>(sum, output, n);
}

// Some vectors of channels, token by token: their rows lie far apart.
template <bool kSilu, class T>
void run_block(const Rows<T>& rows, std::int64_t begin, std::int64_t end) noexcept {
  const Geometry& g = rows.g;
  Taps taps[kMaxVectors];
  const std::int64_t vectors = (end - begin + lanes() - 1) / lanes();
  const auto channels_of = [&](std::int64_t vector) {
    return static_cast<std::size_t>(std::min(lanes(), end - begin - vector * lanes()));
  };
  for (std::int64_t vector = 0; vector < vectors; ++vector) {
    const std::int64_t channel = begin + vector * lanes();
    load_taps(rows.args, g, channel, channels_of(vector), taps[vector]);
  }
  for (std::int64_t t = 0; t < g.length; ++t) {
    for (std::int64_t vector = 0; vector < vectors; ++vector) {
      const Taps& kept = taps[vector];
      row_outputs<kSilu>(rows, g.width <= kMaxTaps ? kept.weight : nullptr, kept.bias, t,
                         begin + vector * lanes(), channels_of(vector));
    }
  }
}

template <class T>
void run_channels_last(const CausalConvWithStateArgs<T>& args, const Geometry& g, std::int64_t b,
                       std::int64_t begin, std::int64_t end) noexcept {
  const Rows<T> rows{args, g, b};
  const auto run =
      args.activation == ConvActivation::kSilu ? run_block<true, T> : run_block<false, T>;
  const std::int64_t step = kMaxVectors * lanes();
  for (std::int64_t channel = begin; channel < end; channel += step) {
    run(rows, channel, std::min(channel + step, end));
  }
  // In place each row comes from a later one, or from the input.
  const auto bytes = static_cast<std::size_t>(end - begin) * sizeof(T);
  for (std::int64_t p = 0; p < g.history; ++p) {
    T* const to = args.present_state.row(b) + p * g.channels + begin;
    const T* const from = rows.at(g.length - g.history + p);
    if (from == nullptr) {
      std::memset(to, 0, bytes);
    } else {
      std::memmove(to, from + begin, bytes);
    }
  }
}

void dense_conv_task(const cpu::DenseConvArgs& args, const Geometry& g,
                     const cpu::DenseConvPlan& plan, std::int64_t task) {
  const std::int64_t b = task / plan.per_sequence();
  const std::int64_t begin = task % plan.per_sequence() * plan.task_channels;
  const std::int64_t end = std::min(begin + plan.task_channels, plan.channels);
  std::visit(
      [&](const auto* typed) {
        if (typed->channels_last) {
          run_channels_last(*typed, g, b, begin, end);
        } else {
          run_channels_first(*typed, g, b, begin, end);
        }
      },
      args);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaworks {

HWY_EXPORT(dense_conv_task);

namespace cpu {

namespace {

// [channels, 1] is [1, channels], and the states agree.
template <class T>
void run_one_token(const Cpu& device, const contract::CausalConvWithStateGeometry& g,
                   const CausalConvWithStateArgs<T>& args) {
  constexpr std::int32_t kOffsets[] = {0, 1}, kFresh[] = {1};
  const contract::VarlenCausalConvGeometry row{.sequences = 1,
                                               .tokens = 1,
                                               .channels = g.channels,
                                               .width = g.width,
                                               .dilation = g.dilation,
                                               .history = g.history,
                                               .slots = 1};
  for (std::int64_t b = 0; b < g.sequences; ++b) {
    const std::array<std::int64_t, 3> states{1, g.channels, g.history};
    VarlenCausalConvArgs<T> call{.input = {args.input.row(b), {1, g.channels}},
                                 .weight = args.weight,
                                 .cu_seqlens = {kOffsets, {2}},
                                 .initial_state = {},
                                 .output = {args.output.row(b), {1, g.channels}},
                                 .final_state = {args.present_state.row(b), states},
                                 .bias = args.bias,
                                 .activation = args.activation,
                                 .dilation = args.dilation};
    if (args.past_state) {
      call.initial_state = {args.past_state->row(b), states};
    } else {
      call.initial_state = call.final_state;
      call.fresh = View<const std::int32_t, 1>{kFresh, {1}};
    }
    varlen_causal_conv(device, row, call);
  }
}

}  // namespace

template <class T>
void causal_conv_with_state(const Cpu& device, const contract::CausalConvWithStateGeometry& g,
                            const CausalConvWithStateArgs<T>& args) noexcept {
  if (g.length == 1 && !args.channels_last) return run_one_token(device, g, args);
  const DenseConvPlan plan(g, args.channels_last);
  const DenseConvArgs any = &args;
  device.parallel_for(plan.tasks(), [&](std::int64_t task) {
    HWY_DYNAMIC_DISPATCH(dense_conv_task)(any, g, plan, task);
  });
}

template void causal_conv_with_state(const Cpu&, const contract::CausalConvWithStateGeometry&,
                                     const CausalConvWithStateArgs<float>&) noexcept;
template void causal_conv_with_state(const Cpu&, const contract::CausalConvWithStateGeometry&,
                                     const CausalConvWithStateArgs<Float16>&) noexcept;
template void causal_conv_with_state(const Cpu&, const contract::CausalConvWithStateGeometry&,
                                     const CausalConvWithStateArgs<BFloat16>&) noexcept;

}  // namespace cpu
}  // namespace deltaworks
#endif  // HWY_ONCE

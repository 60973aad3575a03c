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

#include "cpu/load-inl.h"
#include "cpu/math-inl.h"
#include "cpu/varlen_causal_conv_dynamic-inl.h"
#include "cpu/varlen_causal_conv_slide-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kTileOfSums = 8;  // tokens whose sums lie in memory

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

// Any width and dilation: a tile of sums lies in memory while the taps pass by, in order.
template <class T>
void sum_taps(const Samples<T>& x, const Weights<T>& weights, std::int64_t token,
              std::int64_t count, std::int64_t channel, std::size_t n, T* output,
              std::int64_t output_stride) noexcept {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN float sums[kTileOfSums * hn::MaxLanes(d)];
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
  for (std::int64_t token = begin_token; token < end_token; token += kTileOfSums) {
    const std::int64_t count = std::min(kTileOfSums, end_token - token);
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
                      std::int64_t output_stride, T* final_state) noexcept {
  const std::int64_t dilation = weights.dilation;
  const bool has_state = dilation == 1 && begin_token == 0;
  std::int64_t first = begin_token;
  if (dilation > 1 && first < x.history) {  // windows that reach into the state with a stride
    first = std::min(x.history, end_token);
    sum_taps_channels(x, weights, begin_token, first, begin, end, output, output_stride);
  }
  const std::int64_t step = end_token - begin_token <= kShortTokens ? kShortChunk : kChunk;
  Chunk<T> chunk;
  for (chunk.begin = begin; chunk.begin < end; chunk.begin += step) {
    chunk.size = std::min(step, end - chunk.begin);
    load_taps<Width>(weights, chunk);
    if (has_state) load_state<Width - 1>(x, chunk.begin, chunk.size, chunk.state);
    for (std::int64_t token = first; token < std::min(first + dilation, end_token); ++token) {
      const std::int64_t count = (end_token - token + dilation - 1) / dilation;
      slide_tokens<Width, kSilu>(chunk, x, dilation, token, count, output, output_stride);
    }
    if (has_state && final_state != nullptr) {
      carry_chunk<Width - 1>(x, chunk.state, chunk.begin, chunk.size, final_state);
    }
  }
}

// Writes the final state, unless that is null, too, and returns true where it can do that on the way.
template <class T>
bool outputs(const Samples<T>& x, const Weights<T>& weights, std::int64_t begin_token,
             std::int64_t end_token, std::int64_t begin, std::int64_t end, T* output,
             std::int64_t output_stride, T* final_state) noexcept {
  const auto of_width = [&]<int Width>() {
    const auto run =
        weights.silu ? outputs_of_width<Width, true, T> : outputs_of_width<Width, false, T>;
    run(x, weights, begin_token, end_token, begin, end, output, output_stride, final_state);
    return weights.dilation == 1;
  };
  const bool dense = weights.row_stride == weights.width || weights.prepared != nullptr;
  switch (dense ? weights.width : 0) {
    case 2: return of_width.template operator()<2>();
    case 3: return of_width.template operator()<3>();
    case 4: return of_width.template operator()<4>();
    default:
      sum_taps_channels(x, weights, begin_token, end_token, begin, end, output, output_stride);
      return false;
  }
}

// The last `history` samples; `to` may be x.state.
template <int History, class T>
void carry_columns(const Samples<T>& x, std::int64_t begin, std::int64_t end, T* to) noexcept {
  HWY_ALIGN T state[History * kChunk];
  for (std::int64_t channel = begin; channel < end; channel += kChunk) {
    const std::int64_t size = std::min(kChunk, end - channel);
    if (x.length < History) load_state<History>(x, channel, size, state);
    carry_chunk<History>(x, state, channel, size, to);
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
  T* final_state = nullptr;  // null: not this unit's work, or done
  if (unit.begin == 0 && !skipped && geometry.history > 0) {
    final_state = args.final_state.row(slot_out);
  }
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
    const std::int64_t stride = args.output.row_stride();
    if (outputs(x, weights, unit.begin, unit.end, begin, end, output, stride, final_state)) {
      final_state = nullptr;
    }
  }
  if (unit.begin > 0) return;
  if (args.state_update) {
    const std::int64_t wanted = args.capture_count ? (*args.capture_count)(b) : 0;
    const std::int64_t captured = skipped ? 0 : std::min(wanted, x.length);
    capture(x, captured, geometry.capacity, geometry.channels, begin, end,
            args.state_update->row(b));
  }
  if (final_state != nullptr) carry(x, begin, end, final_state);
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

// A thread owns kVector consecutive channels. A block is a head or a body: a head has the first
// `history` tokens of some sequences, all of their states and captures; a body has packed rows and
// computes those with `history` tokens of their own sequence before them. A body thus reads no state,
// and a state that is updated in place is read and written by the same thread.
// Loops are unrolled as far as registers need it and no further: code that a block runs once waits for
// its instructions longer than for its operands (16 rows unrolled took 2.2 times the floor).
#include "cuda/varlen_causal_conv.hpp"

#include <algorithm>
#include <cstdint>

#include "cuda/conv_state.cuh"
#include "cuda/dynamic_tap.cuh"
#include "cuda/launch.hpp"
#include "cuda/math.cuh"
#include "cuda/pack.cuh"
#include "cuda/sequences.cuh"
#include "cuda/visit.hpp"

namespace deltaworks::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kBlocks = 4;  // of a multiprocessor: 128 registers for each thread
constexpr int kManyBlocks =
    2048;  // from here on bodies take 32 rows, which reads 3 in 35 twice, not in 19
constexpr int kHeadBlocks = 512;  // up to here each sequence has blocks of its own
constexpr unsigned kWarp = 0xffffffffu;

// What the kernel reads; operands that are left out have no data.
template <class T>
struct ConvCall {
  View<const T, 2> input;
  View<const T, 3> weight;
  Ints cu_seqlens;
  View<const T, 3> initial_state;
  View<T, 2> output;
  View<T, 3> final_state;
  View<const T, 1> bias;
  Pool pool;
  Ints capture_count;
  View<T, 3> state_update;
  View<const T, 3> kernel_delta;
  View<const T, 2> previous_mask;
  std::int32_t* faults;
  std::int64_t tokens, sequences, channels, history, dilation, group_size, delta_offset;
  int channel_blocks;
  int rows;  // of a body, at most 32
  int sequences_per_head;
  unsigned heads;  // of all sequences; they come before the bodies, since they wait longest
  bool is_silu;
};

// For 16-bit results two operations of the special function unit, within 2^-20: the exact quotient of
// src/cuda/math.cuh would take longer than the memory. The denominator is infinite below −88.7, and
// its reciprocal a zero.
template <class T>
__device__ float silu_of(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return silu(x);
  } else {
    float power, reciprocal;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -0x1.715476p0f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1 + power));
    return x * reciprocal;
  }
}

// Fixed weights. Widths up to 4 have their samples in registers.
template <class T, int kVector_, int kWidth_>
struct FixedTaps {
  static constexpr int kVector = kVector_, kWidth = kWidth_;
  float weight[kWidth][kVector], bias[kVector];
  bool is_silu;

  __device__ FixedTaps(const ConvCall<T>& call, std::int64_t channel) : is_silu(call.is_silu) {
    const auto packed = load<kVector * kWidth, kVector>(call.weight.row(channel));
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) weight[j][v] = widen(packed.at[v * kWidth + j]);
      bias[v] = call.bias.data() != nullptr ? widen(call.bias(channel + v)) : 0;
    }
  }

  // The output of packed row `row` from the samples of kWidth rows, its own the last. The i-th sample
  // lies in ring[i % kWidth]; loops are unrolled, so that registers are named and never moved.
  __device__ Pack<T, kVector> operator()(std::int64_t, const float (&ring)[kWidth][kVector],
                                         int first) const {
    float sums[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      sums[v] = bias[v];
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        sums[v] = fmaf(weight[j][v], ring[(first + j) % kWidth][v], sums[v]);
      }
    }
    if (is_silu) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) sums[v] = silu_of<T>(sums[v]);
    }
    return narrow<T>(sums);
  }
};

// The dynamic mode: every step is rounded to T. The channels of a thread share a group.
template <class T, int kVector_>
struct DynamicTaps {
  static constexpr int kVector = kVector_, kWidth = 2;
  View<const T, 3> kernel_delta;
  View<const T, 2> previous_mask;
  std::int64_t offset, groups;
  float before[kVector], now[kVector];

  __device__ DynamicTaps(const ConvCall<T>& call, std::int64_t channel)
      : kernel_delta(call.kernel_delta),
        previous_mask(call.previous_mask),
        offset(call.delta_offset * kernel_delta.extent(2) +
               static_cast<std::uint32_t>(channel) / static_cast<std::uint32_t>(call.group_size)),
        groups(kernel_delta.extent(2)) {
    const auto packed = load<kVector * kWidth, kVector>(call.weight.row(channel));
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      before[v] = widen(packed.at[v * kWidth]);
      now[v] = widen(packed.at[v * kWidth + 1]);
    }
  }

  __device__ Pack<T, kVector> operator()(std::int64_t row, const float (&ring)[kWidth][kVector],
                                         int first) const {
    const T* const delta = kernel_delta.row(row) + offset;
    const float delta_now = widen(delta[0]), delta_before = widen(delta[groups]);
    const float mask = widen(*previous_mask.row(row));
    float sums[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      const float previous = tap_product<true, T>(before[v], delta_before, ring[first % kWidth][v]);
      const float own = tap_product<true, T>(now[v], delta_now, ring[(first + 1) % kWidth][v]);
      sums[v] = own + rounded<T>(previous * mask);
    }
    return narrow<T>(sums);
  }
};

// Rows of a body, a bit each.
struct BodyRows {
  std::uint32_t computed, zero;  // zero: the sequence is skipped for want of a slot
};

// For a whole warp.
template <class T>
__device__ BodyRows body_rows(const ConvCall<T>& call, std::int64_t first) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = first + lane;
  bool is_computed = false, is_zero = false;
  if (lane < call.rows && row < call.tokens) {
    const std::int64_t sequence = sequence_of(call.cu_seqlens, row);
    if (sequence < call.sequences) {
      const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
      const std::int64_t token = row - span.begin;
      const bool is_own = token >= call.history && token < span.length;
      is_zero = is_own && slot_of(call.pool, sequence).is_skipped;
      is_computed = is_own && !is_zero;
    }
  }
  return {__ballot_sync(kWarp, is_computed), __ballot_sync(kWarp, is_zero)};
}

template <class T>
__device__ std::int64_t captured_rows(const ConvCall<T>& call, std::int64_t sequence,
                                      const Span& span) {
  if (call.state_update.data() == nullptr) return 0;
  const std::int64_t most = min(call.state_update.extent(1), span.length);
  return clamp(call.capture_count(sequence), 0, most);
}

template <int kVector, class T>
__device__ void capture(const ConvCall<T>& call, std::int64_t sequence, std::int64_t channel,
                        const Span& span, std::int64_t rows) {
  if (call.state_update.data() == nullptr) return;
  T* to = call.state_update.row(sequence) + channel;
#pragma unroll 1
  for (std::int64_t row = 0; row < call.state_update.extent(1); ++row, to += call.channels) {
    Pack<T, kVector> sample{};
    if (row < rows) sample = load<kVector>(call.input.row(span.begin + row) + channel);
    store(sample, to);
  }
}

template <class T>
__device__ void check_sequence(const ConvCall<T>& call, std::int64_t sequence) {
  check_span(call.cu_seqlens, sequence, call.tokens, call.faults);
  check_slot(call.pool, sequence, call.faults);
}

template <class Taps, class T>
__device__ void run_head(const ConvCall<T>& call, const Taps& taps, std::int64_t sequence,
                         std::int64_t channel) {
  constexpr int kVector = Taps::kVector, kWidth = Taps::kWidth, kHistory = kWidth - 1;
  // A step of one token for each sequence: its row is known before its offset has come.
  Pack<T, kVector> first{};
  if (call.tokens == call.sequences) first = load<kVector>(call.input.row(sequence) + channel);
  const Slot slot = slot_of(call.pool, sequence);
  ConvState<T, kVector, kHistory> old{};
  if (!slot.is_skipped && !slot.is_fresh) {
    old = load<kVector * kHistory, kVector>(call.initial_state.row(slot.in) + channel * kHistory);
  }
  const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
  if (channel == 0) check_sequence(call, sequence);
  if (slot.is_skipped) {
    for (int i = 0; i < kHistory && i < span.length; ++i) {
      store(Pack<T, kVector>{}, call.output.row(span.begin + i) + channel);
    }
    capture<kVector>(call, sequence, channel, span, 0);
    return;
  }
  const bool is_known = call.tokens == call.sequences && span.begin == sequence;
  const auto sample = [&](std::int64_t token) {
    return token == 0 && is_known ? first
                                  : load<kVector>(call.input.row(span.begin + token) + channel);
  };
  float ring[kWidth][kVector];
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) ring[i][v] = widen(old.at[v * kHistory + i]);
  }
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
    if (i >= span.length) break;
    widen(sample(i), ring[(kHistory + i) % kWidth]);
    store(taps(span.begin + i, ring, i), call.output.row(span.begin + i) + channel);
  }
  store<kVector>(shifted<kVector, kHistory>(old, span.length, sample),
                 call.final_state.row(slot.out) + channel * kHistory);
  capture<kVector>(call, sequence, channel, span, captured_rows(call, sequence, span));
}

template <class Taps, class T>
__device__ void run_body(const ConvCall<T>& call, std::int64_t first, std::int64_t channel,
                         const BodyRows& rows) {
  constexpr int kVector = Taps::kVector, kWidth = Taps::kWidth, kHistory = kWidth - 1;
  constexpr int kGroup =
      kWidth == 3 ? 3 : 4;  // a multiple of kWidth: places in the ring are constants
  const std::int64_t in_stride = call.input.row_stride(), out_stride = call.output.row_stride();
  const T* from = call.input.row(first) + channel;
  T* to = call.output.row(first) + channel;
  const int limit =
      static_cast<int>(min(static_cast<std::int64_t>(call.rows), call.tokens - first));
  const auto sample = [&](int row) {
    return row < limit ? load<kVector>(from + row * in_stride) : Pack<T, kVector>{};
  };
  Pack<T, kVector> past[kWidth], next[kGroup];
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
    past[i] = first > 0 ? load<kVector>(from + (i - kHistory) * in_stride) : Pack<T, kVector>{};
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) next[i] = sample(i);
  const Taps taps(call, channel);
  float ring[kWidth][kVector];
#pragma unroll
  for (int i = 0; i < kHistory; ++i) widen(past[i], ring[i]);
#pragma unroll 1
  for (int group = 0; group < limit; group += kGroup) {
    Pack<T, kVector> samples[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      samples[i] = next[i];
      next[i] = sample(group + kGroup + i);
    }
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int row = group + i;
      widen(samples[i], ring[(kHistory + i) % kWidth]);
      // Computed for every row, so that nothing but the store hangs on the mask.
      const auto result = taps(min(first + row, call.tokens - 1), ring, i);
      if ((rows.computed >> row & 1) != 0) store(result, to + row * out_stride);
    }
  }
  for (std::uint32_t left = rows.zero; left != 0; left &= left - 1) {
    store(Pack<T, kVector>{}, to + (__ffs(left) - 1) * out_stride);
  }
}

template <class Taps, class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    conv_kernel(const __grid_constant__ ConvCall<T> call) {
  const unsigned unit = blockIdx.x / static_cast<unsigned>(call.channel_blocks);
  const unsigned part = blockIdx.x % static_cast<unsigned>(call.channel_blocks);
  const std::int64_t channel =
      (static_cast<std::int64_t>(part) * kThreads + threadIdx.x) * Taps::kVector;
  if (unit < call.heads) {
    if (channel >= call.channels) return;
    const Taps taps(call, channel);
    const std::int64_t begin = static_cast<std::int64_t>(unit) * call.sequences_per_head;
    const std::int64_t end = min(begin + call.sequences_per_head, call.sequences);
#pragma unroll 1
    for (std::int64_t sequence = begin; sequence < end; ++sequence) {
      run_head(call, taps, sequence, channel);
    }
    return;
  }
  const std::int64_t first = static_cast<std::int64_t>(unit - call.heads) * call.rows;
  const BodyRows rows = body_rows(call, first);
  if ((rows.computed | rows.zero) == 0 || channel >= call.channels) return;
  run_body<Taps>(call, first, channel, rows);
}

// Any width and dilation, a channel for each thread; samples come from memory.
template <class T>
struct MemoryTaps {
  const ConvCall<T>& call;
  std::int64_t channel;

  // `sample(token)` is the one of a token of the sequence, or of its past.
  template <class Sample>
  __device__ T operator()(std::int64_t token, const Sample& sample) const {
    const T* const weight = call.weight.row(channel);
    float sum = call.bias.data() != nullptr ? widen(call.bias(channel)) : 0;
    for (std::int64_t j = 0; j < call.weight.extent(2); ++j) {
      const float x = widen(sample(token - call.history + j * call.dilation));
      sum = fmaf(widen(weight[j]), x, sum);
    }
    return narrow<T>(call.is_silu ? silu_of<T>(sum) : sum);
  }
};

template <class T>
__device__ void run_any_head(const ConvCall<T>& call, std::int64_t sequence, std::int64_t channel) {
  const Slot slot = slot_of(call.pool, sequence);
  const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
  if (channel == 0) check_sequence(call, sequence);
  const MemoryTaps<T> taps{call, channel};
  const T* const old = slot.is_skipped || slot.is_fresh
                           ? nullptr
                           : call.initial_state.row(slot.in) + channel * call.history;
  const auto sample = [&](std::int64_t token) {
    if (token >= 0) return call.input.row(span.begin + token)[channel];
    return old != nullptr ? old[call.history + token] : T{};
  };
  for (std::int64_t token = 0; token < min(call.history, span.length); ++token) {
    call.output.row(span.begin + token)[channel] = slot.is_skipped ? T{} : taps(token, sample);
  }
  if (!slot.is_skipped) {
    T* const to = call.final_state.row(slot.out) + channel * call.history;
    shift(old, to, call.history, span.length, sample);
  }
  capture<1>(call, sequence, channel, span,
             slot.is_skipped ? 0 : captured_rows(call, sequence, span));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    conv_any_kernel(const __grid_constant__ ConvCall<T> call) {
  const unsigned unit = blockIdx.x / static_cast<unsigned>(call.channel_blocks);
  const unsigned part = blockIdx.x % static_cast<unsigned>(call.channel_blocks);
  const std::int64_t channel = static_cast<std::int64_t>(part) * kThreads + threadIdx.x;
  if (unit < call.heads) {
    const std::int64_t begin = static_cast<std::int64_t>(unit) * call.sequences_per_head;
    const std::int64_t end = min(begin + call.sequences_per_head, call.sequences);
    for (std::int64_t sequence = begin; sequence < end && channel < call.channels; ++sequence) {
      run_any_head(call, sequence, channel);
    }
    return;
  }
  const std::int64_t first = static_cast<std::int64_t>(unit - call.heads) * call.rows;
  const BodyRows rows = body_rows(call, first);
  if (channel >= call.channels) return;
  const MemoryTaps<T> taps{call, channel};
  const auto sample = [&](std::int64_t row) { return call.input.row(row)[channel]; };
  for (std::uint32_t left = rows.computed; left != 0; left &= left - 1) {
    const std::int64_t row = first + __ffs(left) - 1;
    call.output.row(row)[channel] = taps(row, sample);
  }
  for (std::uint32_t left = rows.zero; left != 0; left &= left - 1) {
    call.output.row(first + __ffs(left) - 1)[channel] = T{};
  }
}

template <class T>
void launch_conv(const Cuda& device, ConvCall<T> call, int vector,
                 void (*kernel)(const ConvCall<T>)) {
  const std::int64_t channel_blocks = ceil_div(call.channels, kThreads * vector);
  const std::int64_t per_head =
      std::clamp<std::int64_t>(call.sequences * channel_blocks / kHeadBlocks, 1, 8);
  const bool is_many = ceil_div(call.tokens, 16) * channel_blocks >= kManyBlocks;
  call.channel_blocks = static_cast<int>(channel_blocks);
  call.rows = is_many ? 32 : 16;
  call.sequences_per_head = static_cast<int>(per_head);
  call.heads = static_cast<unsigned>(ceil_div(call.sequences, per_head));
  const std::int64_t units = call.heads + ceil_div(call.tokens, call.rows);
  launch(device, units * channel_blocks, kThreads, kernel, call);
}

template <class T, int kVector>
void launch_fixed(const Cuda& device, const ConvCall<T>& call) {
  const bool is_known = visit_constant<1, 2, 3, 4>(call.weight.extent(2), [&]<int kWidth>() {
    launch_conv(device, call, kVector, conv_kernel<FixedTaps<T, kVector, kWidth>, T>);
  });
  if (!is_known) launch_conv(device, call, 1, conv_any_kernel<T>);
}

// Rows of every operand start where wide loads may.
template <class T>
bool takes_wide_loads(const ConvCall<T>& call) {
  constexpr std::int64_t kVector = kLoadBytes / sizeof(T);
  return call.channels % kVector == 0 && is_aligned(call.input) && is_aligned(call.output) &&
         is_aligned(call.initial_state) && is_aligned(call.final_state) &&
         is_aligned(call.state_update) && is_aligned(call.weight) && call.weight.is_dense() &&
         (call.kernel_delta.data() == nullptr || call.group_size % kVector == 0);
}

}  // namespace

template <class T>
void varlen_causal_conv(const Cuda& device, const contract::VarlenCausalConvGeometry& geometry,
                        const VarlenCausalConvArgs<T>& args) {
  if (geometry.channels == 0) return;
  const ConvCall<T> call{
      .input = args.input,
      .weight = args.weight,
      .cu_seqlens = args.cu_seqlens,
      .initial_state = args.initial_state,
      .output = args.output,
      .final_state = args.final_state,
      .bias = or_null(args.bias),
      .pool = {or_null(args.slots_in), or_null(args.slots_out), or_null(args.fresh),
               geometry.slots},
      .capture_count = or_null(args.capture_count),
      .state_update = or_null(args.state_update),
      .kernel_delta = or_null(args.kernel_delta),
      .previous_mask = or_null(args.previous_mask),
      .faults = device.faults,
      .tokens = geometry.tokens,
      .sequences = geometry.sequences,
      .channels = geometry.channels,
      .history = geometry.history,
      .dilation = geometry.dilation,
      .group_size = args.group_size,
      .delta_offset = args.delta_offset,
      .channel_blocks = 0,
      .rows = 0,
      .sequences_per_head = 0,
      .heads = 0,
      .is_silu = args.activation == ConvActivation::kSilu,
  };
  constexpr int kVector = kLoadBytes / sizeof(T);
  const bool is_wide = takes_wide_loads(call);
  if (args.kernel_delta && is_wide) {
    launch_conv(device, call, kVector, conv_kernel<DynamicTaps<T, kVector>, T>);
  } else if (args.kernel_delta) {
    launch_conv(device, call, 1, conv_kernel<DynamicTaps<T, 1>, T>);
  } else if (geometry.dilation > 1 && geometry.width > 1) {
    launch_conv(device, call, 1, conv_any_kernel<T>);
  } else if (is_wide) {
    launch_fixed<T, kVector>(device, call);
  } else {
    launch_fixed<T, 1>(device, call);
  }
}

template void varlen_causal_conv(const Cuda&, const contract::VarlenCausalConvGeometry&,
                                 const VarlenCausalConvArgs<float>&);
template void varlen_causal_conv(const Cuda&, const contract::VarlenCausalConvGeometry&,
                                 const VarlenCausalConvArgs<Float16>&);
template void varlen_causal_conv(const Cuda&, const contract::VarlenCausalConvGeometry&,
                                 const VarlenCausalConvArgs<BFloat16>&);

}  // namespace deltaworks::cuda

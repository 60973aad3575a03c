// A thread owns kVector consecutive channels. A block is a head or a body: a head has the first
// `history` tokens of some sequences, all of their states and captures; a body has packed rows and
// computes those with `history` tokens of their own sequence before them. A body thus reads no state,
// and a state that is updated in place is read and written by the same thread.
#include "cuda/varlen_causal_conv.hpp"

#include <algorithm>
#include <cstdint>

#include "cuda/conv_state.cuh"
#include "cuda/launch.hpp"
#include "cuda/pack.cuh"
#include "cuda/sequences.cuh"
#include "cuda/varlen_causal_conv_taps.cuh"
#include "cuda/visit.hpp"

namespace deltaworks::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kBlocks = 5;  // of a multiprocessor: 102 registers for each thread
// Channels of a thread, where the operands' alignment allows. Eight of 16 bits would fill a load, but
// with their weights and samples no more than 16 warps have registers.
constexpr int kChannels = 4;
constexpr int kMaskRows = 32;  // of a warp's vote
// Rows of a body: 16, where 3 in 19 are read twice, or from so many blocks on 32. Bodies so long that all
// of a call run at once were slower: 116 instead of 106 us for 8192 tokens of 8192 channels.
constexpr int kFewRows = 16, kManyRows = 32;
constexpr int kManyBlocks = 2048;
constexpr int kHeadBlocks = 512;  // up to here each sequence has blocks of its own
constexpr unsigned kWarp = 0xffffffffu;

// Rows of a body, a bit each.
struct BodyRows {
  std::uint32_t computed, zero;  // zero: the sequence is skipped for want of a slot
};

// Of rows first … first + kMaskRows, as far as `end`; for a whole warp.
template <class T>
__device__ BodyRows body_rows(const ConvCall<T>& call, std::int64_t first, std::int64_t end) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = first + lane;
  bool is_computed = false, is_zero = false;
  if (row < min(first + kMaskRows, end)) {
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

// Whether one sequence has the rows from `first` to `end` and as many before them as each looks back.
template <class T>
__device__ bool is_inside(const ConvCall<T>& call, std::int64_t first, std::int64_t end) {
  const std::int64_t sequence = sequence_of(call.cu_seqlens, first);
  if (sequence >= call.sequences) return false;
  const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
  return span.begin + call.history <= first && end <= span.begin + span.length &&
         !slot_of(call.pool, sequence).is_skipped;
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
  const auto row_of = [&](std::int64_t row) {
    return load<kVector>(call.input.row(row) + channel);
  };
  // In a step of one token for each sequence its row is known before its offset has come.
  const bool is_step = call.tokens == call.sequences;
  Pack<T, kVector> first{};
  if (is_step) first = row_of(sequence);
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
  if (span.length > 0 && !(is_step && span.begin == sequence)) first = row_of(span.begin);
  const auto sample = [&](std::int64_t token) {
    return token == 0 ? first : row_of(span.begin + token);
  };
  float ring[kWidth][kVector];
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) ring[i][v] = widen(old.at[v * kHistory + i]);
  }
  T* const state = call.final_state.row(slot.out) + channel * kHistory;
  if (kHistory > 0 && span.length == 1 && call.state_update.data() == nullptr) {  // a decode step
    widen(first, ring[kHistory]);
    store(taps(span.begin, ring, 0), call.output.row(span.begin) + channel);
    ConvState<T, kVector, kHistory> next = old;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
#pragma unroll
      for (int p = 0; p + 1 < kHistory; ++p)
        next.at[v * kHistory + p] = old.at[v * kHistory + p + 1];
      if (kHistory > 0) next.at[v * kHistory + max(kHistory, 1) - 1] = first.at[v];
    }
    store<kVector>(next, state);
    return;
  }
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
    if (i >= span.length) break;
    widen(sample(i), ring[(kHistory + i) % kWidth]);
    store(taps(span.begin + i, ring, i), call.output.row(span.begin + i) + channel);
  }
  store<kVector>(shifted<kVector, kHistory>(old, span.length, sample), state);
  capture<kVector>(call, sequence, channel, span, captured_rows(call, sequence, span));
}

// Rows first … first + rows; the mask repeats after kMaskRows.
template <class Taps, class T>
__device__ void run_body(const ConvCall<T>& call, const Taps& taps, std::int64_t first, int rows,
                         std::int64_t channel, BodyRows mask) {
  constexpr int kVector = Taps::kVector, kWidth = Taps::kWidth, kHistory = kWidth - 1;
  // Rows of which the next ones load while these are computed; a multiple of kWidth, so that places in
  // the ring are constants.
  constexpr int kGroup = (kWidth == 3 ? 3 : 4) * (sizeof(T) == 2 ? 2 : 1);
  const std::int64_t in_stride = call.input.row_stride(), out_stride = call.output.row_stride();
  const T* from = call.input.row(first) + channel;
  T* to = call.output.row(first) + channel;
  // Behind the last row and before the first the nearest row is loaded, which no output takes: a load
  // under a condition would have to be waited for at once.
  const auto sample = [&](int row) { return load<kVector>(from + min(row, rows - 1) * in_stride); };
  Pack<T, kVector> past[kWidth], next[kGroup];
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
    past[i] = load<kVector>(from + (first > 0 ? i - kHistory : 0) * in_stride);
  }
#pragma unroll
  for (int i = 0; i < kGroup; ++i) next[i] = sample(i);
  float ring[kWidth][kVector];
#pragma unroll
  for (int i = 0; i < kHistory; ++i) widen(past[i], ring[i]);
#pragma unroll 1
  for (int group = 0; group < rows; group += kGroup) {
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
      if ((mask.computed & 1) != 0 && row < rows) store(result, to);
      mask.computed = __funnelshift_r(mask.computed, mask.computed, 1);
      to += out_stride;
    }
  }
  for (std::uint32_t left = mask.zero; left != 0; left &= left - 1) {
    store(Pack<T, kVector>{}, call.output.row(first + __ffs(left) - 1) + channel);
  }
}

template <class Taps, class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    conv_kernel(const __grid_constant__ ConvCall<T> call) {
  const unsigned unit = blockIdx.x / static_cast<unsigned>(call.channel_blocks);
  const unsigned part = blockIdx.x % static_cast<unsigned>(call.channel_blocks);
  const std::int64_t channel =
      (static_cast<std::int64_t>(part) * kThreads + threadIdx.x) * Taps::kVector;
  const bool is_live = channel < call.channels;  // a warp votes as a whole
  if (unit < call.heads) {
    if (!is_live) return;
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
  const std::int64_t end = min(first + call.rows, call.tokens);
  const bool is_whole = is_inside(call, first, end);
  const Taps taps(call, is_live ? channel : 0);
#pragma unroll 1
  for (std::int64_t row = first; row < end; row += is_whole ? call.rows : kMaskRows) {
    const std::int64_t stop = is_whole ? end : min(row + kMaskRows, end);
    const BodyRows mask = is_whole ? BodyRows{0xffffffffu, 0} : body_rows(call, row, end);
    if ((mask.computed | mask.zero) == 0 || !is_live) continue;
    run_body(call, taps, row, static_cast<int>(stop - row), channel, mask);
  }
}

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
  const std::int64_t begin = static_cast<std::int64_t>(unit - call.heads) * call.rows;
  const std::int64_t end = min(begin + call.rows, call.tokens);
  const MemoryTaps<T> taps{call, channel};
  const auto sample = [&](std::int64_t row) { return call.input.row(row)[channel]; };
  for (std::int64_t first = begin; first < end; first += kMaskRows) {
    const BodyRows rows = body_rows(call, first, end);
    if (channel >= call.channels) continue;
    for (std::uint32_t left = rows.computed; left != 0; left &= left - 1) {
      const std::int64_t row = first + __ffs(left) - 1;
      call.output.row(row)[channel] = taps(row, sample);
    }
    for (std::uint32_t left = rows.zero; left != 0; left &= left - 1) {
      call.output.row(first + __ffs(left) - 1)[channel] = T{};
    }
  }
}

template <class T>
void launch_conv(const Cuda& device, ConvCall<T> call, int vector,
                 void (*kernel)(const ConvCall<T>)) {
  const std::int64_t channel_blocks = ceil_div(call.channels, kThreads * vector);
  const std::int64_t per_head =
      std::clamp<std::int64_t>(call.sequences * channel_blocks / kHeadBlocks, 1, 8);
  const bool is_many = ceil_div(call.tokens, kFewRows) * channel_blocks >= kManyBlocks;
  call.channel_blocks = static_cast<int>(channel_blocks);
  call.rows = is_many ? kManyRows : kFewRows;
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
  return call.channels % kChannels == 0 && is_aligned(call.input) && is_aligned(call.output) &&
         is_aligned(call.initial_state) && is_aligned(call.final_state) &&
         is_aligned(call.state_update) && is_aligned(call.weight) && call.weight.is_dense() &&
         is_aligned_row(call.bias) &&
         (call.kernel_delta.data() == nullptr || call.group_size % kChannels == 0);
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
  const bool is_wide = takes_wide_loads(call);
  if (args.kernel_delta && is_wide) {
    launch_conv(device, call, kChannels, conv_kernel<DynamicTaps<T, kChannels>, T>);
  } else if (args.kernel_delta) {
    launch_conv(device, call, 1, conv_kernel<DynamicTaps<T, 1>, T>);
  } else if (geometry.dilation > 1 && geometry.width > 1) {
    launch_conv(device, call, 1, conv_any_kernel<T>);
  } else if (is_wide) {
    launch_fixed<T, kChannels>(device, call);
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

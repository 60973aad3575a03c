// A thread owns kVector consecutive channels. A block is a head or a body: a head has the first
// `history` tokens of some sequences, all of their states and captures; a body has packed rows and
// computes those with `history` tokens of their own sequence before them. A body thus reads no state,
// and a state that is updated in place is read and written by the same thread.
#include "cuda/varlen_causal_conv.hpp"

#include <algorithm>
#include <cstdint>

#include "cuda/async_copy.cuh"
#include "cuda/conv_state.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/pack.cuh"
#include "cuda/sequences.cuh"
#include "cuda/varlen_causal_conv_taps.cuh"
#include "cuda/visit.hpp"

namespace deltaworks::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kBlocks = 7;  // of a multiprocessor: 73 registers for each thread
// Channels of a thread. Eight of 16 bits would fill a load; with their weights and samples 16 warps have
// registers, not 28, and 1024 tokens of 10240 channels take 14.0 instead of 12.7 us.
constexpr int kChannels = 4;
constexpr int kRows = 16;   // of a body, a lane each; 3 in 19 are read twice, from the cache
constexpr int kStages = 2;  // groups of a thread's rows that are loading while one is computed
constexpr std::int64_t kHeadBlocks = 4096;  // up to here each sequence has blocks of its own
constexpr std::int64_t kMostSteps = 65535;  // blocks in a grid's second dimension
constexpr unsigned kWarp = 0xffffffffu;

// Rows of a body, a bit each.
struct BodyRows {
  std::uint32_t computed, zero;  // zero: the sequence is skipped for want of a slot
};

// Of rows first … end, at most 32; for a whole warp.
template <class T>
__device__ BodyRows body_rows(const ConvCall<T>& call, std::int64_t first, std::int64_t end) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t row = first + lane;
  bool is_computed = false, is_zero = false;
  if (row < end) {
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
__device__ Lanes<T, kVector, kVector> row_of(const ConvCall<T>& call, std::int64_t row,
                                             std::int64_t channel) {
  Lanes<T, kVector, kVector> sample;
  load_lanes(call.input.row(row) + channel, sample);
  return sample;
}

template <int kVector, class T>
__device__ void capture(const ConvCall<T>& call, std::int64_t sequence, std::int64_t channel,
                        const Span& span, std::int64_t rows) {
  if (call.state_update.data() == nullptr) return;
  T* to = call.state_update.row(sequence) + channel;
#pragma unroll 4
  for (std::int64_t row = 0; row < call.state_update.extent(1); ++row, to += call.channels) {
    Lanes<T, kVector, kVector> sample{};
    if (row < rows) sample = row_of<kVector>(call, span.begin + row, channel);
    store(sample, to);
  }
}

template <class T>
__device__ void check_sequence(const ConvCall<T>& call, std::int64_t sequence) {
  check_span(call.cu_seqlens, sequence, call.tokens, call.faults);
  check_slot(call.pool, sequence, call.faults);
}

// Rows first … first + rows of one sequence, whose history lies before them.
template <int kAhead, class Taps, class T>
__device__ void run_rows(const ConvCall<T>& call, const Taps& taps, std::int64_t first, int rows,
                         std::int64_t channel) {
  constexpr int kVector = Taps::kVector, kWidth = Taps::kWidth, kHistory = kWidth - 1;
  static_assert(kAhead % kWidth == 0);  // so that places in the ring are constants
  const std::int64_t in_stride = call.input.row_stride(), out_stride = call.output.row_stride();
  const T* from = call.input.row(first) + channel;
  T* to = call.output.row(first) + channel;
  typename Taps::Sample past[kWidth], ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kHistory; ++i) load_lanes(from + (i - kHistory) * in_stride, past[i]);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load_lanes(from + min(i, rows - 1) * in_stride, ahead[i]);
  float ring[kWidth][kVector];
#pragma unroll
  for (int i = 0; i < kHistory; ++i) widen(past[i], ring[i]);
  from += kAhead * in_stride;
  int row = 0;
#pragma unroll 1
  for (; row + 2 * kAhead <= rows; row += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      widen(ahead[i], ring[(kHistory + i) % kWidth]);
      load_lanes(from, ahead[i]);
      store(taps(first + row + i, ring, i), to);
      from += in_stride, to += out_stride;
    }
  }
#pragma unroll 1
  for (; row < rows; row += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (row + i >= rows) break;
      widen(ahead[i], ring[(kHistory + i) % kWidth]);
      if (row + i + kAhead < rows) load_lanes(from, ahead[i]);
      store(taps(first + row + i, ring, i), to);
      from += in_stride, to += out_stride;
    }
  }
}

// The first rows of a sequence, its state and captures; with kAll all of its rows.
template <bool kAll, int kAhead, class Taps, class T>
__device__ void run_head(const ConvCall<T>& call, const Taps& taps, std::int64_t sequence,
                         std::int64_t channel) {
  constexpr int kVector = Taps::kVector, kWidth = Taps::kWidth, kHistory = kWidth - 1;
  using Sample = typename Taps::Sample;
  const Slot slot = slot_of(call.pool, sequence);
  ConvState<T, kVector, kHistory> old{};
  if (!slot.is_skipped && !slot.is_fresh) {
    old = load<kVector * kHistory, kVector>(call.initial_state.row(slot.in) + channel * kHistory);
  }
  const Span span = span_of(call.cu_seqlens, sequence, call.tokens);
  if (channel == 0) check_sequence(call, sequence);
  const std::int64_t rows = kAll ? span.length : min(std::int64_t{kHistory}, span.length);
  if (slot.is_skipped) {
    for (int i = 0; i < rows; ++i) store(Sample{}, call.output.row(span.begin + i) + channel);
    capture<kVector>(call, sequence, channel, span, 0);
    return;
  }
  // The first rows and the last ones, all on their way before anything is computed.
  Sample head[kHistory + 1];
  Pack<T, kVector> tail[kHistory + 1]{};
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
    if (i < span.length) head[i] = row_of<kVector>(call, span.begin + i, channel);
    const std::int64_t at = span.length - kHistory + i;
    if (at >= 0) tail[i] = load<kVector>(call.input.row(span.begin + at) + channel);
  }
  float ring[kWidth][kVector];
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) ring[i][v] = widen(old.at[v * kHistory + i]);
  }
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
    if (i >= span.length) break;
    widen(head[i], ring[(kHistory + i) % kWidth]);
    store(taps(span.begin + i, ring, i), call.output.row(span.begin + i) + channel);
  }
  if constexpr (kAll) {
    if (rows > kHistory) {
      run_rows<kAhead>(call, taps, span.begin + kHistory, static_cast<int>(rows - kHistory),
                       channel);
    }
  }
  store<kVector>(shifted<kVector, kHistory>(old, span.length, tail),
                 call.final_state.row(slot.out) + channel * kHistory);
  capture<kVector>(call, sequence, channel, span, captured_rows(call, sequence, span));
}

// The same without wide loads.
template <class Taps, class T>
__device__ void run_narrow_body(const ConvCall<T>& call, std::int64_t first, std::int64_t channel,
                                BodyRows mask) {
  const Taps taps(call, channel, Taps::load_weights(call, channel));
  for (std::uint32_t left = mask.zero; left != 0; left &= left - 1) {
    store(typename Taps::Sample{}, call.output.row(first + __ffs(left) - 1) + channel);
  }
  // Run by run of ones: two sequences' rows have a history between them.
  for (std::uint32_t left = mask.computed, rest = 0; left != 0; left = rest) {
    rest = left & (left + (left & -left));
    run_rows<Taps::kWidth>(call, taps, first + __ffs(left) - 1, __popc(left ^ rest), channel);
  }
}

// A body: rows first … first + rows. All of them come through shared memory, kStages groups ahead, where what is
// loading takes no registers; each thread copies what it reads itself, so that nobody waits for another. Whose
// rows they are is looked up meanwhile, and says which outputs are stored.
template <class Taps, class T>
__device__ void run_body(const ConvCall<T>& call, std::int64_t first, int rows,
                         std::int64_t channel, bool is_live) {
  constexpr int kVector = Taps::kVector, kWidth = Taps::kWidth, kHistory = kWidth - 1;
  constexpr int kGroup = kWidth == 3 ? 3 : 4;  // a multiple: places in the ring are constants
  using Sample = typename Taps::Sample;
  __shared__ Sample stages[kStages][kGroup][kThreads];
  const std::int64_t in_stride = call.input.row_stride(), out_stride = call.output.row_stride();
  const T* const from = call.input.row(first) + channel;
  T* to = call.output.row(first) + channel;
  const T* ahead = from;
  const auto fetch = [&](int stage, int row) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      if (row + i < rows) {
        if constexpr (sizeof(Sample) == 16) {
          async_copy16(&stages[stage][i][threadIdx.x], ahead);
        } else {
          async_copy8(&stages[stage][i][threadIdx.x], ahead);
        }
      }
      ahead += in_stride;
    }
    commit_async_copies();
  };
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) fetch(stage, stage * kGroup);
  Sample past[kWidth];
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
    load_lanes(from + (first > 0 ? i - kHistory : 0) * in_stride, past[i]);
  }
  const auto weights = Taps::load_weights(call, channel);
  const BodyRows mask = body_rows(call, first, first + rows);
  if (!is_live) return;
  float ring[kWidth][kVector];
#pragma unroll
  for (int i = 0; i < kHistory; ++i) widen(past[i], ring[i]);
  const Taps taps(call, channel, weights);
  std::uint32_t computed = mask.computed;
  int stage = 0;
#pragma unroll 1
  for (int row = 0; row < rows; row += kGroup) {
    wait_for_async_copies_but<kStages - 1>();
    Sample samples[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) samples[i] = stages[stage][i][threadIdx.x];
    fetch(stage, row + kStages * kGroup);
    stage = stage + 1 == kStages ? 0 : stage + 1;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      widen(samples[i], ring[(kHistory + i) % kWidth]);
      const Sample result = taps(min(first + row + i, call.tokens - 1), ring, i);
      if ((computed >> i & 1) != 0) store(result, to);
      to += out_stride;
    }
    computed >>= kGroup;
  }
  for (std::uint32_t left = mask.zero; left != 0; left &= left - 1) {
    store(Sample{}, call.output.row(first + __ffs(left) - 1) + channel);
  }
}

template <class Taps, class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    conv_kernel(const __grid_constant__ ConvCall<T> call) {
  wait_for_stream();
  const unsigned unit = call.channel_blocks.quotient(blockIdx.x);
  const unsigned part = blockIdx.x - unit * call.channel_blocks.divisor;
  const std::int64_t channel = (part * kThreads + threadIdx.x) * Taps::kVector;
  const bool is_live = channel < call.channels;  // a warp votes as a whole
  if (unit < call.heads) {
    if (!is_live) return;
    const Taps taps(call, channel, Taps::load_weights(call, channel));
    const std::int64_t begin = static_cast<std::int64_t>(unit) * call.sequences_per_head;
    const std::int64_t end = min(begin + call.sequences_per_head, call.sequences);
#pragma unroll 1
    for (std::int64_t sequence = begin; sequence < end; ++sequence) {
      run_head<false, Taps::kWidth>(call, taps, sequence, channel);
    }
    return;
  }
  const std::int64_t first = static_cast<std::int64_t>(unit - call.heads) * kRows;
  const int rows = static_cast<int>(min(std::int64_t{kRows}, call.tokens - first));
  if constexpr (sizeof(typename Taps::Sample) >= 8) {
    run_body<Taps>(call, first, rows, is_live ? channel : 0, is_live);
  } else {
    const BodyRows mask = body_rows(call, first, first + rows);
    if (is_live) run_narrow_body<Taps>(call, first, channel, mask);
  }
}

// In a function of its own, so that the step below keeps its registers.
template <class Taps, class T>
__device__ __noinline__ void run_sequence(const ConvCall<T>& call, std::int64_t sequence,
                                          std::int64_t channel) {
  const Taps taps(call, channel, Taps::load_weights(call, channel));
  run_head<true, Taps::kWidth>(call, taps, sequence, channel);
}

// One token for each sequence, unless the offsets say otherwise. Everything is on its way before anything
// is waited for.
template <class Taps, class T>
__global__ void __launch_bounds__(kThreads, kBlocks)
    conv_step_kernel(const __grid_constant__ ConvCall<T> call) {
  wait_for_stream();
  constexpr int kVector = Taps::kVector, kWidth = Taps::kWidth, kHistory = kWidth - 1;
  const unsigned sequence = blockIdx.y;
  const std::int64_t channel = (blockIdx.x * kThreads + threadIdx.x) * kVector;
  if (channel >= call.channels) return;
  const Slot slot = slot_of(call.pool, sequence);
  const auto now = row_of<kVector>(call, sequence, channel);
  ConvState<T, kVector, kHistory> old{};
  if (!slot.is_skipped && !slot.is_fresh) {
    old = load<kVector * kHistory, kVector>(call.initial_state.row(slot.in) + channel * kHistory);
  }
  const auto weights = Taps::load_weights(call, channel);
  const std::int32_t begin = call.cu_seqlens(sequence), end = call.cu_seqlens(sequence + 1);
  if (begin != sequence || end != sequence + 1 || slot.is_skipped ||
      call.state_update.data() != nullptr) {
    run_sequence<Taps>(call, sequence, channel);
    return;
  }
  const Taps taps(call, channel, weights);
  float ring[kWidth][kVector];
#pragma unroll
  for (int p = 0; p < kHistory; ++p) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) ring[p][v] = widen(old.at[v * kHistory + p]);
  }
  widen(now, ring[kHistory]);
  store(taps(sequence, ring, 0), call.output.row(sequence) + channel);
  Pack<T, kVector> columns[kHistory + 1]{};
  memcpy(&columns[kHistory > 0 ? kHistory - 1 : 0], &now, sizeof(now));
  store<kVector>(shifted<kVector, kHistory>(old, 1, columns),
                 call.final_state.row(slot.out) + channel * kHistory);
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
  wait_for_stream();
  const unsigned unit = call.channel_blocks.quotient(blockIdx.x);
  const unsigned part = blockIdx.x - unit * call.channel_blocks.divisor;
  const std::int64_t channel = static_cast<std::int64_t>(part) * kThreads + threadIdx.x;
  if (unit < call.heads) {
    const std::int64_t begin = static_cast<std::int64_t>(unit) * call.sequences_per_head;
    const std::int64_t end = min(begin + call.sequences_per_head, call.sequences);
    for (std::int64_t sequence = begin; sequence < end && channel < call.channels; ++sequence) {
      run_any_head(call, sequence, channel);
    }
    return;
  }
  const std::int64_t begin = static_cast<std::int64_t>(unit - call.heads) * kRows;
  const std::int64_t end = min(begin + kRows, call.tokens);
  const MemoryTaps<T> taps{call, channel};
  const auto sample = [&](std::int64_t row) { return call.input.row(row)[channel]; };
  const BodyRows rows = body_rows(call, begin, end);
  if (channel >= call.channels) return;
  for (std::uint32_t left = rows.computed; left != 0; left &= left - 1) {
    const std::int64_t row = begin + __ffs(left) - 1;
    call.output.row(row)[channel] = taps(row, sample);
  }
  for (std::uint32_t left = rows.zero; left != 0; left &= left - 1) {
    call.output.row(begin + __ffs(left) - 1)[channel] = T{};
  }
}

template <class T>
void launch_conv(const Cuda& device, ConvCall<T> call, int vector,
                 void (*kernel)(const ConvCall<T>)) {
  const std::int64_t channel_blocks = ceil_div(call.channels, kThreads * vector);
  const std::int64_t per_head =
      std::clamp<std::int64_t>(call.sequences * channel_blocks / kHeadBlocks, 1, 8);
  call.channel_blocks = Divisor(index32(channel_blocks));
  call.sequences_per_head = static_cast<int>(per_head);
  call.heads = static_cast<unsigned>(ceil_div(call.sequences, per_head));
  const std::int64_t units = call.heads + ceil_div(call.tokens, kRows);
  if (units > 0) launch_early(device, index32(units * channel_blocks), kThreads, kernel, call);
}

template <class T, int kVector, class Taps>
void launch_taps(const Cuda& device, const ConvCall<T>& call) {
  if (call.tokens == call.sequences && call.sequences <= kMostSteps) {
    if (call.sequences == 0) return;
    const dim3 grid(index32(ceil_div(call.channels, kThreads * kVector)), index32(call.sequences));
    launch_early(device, grid, kThreads, conv_step_kernel<Taps, T>, call);
    return;
  }
  launch_conv(device, call, kVector, conv_kernel<Taps, T>);
}

template <class T, int kVector>
void launch_fixed(const Cuda& device, const ConvCall<T>& call) {
  const bool is_known = visit_constant<1, 2, 3, 4>(call.weight.extent(2), [&]<int kWidth>() {
    visit_constant<false, true>(call.is_silu, [&]<bool kSilu>() {
      launch_taps<T, kVector, FixedTaps<T, kVector, kWidth, kSilu>>(device, call);
    });
  });
  if (!is_known) launch_conv(device, call, 1, conv_any_kernel<T>);
}

// Rows of four taps, as models have, may be 8 bytes long: a thread's kChannels of them still fill wide loads.
template <class T>
bool has_wide_weights(const View<const T, 3>& weight) {
  const bool starts = reinterpret_cast<std::uintptr_t>(weight.data()) % kLoadBytes == 0;
  return weight.is_dense() && (is_aligned(weight) || (starts && weight.extent(2) == 4));
}

// Rows of every operand start where wide loads may.
template <class T>
bool takes_wide_loads(const ConvCall<T>& call) {
  return call.channels % kChannels == 0 && is_aligned(call.input) && is_aligned(call.output) &&
         is_aligned(call.initial_state) && is_aligned(call.final_state) &&
         is_aligned(call.state_update) && has_wide_weights(call.weight) &&
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
      .channel_blocks = Divisor(1),
      .sequences_per_head = 0,
      .heads = 0,
      .is_silu = args.activation == ConvActivation::kSilu,
  };
  const bool is_wide = takes_wide_loads(call);
  if (args.kernel_delta && is_wide) {
    launch_taps<T, kChannels, DynamicTaps<T, kChannels>>(device, call);
  } else if (args.kernel_delta) {
    launch_taps<T, 1, DynamicTaps<T, 1>>(device, call);
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

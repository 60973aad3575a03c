// A thread owns kVector consecutive channels of one sequence, as in varlen_causal_conv.cu: a state that
// is updated in place is read and written by the same thread.
#include <cstdint>

#include "cuda/conv_state.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/pack.cuh"
#include "cuda/sequences.cuh"
#include "cuda/varlen_causal_conv.hpp"
#include "cuda/visit.hpp"

namespace deltaworks::cuda {

namespace {

constexpr int kThreads = 128, kChannels = 4;

template <class T>
struct ReplayCall {
  View<const T, 3> initial_state, state_update;
  Ints count;
  View<T, 3> final_state;
  std::int32_t* faults;
  unsigned channel_blocks;
};

// How many samples to replay, whatever the operand says.
template <class T>
__device__ std::int64_t samples_of(const ReplayCall<T>& call, std::int64_t sequence,
                                   std::int64_t channel) {
  const std::int64_t wanted = call.count(sequence);
  const std::int64_t samples = clamp(wanted, 0, call.state_update.extent(1));
  if (samples != wanted && channel == 0) report(call.faults, kCudaCounts);
  return samples;
}

// kHistory samples in registers.
template <class T, int kVector, int kHistory>
__global__ void __launch_bounds__(kThreads)
    replay_kernel(const __grid_constant__ ReplayCall<T> call) {
  wait_for_stream();
  const unsigned sequence = blockIdx.x / call.channel_blocks;
  const std::int64_t channels = call.final_state.extent(1);
  const std::int64_t channel =
      (static_cast<std::int64_t>(blockIdx.x % call.channel_blocks) * kThreads + threadIdx.x) *
      kVector;
  if (channel >= channels) return;
  // Before the count has come.
  const auto old =
      load<kVector * kHistory, kVector>(call.initial_state.row(sequence) + channel * kHistory);
  const std::int64_t samples = samples_of(call, sequence, channel);
  const T* const update = call.state_update.row(sequence) + channel;
  Pack<T, kVector> columns[kHistory + 1]{};
#pragma unroll
  for (int p = 0; p < kHistory; ++p) {
    const std::int64_t at = samples - kHistory + p;
    if (at >= 0) columns[p] = load<kVector>(update + at * channels);
  }
  store<kVector>(shifted<kVector, kHistory>(old, samples, columns),
                 call.final_state.row(sequence) + channel * kHistory);
}

// Any history, from memory.
template <class T>
__global__ void __launch_bounds__(kThreads)
    replay_any_kernel(const __grid_constant__ ReplayCall<T> call) {
  wait_for_stream();
  const unsigned sequence = blockIdx.x / call.channel_blocks;
  const std::int64_t channels = call.final_state.extent(1), history = call.final_state.extent(2);
  const std::int64_t channel =
      static_cast<std::int64_t>(blockIdx.x % call.channel_blocks) * kThreads + threadIdx.x;
  if (channel >= channels) return;
  const auto sample = [&](std::int64_t i) {
    return call.state_update.row(sequence)[i * channels + channel];
  };
  shift(call.initial_state.row(sequence) + channel * history,
        call.final_state.row(sequence) + channel * history, history,
        samples_of(call, sequence, channel), sample);
}

template <class T>
void launch_replay(const Cuda& device, ReplayCall<T> call, int vector,
                   void (*kernel)(const ReplayCall<T>)) {
  call.channel_blocks =
      static_cast<unsigned>(ceil_div(call.final_state.extent(1), kThreads * vector));
  launch_early(device, index32(call.final_state.extent(0) * call.channel_blocks), kThreads, kernel,
               call);
}

}  // namespace

template <class T>
void replay_conv_state(const Cuda& device, const contract::ReplayConvStateGeometry& geometry,
                       const ReplayConvStateArgs<T>& args) {
  if (geometry.channels == 0 || geometry.history == 0) return;
  const ReplayCall<T> call{args.initial_state, args.state_update, args.count,
                           args.final_state,   device.faults,     0};
  const bool is_wide = geometry.channels % kChannels == 0 && is_aligned(args.initial_state) &&
                       is_aligned(args.state_update) && is_aligned(args.final_state);
  const bool is_known =
      is_wide && visit_constant<1, 2, 3>(geometry.history, [&]<int kHistory>() {
        launch_replay(device, call, kChannels, replay_kernel<T, kChannels, kHistory>);
      });
  if (!is_known) launch_replay(device, call, 1, replay_any_kernel<T>);
}

template void replay_conv_state(const Cuda&, const contract::ReplayConvStateGeometry&,
                                const ReplayConvStateArgs<float>&);
template void replay_conv_state(const Cuda&, const contract::ReplayConvStateGeometry&,
                                const ReplayConvStateArgs<Float16>&);
template void replay_conv_state(const Cuda&, const contract::ReplayConvStateGeometry&,
                                const ReplayConvStateArgs<BFloat16>&);

}  // namespace deltaworks::cuda

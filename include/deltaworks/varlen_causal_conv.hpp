/// Packed depthwise causal convolution with carried state, capture and replay.
#pragma once

#include <cstdint>
#include <vector>

#include "deltaworks/access.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/dtype.hpp"
#include "deltaworks/export.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks {

enum class ConvActivation : std::uint8_t { kNone, kSilu };

/// One call. Sequences lie one after another in `input`; sequence b owns rows cu_seqlens[b] …
/// cu_seqlens[b + 1] − 1. history = (width − 1) · dilation.
template <class T>
struct VarlenCausalConvArgs {
  View<const T, 2> input;                          ///< [tokens, channels]
  View<const T, 3> weight;                         ///< [channels, 1, width]; the last tap is now
  View<const std::int32_t, 1> cu_seqlens;          ///< [sequences + 1]: 0, never decreasing, tokens
  View<const T, 3> initial_state;                  ///< [sequences, channels, history]
  View<T, 2> output;                               ///< [tokens, channels]
  View<T, 3> final_state;                          ///< like initial_state; may be the same memory
  OptionalView<const T, 1> bias{};                 ///< [channels]
  OptionalView<const std::int32_t, 1> slots_in{};  ///< [sequences]: state pool rows; negative: skip
  OptionalView<const std::int32_t, 1>
      slots_out{};  ///< [sequences]: with slots_in, states are [slots, …]
  OptionalView<const std::int32_t, 1> fresh{};  ///< [sequences]: non-zero starts from zeros, unread
  OptionalView<const std::int32_t, 1>
      capture_count{};                ///< [sequences], exactly when state_update is given
  OptionalView<T, 3> state_update{};  ///< [sequences, capacity, channels]
  ConvActivation activation = ConvActivation::kNone;
  std::int64_t dilation = 1;
  OptionalView<const T, 3> kernel_delta{};   ///< [tokens, projected taps, channels / group_size]
  OptionalView<const T, 2> previous_mask{};  ///< [tokens, 1], exactly with kernel_delta
  std::int64_t group_size = 1;    ///< of kernel_delta: consecutive channels that share a value
  std::int64_t delta_offset = 0;  ///< the projected tap of the token itself; its predecessor's next
  OptionalView<const float, 2>
      prepared_weight{};  ///< [width, channels]: what prepare_conv_weight made of weight
};

/// Per sequence and channel, for local token t:
///   acc = bias or 0
///   acc = fma(weight[j], x[t − history + j · dilation], acc)   for j = 0 … width − 1, in float32
///   output = activation(acc), rounded once to T;  silu(x) = x / (1 + exp(−x))
/// Positions before the sequence read initial_state. final_state is the last `history` samples of
/// initial_state ‖ input, copied bit for bit. state_update holds the first clamp(capture_count, 0,
/// min(capacity, length)) input rows, then zeros. Splitting a sequence at any token changes no bit,
/// nor do the other sequences or the threads. Targets with fma give equal bits; SSE4 and SCALAR
/// round each product first. An empty sequence hands its state on. A sequence with a negative slot
/// in slots_in or slots_out is skipped: its outputs and captured rows are zeros, no state is read
/// or written. In place, no sequence may read a slot that another one writes.
/// On CUDA the bits are those of the targets with fma, but that 16-bit outputs of silu may be one
/// unit in the last place away, or a zero below −87; prepared_weight is not read.
/// Dynamic mode, with kernel_delta: width 2, dilation 1, no bias, no activation. With
/// g = c / group_size, every step a float32 operation that is rounded to T:
///   now = weight[c, 0, 1] + kernel_delta[t, delta_offset, g]
///   before = weight[c, 0, 0] + kernel_delta[t, delta_offset + 1, g]
///   output = now · x[t] + (before · x[t − 1]) · previous_mask[t]
/// The mask is a number, not a condition: 0 · NaN is NaN. All targets give equal bits, those of
/// dflash2_dynamic_conv's activation mode where the mask is 0 or 1 and all values are finite, but
/// for the sign of a zero. State, capture, slots and splits are as above.
/// Throws InvalidArgument when an argument breaks this contract; nothing is written then.
/// Source: ONNX Runtime, com.microsoft::VarlenCausalConvWithState.
DELTAWORKS_EXPORT void varlen_causal_conv(const Cpu& device,
                                          const VarlenCausalConvArgs<float>& args);
DELTAWORKS_EXPORT void varlen_causal_conv(const Cpu& device,
                                          const VarlenCausalConvArgs<Float16>& args);
DELTAWORKS_EXPORT void varlen_causal_conv(const Cpu& device,
                                          const VarlenCausalConvArgs<BFloat16>& args);
DELTAWORKS_EXPORT void varlen_causal_conv(const Cuda& device,
                                          const VarlenCausalConvArgs<float>& args);
DELTAWORKS_EXPORT void varlen_causal_conv(const Cuda& device,
                                          const VarlenCausalConvArgs<Float16>& args);
DELTAWORKS_EXPORT void varlen_causal_conv(const Cuda& device,
                                          const VarlenCausalConvArgs<BFloat16>& args);

/// The memory that such a call would read and write (deltaworks/access.hpp).
template <class T>
DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(const VarlenCausalConvArgs<T>& args);

/// Writes weight transposed and widened, prepared[j, c] = weight[c, 0, j], for a caller that runs the
/// same weights often: with it in prepared_weight a call changes no bit and reads it instead of
/// weight, which one token notices. The dynamic mode has no use for it. Throws InvalidArgument when
/// the shapes differ.
DELTAWORKS_EXPORT void prepare_conv_weight(const View<const float, 3>& weight,
                                           const View<float, 2>& prepared);
DELTAWORKS_EXPORT void prepare_conv_weight(const View<const Float16, 3>& weight,
                                           const View<float, 2>& prepared);
DELTAWORKS_EXPORT void prepare_conv_weight(const View<const BFloat16, 3>& weight,
                                           const View<float, 2>& prepared);

template <class T>
struct ReplayConvStateArgs {
  View<const T, 3>
      initial_state;  ///< [sequences, channels, history]: the state before the captured call
  View<const T, 3> state_update;      ///< [sequences, capacity, channels]
  View<const std::int32_t, 1> count;  ///< [sequences], each in 0 … capacity
  View<T, 3> final_state;             ///< like initial_state; may be the same memory
};

/// The state as it was after the first count[b] captured tokens, bit for bit: the last `history`
/// samples of initial_state ‖ state_update[: count]. count = 0 copies the bytes. Throws
/// InvalidArgument when an argument breaks this contract; nothing is written then.
DELTAWORKS_EXPORT void replay_conv_state(const Cpu& device, const ReplayConvStateArgs<float>& args);
DELTAWORKS_EXPORT void replay_conv_state(const Cpu& device,
                                         const ReplayConvStateArgs<Float16>& args);
DELTAWORKS_EXPORT void replay_conv_state(const Cpu& device,
                                         const ReplayConvStateArgs<BFloat16>& args);
DELTAWORKS_EXPORT void replay_conv_state(const Cuda& device,
                                         const ReplayConvStateArgs<float>& args);
DELTAWORKS_EXPORT void replay_conv_state(const Cuda& device,
                                         const ReplayConvStateArgs<Float16>& args);
DELTAWORKS_EXPORT void replay_conv_state(const Cuda& device,
                                         const ReplayConvStateArgs<BFloat16>& args);
template <class T>
DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(const ReplayConvStateArgs<T>& args);

}  // namespace deltaworks

/// Depthwise causal convolution of dense graphs: sequences of one length, channels first or last.
#pragma once

#include <cstdint>
#include <vector>

#include "deltaworks/access.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/dtype.hpp"
#include "deltaworks/export.hpp"
#include "deltaworks/varlen_causal_conv.hpp"  // ConvActivation
#include "deltaworks/view.hpp"

namespace deltaworks {

/// One call. history = (width − 1) · dilation. With channels_last, input, output and states are
/// [sequences, positions, channels].
template <class T>
struct CausalConvWithStateArgs {
  View<const T, 3> input;           ///< [sequences, channels, length]
  View<const T, 3> weight;          ///< [channels, 1, width]; the last tap is now
  View<T, 3> output;                ///< like input
  View<T, 3> present_state;         ///< [sequences, channels, history]
  OptionalView<const T, 1> bias{};  ///< [channels]
  OptionalView<const T, 3>
      past_state{};  ///< like present_state, may be the same memory; absent: zeros
  ConvActivation activation = ConvActivation::kNone;
  std::int64_t dilation = 1;
  bool channels_last = false;
};

/// Per sequence and channel, for token t:
///   acc = bias or 0
///   acc = fma(weight[j], x[t − history + j · dilation], acc)   for j = 0 … width − 1, in float32
///   output = activation(acc), rounded once to T;  silu(x) = x / (1 + exp(−x))
/// Positions before the sequence read past_state. present_state is the last `history` samples of
/// past_state ‖ input, copied bit for bit. Both layouts give the bits of varlen_causal_conv: splitting
/// a sequence at any token changes none, in any T, nor do the other sequences or the threads.
/// Sequences without tokens hand their state on.
/// Throws InvalidArgument when an argument breaks this contract; nothing is written then.
/// Source: ONNX Runtime, com.microsoft::CausalConvWithState.
DELTAWORKS_EXPORT void causal_conv_with_state(const Cpu& device,
                                              const CausalConvWithStateArgs<float>& args);
DELTAWORKS_EXPORT void causal_conv_with_state(const Cpu& device,
                                              const CausalConvWithStateArgs<Float16>& args);
DELTAWORKS_EXPORT void causal_conv_with_state(const Cpu& device,
                                              const CausalConvWithStateArgs<BFloat16>& args);

/// The memory that such a call would read and write (deltaworks/access.hpp).
template <class T>
DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(const CausalConvWithStateArgs<T>& args);

}  // namespace deltaworks

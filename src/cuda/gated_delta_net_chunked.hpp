// The chunked engine of gated_delta_net; formulas in gated_delta_net_chunked.cu.
#pragma once

#include "cuda/gated_delta_net_call.cuh"
#include "deltaworks/device.hpp"

namespace deltaworks::cuda {

inline constexpr int kChunkRows = 64;  // of the state, that a block owns

// Puts it into the stream, for the sequences of more than kLongest tokens; false where this build has
// none. Only on Hopper, for key_dim 128 and value_dim a multiple of 64, calls that do not capture and
// have no decay per key.
template <class T>
bool launch_chunked(const Cuda& device, const GatedDeltaNetCall<T>& call, bool wide);

}  // namespace deltaworks::cuda

// The convolution on CUDA. Shapes and addresses have been checked, values in device memory have not.
#pragma once

#include "contract/varlen_causal_conv.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/varlen_causal_conv.hpp"

namespace deltaworks::cuda {

template <class T>
void varlen_causal_conv(const Cuda& device, const contract::VarlenCausalConvGeometry& geometry,
                        const VarlenCausalConvArgs<T>& args);

template <class T>
void replay_conv_state(const Cuda& device, const contract::ReplayConvStateGeometry& geometry,
                       const ReplayConvStateArgs<T>& args);

}  // namespace deltaworks::cuda

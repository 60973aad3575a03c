// The convolution on the CPU. Arguments are checked by the caller.
#pragma once

#include <cstdint>

#include "contract/varlen_causal_conv.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/varlen_causal_conv.hpp"

namespace deltaworks::cpu {

template <class T>
void varlen_causal_conv(const VarlenCausalConvArgs<T>& args,
                        const contract::VarlenCausalConvGeometry& geometry,
                        const ParallelFor& parallel_for);

template <class T>
void replay_conv_state(const ReplayConvStateArgs<T>& args,
                       const contract::ReplayConvStateGeometry& geometry,
                       const ParallelFor& parallel_for);

}  // namespace deltaworks::cpu

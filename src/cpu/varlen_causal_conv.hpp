// The convolution on the CPU. Arguments are checked by the caller.
#pragma once

#include <cstdint>

#include "contract/varlen_causal_conv.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/varlen_causal_conv.hpp"

namespace deltaworks::cpu {

template <class T>
void varlen_causal_conv(const Cpu& device, const contract::VarlenCausalConvGeometry& geometry,
                        const VarlenCausalConvArgs<T>& args) noexcept;

template <class T>
void replay_conv_state(const Cpu& device, const contract::ReplayConvStateGeometry& geometry,
                       const ReplayConvStateArgs<T>& args) noexcept;

}  // namespace deltaworks::cpu

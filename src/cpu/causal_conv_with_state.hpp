// The dense convolution on the CPU. Arguments have been checked.
#pragma once

#include "contract/causal_conv_with_state.hpp"
#include "deltaworks/causal_conv_with_state.hpp"

namespace deltaworks::cpu {

template <class T>
void causal_conv_with_state(const Cpu& device,
                            const contract::CausalConvWithStateGeometry& geometry,
                            const CausalConvWithStateArgs<T>& args) noexcept;

}  // namespace deltaworks::cpu

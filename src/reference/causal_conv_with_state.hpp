// The specification of causal_conv_with_state.
#pragma once

#include "deltaworks/causal_conv_with_state.hpp"

namespace deltaworks::reference {

// Reads and writes what the operator does, but its output goes unrounded into `output`, of the shape
// of args.output, which is not touched. States must not be in place.
template <class T>
void causal_conv_with_state(const CausalConvWithStateArgs<T>& args, const View<double, 3>& output);

}  // namespace deltaworks::reference

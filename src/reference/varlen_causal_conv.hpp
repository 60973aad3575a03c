// The specification of varlen_causal_conv and replay_conv_state.
#pragma once

#include "deltaworks/varlen_causal_conv.hpp"

namespace deltaworks::reference {

// Reads and writes what the operator does, but its output goes unrounded into `output`
// [tokens, channels]; args.output is not touched. States must not be in place.
template <class T>
void varlen_causal_conv(const VarlenCausalConvArgs<T>& args, const View<double, 2>& output);

template <class T>
void replay_conv_state(const ReplayConvStateArgs<T>& args);

}  // namespace deltaworks::reference

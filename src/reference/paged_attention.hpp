// The specification of paged_attention, in float64.
#pragma once

#include <vector>

#include "deltaworks/paged_attention.hpp"

namespace deltaworks::reference {

// Output [tokens · heads · head_dim] before its rounding to T. Takes valid arguments; writes the
// caches as the operator does, and not args.output.
template <class T>
std::vector<double> paged_attention(const PagedAttentionArgs<T>& args);

}  // namespace deltaworks::reference

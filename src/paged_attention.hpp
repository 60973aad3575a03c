// The checks of paged_attention alone, for an adapter that must prepare caches between them and the
// run.
#pragma once

#include "contract/paged_attention.hpp"
#include "deltaworks/paged_attention.hpp"

namespace deltaworks {

// The call's geometry. Throws InvalidArgument as paged_attention does; writes nothing.
template <class T>
contract::PagedAttentionGeometry check_paged_attention(const PagedAttentionArgs<T>& args);

}  // namespace deltaworks

// The CPU backend of paged_attention.
#pragma once

#include "contract/paged_attention.hpp"
#include "deltaworks/paged_attention.hpp"

namespace deltaworks::cpu {

// Takes checked arguments and their geometry.
template <class T>
void paged_attention(const Cpu& device, const contract::PagedAttentionGeometry& geometry,
                     const PagedAttentionArgs<T>& args) noexcept;

}  // namespace deltaworks::cpu

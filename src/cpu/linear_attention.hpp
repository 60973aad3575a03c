// The recurrent engine for K-major states on the CPU. Arguments have been checked.
#pragma once

#include "contract/linear_attention.hpp"
#include "deltaworks/linear_attention.hpp"

namespace deltaworks::cpu {

template <class T, class S>
void linear_attention(const Cpu& device, const contract::LinearAttentionGeometry& geometry,
                      const LinearAttentionArgs<T, S>& args) noexcept;

}  // namespace deltaworks::cpu

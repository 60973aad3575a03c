// math-inl.h over arrays, dispatched like an operator.
#pragma once

#include <cstddef>

namespace deltaworks {

void math_exp(const float* x, float* y, std::size_t size);
void math_exp_of_minus(const float* x, float* y, std::size_t size);  // x >= 0
void math_log1p(const float* x, float* y, std::size_t size);         // 0 <= x <= 1
void math_sigmoid(const float* x, float* y, std::size_t size);
void math_silu(const float* x, float* y, std::size_t size);
void math_softplus(const float* x, float* y, std::size_t size);
void math_tanh(const float* x, float* y, std::size_t size);

}  // namespace deltaworks

#include "support/math_functions.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "support/math_functions.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/load-inl.h"
#include "cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

template <class Function>
void over(const float* x, float* y, std::size_t size, const Function& function) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < size; i += lanes) {
    const std::size_t n = size - i < lanes ? size - i : lanes;
    store_float_n(function(d, load_float_n(d, x + i, n)), d, y + i, n);
  }
}

void exp_over(const float* x, float* y, std::size_t size) {
  over(x, y, size, [](auto d, auto v) HWY_ATTR { return exp(d, v); });
}
void exp_of_minus_over(const float* x, float* y, std::size_t size) {
  over(x, y, size, [](auto d, auto v) HWY_ATTR { return exp_of_minus(d, v); });
}
void log1p_over(const float* x, float* y, std::size_t size) {
  over(x, y, size, [](auto d, auto v) HWY_ATTR { return log1p(d, v); });
}
void sigmoid_over(const float* x, float* y, std::size_t size) {
  over(x, y, size, [](auto d, auto v) HWY_ATTR { return sigmoid(d, v); });
}
void silu_over(const float* x, float* y, std::size_t size) {
  over(x, y, size, [](auto d, auto v) HWY_ATTR { return silu(d, v); });
}
void softplus_over(const float* x, float* y, std::size_t size) {
  over(x, y, size, [](auto d, auto v) HWY_ATTR { return softplus(d, v); });
}
void tanh_over(const float* x, float* y, std::size_t size) {
  over(x, y, size, [](auto d, auto v) HWY_ATTR { return tanh(d, v); });
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaworks {

HWY_EXPORT(exp_over);
HWY_EXPORT(exp_of_minus_over);
HWY_EXPORT(log1p_over);
HWY_EXPORT(sigmoid_over);
HWY_EXPORT(silu_over);
HWY_EXPORT(softplus_over);
HWY_EXPORT(tanh_over);

void math_exp(const float* x, float* y, std::size_t size) {
  HWY_DYNAMIC_DISPATCH(exp_over)(x, y, size);
}
void math_exp_of_minus(const float* x, float* y, std::size_t size) {
  HWY_DYNAMIC_DISPATCH(exp_of_minus_over)(x, y, size);
}
void math_log1p(const float* x, float* y, std::size_t size) {
  HWY_DYNAMIC_DISPATCH(log1p_over)(x, y, size);
}
void math_sigmoid(const float* x, float* y, std::size_t size) {
  HWY_DYNAMIC_DISPATCH(sigmoid_over)(x, y, size);
}
void math_silu(const float* x, float* y, std::size_t size) {
  HWY_DYNAMIC_DISPATCH(silu_over)(x, y, size);
}
void math_softplus(const float* x, float* y, std::size_t size) {
  HWY_DYNAMIC_DISPATCH(softplus_over)(x, y, size);
}
void math_tanh(const float* x, float* y, std::size_t size) {
  HWY_DYNAMIC_DISPATCH(tanh_over)(x, y, size);
}

}  // namespace deltaworks
#endif

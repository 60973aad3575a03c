// The elementary functions of src/cpu/math-inl.h, operation for operation: equal inputs give the bits
// of AVX2 and AVX-512. Errors are stated there. At the end two that are the GPU's own.
#pragma once

#include <cstdint>

namespace deltaworks::cuda {

// The smaller of x and a number; a NaN stays one.
__device__ inline float at_most(float x, float bound) { return x > bound ? bound : x; }
// The larger of x and a number; a NaN stays one.
__device__ inline float at_least(float x, float bound) { return x < bound ? bound : x; }

// exp(±z) = p / unit · 2^n, for |z| up to 104. The last places of `shifted` are n + bias.
struct Power {
  float p, shifted;
};

template <int kSign>
__device__ inline Power power_of_e(float z, float bias, float unit = 1) {
  constexpr float kOdd = kSign;
  const float magic = 0x1.8p23f + bias;
  const float shifted = fmaf(z, kOdd * 0x1.715476p0f, magic);
  const float n = shifted - magic;
  const float rough = fmaf(n, kOdd * -0x1.63p-1f, z);
  const float s = fmaf(n, kOdd * 0x1.bd0106p-13f, rough);
  float p = fmaf(s, unit * 0x1.6a235p-10f, kOdd * unit * 0x1.123a6cp-7f);
  p = fmaf(s, p, unit * 0x1.5558f4p-5f);
  p = fmaf(s, p, kOdd * unit * 0x1.55549p-3f);
  p = fmaf(s, p, unit * 0x1.fffffcp-2f);
  p = fmaf(s, p, kOdd * unit);
  return {fmaf(s, p, unit), shifted};
}

__device__ inline float power_of_two(float shifted) {
  return __uint_as_float(__float_as_uint(shifted) << 23);
}

// 0 below −103.97, infinity above 88.72.
__device__ inline float exp(float x) {
  const Power power = power_of_e<1>(at_least(at_most(x, 89), -104), 254);
  const std::uint32_t biased = __float_as_uint(power.shifted), half = biased >> 1;
  return power.p * __uint_as_float(half << 23) * __uint_as_float((biased - half) << 23);
}

// exp(−z) for z >= 0.
__device__ inline float exp_of_minus(float z) {
  const Power power = power_of_e<-1>(at_most(z, 104), 127 + 48, 0x1p-48f);
  return power.p * power_of_two(power.shifted);
}

// (1 + exp(−x)) / 2
__device__ inline float half_of_one_plus_exp_of_minus(float x) {
  const Power power = power_of_e<-1>(at_least(at_most(x, 87), -89.5f), 126);
  return fmaf(power.p, power_of_two(power.shifted), 0.5f);
}

__device__ inline float sigmoid(float x) {
  return __fdiv_rn(0.5f, half_of_one_plus_exp_of_minus(x));
}

__device__ inline float silu(float x) {
  return __fdiv_rn(0.5f * x, half_of_one_plus_exp_of_minus(x));
}

// log(1 + x) for x in [0, 1].
__device__ inline float log1p(float x) {
  float q = fmaf(x, 0x1.5f96d8p-8f, -0x1.ec991ap-6f);
  q = fmaf(x, q, 0x1.446bfcp-4f);
  q = fmaf(x, q, -0x1.19ad8ap-3f);
  q = fmaf(x, q, 0x1.88445p-3f);
  q = fmaf(x, q, -0x1.fd132p-3f);
  q = fmaf(x, q, 0x1.5535dap-2f);
  q = fmaf(x, q, -0x1.ffff14p-2f);
  return fmaf(x * x, q, x);
}

// log(1 + exp(x))
__device__ inline float softplus(float x) { return at_least(x, 0) + log1p(exp_of_minus(fabsf(x))); }

// 2^x and its inverse as the special function unit has them, which no CPU does.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace deltaworks::cuda

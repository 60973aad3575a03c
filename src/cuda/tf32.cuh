// Products of 16 × 16 matrices of float32 in tf32 by one warp, on the tensor cores.
#pragma once

#include <cstdint>

namespace deltaworks::cuda {

// One in shared memory. Rows start at multiples of 16 bytes, and eight of them in other banks.
inline constexpr int kSquareStride = 20;
using SquareRows = float[16][kSquareStride];

// One in registers: two groups of eight columns, of each of which lane l has rows l / 4 and l / 4 + 8, columns
// 2 (l mod 4) and the next.
struct Square {
  float4 at[2];
};

// The products leave off the last 13 bits: half of their unit, added before, makes it rounding. The
// conversion instruction would take three.
__device__ inline float to_tf32(float x) { return __uint_as_float(__float_as_uint(x) + 0x1000); }
__device__ inline float4 to_tf32(const float4& x) {
  return {to_tf32(x.x), to_tf32(x.y), to_tf32(x.z), to_tf32(x.w)};
}

// sum += left · rightᵀ, right in shared memory. The depth's columns are taken in an order of our own, the
// same on both sides, in which a result is a left operand as it stands.
__device__ inline void multiply_transposed(Square& sum, const Square& left, const SquareRows& right,
                                           int lane) {
  const auto word = [](float x) { return __float_as_uint(x); };
  const int row = lane / 4, column = 2 * (lane % 4);
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float4& l = left.at[k];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float2 r = *reinterpret_cast<const float2*>(&right[8 * n + row][8 * k + column]);
      float4& s = sum.at[n];
      asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
          "{%8,%9}, {%0,%1,%2,%3};"
          : "+f"(s.x), "+f"(s.y), "+f"(s.z), "+f"(s.w)
          : "r"(word(l.x)), "r"(word(l.z)), "r"(word(l.y)), "r"(word(l.w)), "r"(word(r.x)),
            "r"(word(r.y)));
    }
  }
}

}  // namespace deltaworks::cuda

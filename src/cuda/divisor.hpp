// Division by a number that the host knows: a multiplication where the GPU's own takes 20 instructions,
// one of them on the slow unit.
#pragma once

#include <bit>
#include <cstdint>

namespace deltaworks::cuda {

// Of numbers below 2^31, by one from 1 to 2^31 (Granlund and Montgomery, PLDI 1994, figure 4.1).
struct Divisor {
  std::uint32_t divisor, multiplier, shift;

  explicit Divisor(std::uint32_t d) : divisor(d) {
    shift = static_cast<std::uint32_t>(std::bit_width(d - 1));
    multiplier = static_cast<std::uint32_t>(
        ((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - d)) / d + 1);
  }
#ifdef __CUDACC__
  __device__ std::uint32_t quotient(std::uint32_t n) const {
    return (__umulhi(n, multiplier) + n) >> shift;
  }
  __device__ std::uint32_t remainder(std::uint32_t n) const { return n - quotient(n) * divisor; }
#endif
};

}  // namespace deltaworks::cuda

// Operands of more than 2^31 elements on the GPU, where no 32-bit index leads. They are made there, and only
// slices leave it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "support/buffer.hpp"
#include "support/cuda.hpp"
#include "support/random.hpp"

namespace deltaworks::testing {

inline constexpr std::int64_t kBoundary = std::int64_t{1} << 31;

// Memory of the GPU that repeats `values`.
template <class T>
class OnGpu {
 public:
  OnGpu(std::int64_t size, const std::vector<T>& values)
      : data_(static_cast<T*>(gpu::allocate(bytes(size)))) {
    std::int64_t filled = std::min(size, std::ssize(values));
    gpu::copy(data_, values.data(), bytes(filled));
    while (filled < size) {
      const std::int64_t count = std::min(filled, size - filled);
      gpu::copy(data_ + filled, data_, bytes(count));
      filled += count;
    }
  }
  explicit OnGpu(const std::vector<T>& values) : OnGpu(std::ssize(values), values) {}
  OnGpu(const OnGpu&) = delete;
  ~OnGpu() { gpu::free(data_); }

  T* at(std::int64_t index) const { return data_ + index; }
  std::vector<T> values(std::int64_t first, std::int64_t count) const {
    std::vector<T> values(static_cast<std::size_t>(count));
    gpu::copy(values.data(), at(first), bytes(count));
    return values;
  }

 private:
  static std::size_t bytes(std::int64_t size) { return static_cast<std::size_t>(size) * sizeof(T); }

  T* data_;
};

// A period that no row length divides, so that rows differ.
inline constexpr std::int64_t kPeriod = 1'000'003;

template <class T>
std::vector<T> random_tile(Random& random, double deviation = 1) {
  return random.normal<T>(kPeriod, deviation);
}
template <class T>
std::vector<T> poisoned_tile() {
  return std::vector<T>(kPeriod, poison<T>());
}

class CudaLarge : public OnCuda {
 protected:
  // Whether the GPU has so much memory left; the test is skipped otherwise.
  static bool has_gib(std::size_t gib) { return gpu::available() >> 30 >= gib; }
  static std::string needs_gib(std::size_t gib) {
    return "needs " + std::to_string(gib) + " GiB of free memory on the GPU";
  }
};

}  // namespace deltaworks::testing

// How kernels are started, and which operands their wide loads can take.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>
#include <string>

#include "cuda/check.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/error.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks::cuda {

inline constexpr int kLoadBytes = 16;  // the widest load of a thread

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Of what a kernel counts in 32 bits.
inline std::uint32_t index32(std::int64_t extent) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (extent > kMost) {
    throw DeviceError("cuda: an extent of " + std::to_string(extent) + ", expected at most " +
                      std::to_string(kMost));
  }
  return static_cast<std::uint32_t>(extent);
}

// Whether the kernel that would run was compiled for compute capability `major`.0 or later: what it has for
// that card alone is empty otherwise, or a trap.
template <class Kernel>
bool is_compiled_for(Kernel kernel, int major) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, kernel));
  return attributes.ptxVersion >= 10 * major;
}

template <class Kernel, class Call>
void launch(const Cuda& device, std::int64_t blocks, int threads, Kernel kernel, const Call& call) {
  if (blocks == 0) return;
  kernel<<<index32(blocks), threads, 0, device.stream>>>(call);
  check(cudaGetLastError());
}

// Whether every row starts where a load of kLoadBytes may start.
template <class T, std::size_t Rank>
bool is_aligned(const View<T, Rank>& view) {
  constexpr std::int64_t kElements = kLoadBytes / sizeof(T);
  return reinterpret_cast<std::uintptr_t>(view.data()) % kLoadBytes == 0 &&
         (view.extent(0) <= 1 || view.row_stride() % kElements == 0);
}

// The same for the elements of one row, which may lie apart.
template <class T>
bool is_aligned_row(const View<T, 1>& view) {
  return reinterpret_cast<std::uintptr_t>(view.data()) % kLoadBytes == 0 && view.is_dense();
}

}  // namespace deltaworks::cuda

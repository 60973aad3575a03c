// A kernel that starts while the one before it in the stream still runs, because neither reads what the
// other writes: 64 tokens take 11.2 µs on an H200 instead of 13.4.
#pragma once

#include <cuda_runtime.h>

#include "cuda/check.hpp"
#include "deltaworks/device.hpp"

namespace deltaworks::cuda {

// By the first kernel: when all of its blocks have said so, blocks of the second take what is free.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// By the second before it ends: what comes behind it in the stream waits for it alone.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

struct LaunchSize {
  unsigned blocks, threads, shared_bytes;
};

template <class... Args>
void launch(const Cuda& device, const LaunchSize& size, bool starts_early, void (*kernel)(Args...),
            const Args&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = size.blocks;
  config.blockDim = size.threads;
  config.dynamicSmemBytes = size.shared_bytes;
  config.stream = device.stream;
  config.attrs = &attribute;
  config.numAttrs = starts_early ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, args...));
}

}  // namespace deltaworks::cuda

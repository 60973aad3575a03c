// What CUDA answers.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

namespace deltaworks::cuda {

// Throws DeviceError unless the status is success.
void check(cudaError_t status, std::source_location where = std::source_location::current());

}  // namespace deltaworks::cuda

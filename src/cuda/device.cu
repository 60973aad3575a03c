#include "deltaworks/device.hpp"

#include <string>

#include "cuda/check.hpp"
#include "deltaworks/error.hpp"

namespace deltaworks {

namespace cuda {

void check(cudaError_t status, std::source_location where) {
  if (status == cudaSuccess) return;
  throw DeviceError(std::string(cudaGetErrorName(status)) + ": " + cudaGetErrorString(status) +
                    " (" + where.file_name() + ":" + std::to_string(where.line()) + ")");
}

}  // namespace cuda

std::string cuda_device() {
  int device = 0;
  cudaDeviceProp properties{};
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    (void)cudaGetLastError();  // it would fail the next launch
    return {};
  }
  return properties.name;
}

}  // namespace deltaworks

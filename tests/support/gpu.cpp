// Memory and graphs of the GPU, for tests.
#include <cuda_runtime_api.h>

#include "cuda/check.hpp"
#include "support/cuda.hpp"

namespace deltaworks::testing::gpu {

using cuda::check;

void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes));
  return memory;
}

void free(void* memory) { cudaFree(memory); }

void copy(void* to, const void* from, std::size_t bytes) {
  check(cudaDeviceSynchronize());
  check(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  check(cudaDeviceSynchronize());  // what comes from pageable memory may still be on its way
}

std::size_t available() {
  std::size_t bytes = 0, all = 0;
  check(cudaMemGetInfo(&bytes, &all));
  return bytes;
}

int compute_capability() {
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return 10 * major + minor;
}

void Graph::begin() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
}

void Graph::end() {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_, &graph));
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, graph, 0));
  graph_ = exec;
  check(cudaGraphDestroy(graph));
}

void Graph::launch() {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), stream_));
  check(cudaStreamSynchronize(stream_));
}

Graph::~Graph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_));
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

}  // namespace deltaworks::testing::gpu

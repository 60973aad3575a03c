// The functions of gpu.cpp in a build without CUDA, whose tests on the GPU are skipped before they
// call one.
#include <stdexcept>

#include "support/cuda.hpp"

namespace deltaworks::testing::gpu {

[[noreturn]] void refuse() { throw std::logic_error("this build has no CUDA"); }

void* allocate(std::size_t) { refuse(); }
void free(void*) {}
void copy(void*, const void*, std::size_t) { refuse(); }
std::size_t available() { refuse(); }
int compute_capability() { refuse(); }
void Graph::begin() { refuse(); }
void Graph::end() { refuse(); }
void Graph::launch() { refuse(); }
Graph::~Graph() = default;

}  // namespace deltaworks::testing::gpu

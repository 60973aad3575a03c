// Launches of kernels whose blocks are row blocks of value heads of sequences.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/launch.hpp"

namespace deltaworks::cuda {

struct HeadsGrid {
  std::int64_t row_blocks, heads, sequences;
};

// The first sequence and head of a launch: a grid has at most 65535 blocks in y and z.
struct HeadsOrigin {
  std::int32_t sequence, head;
};

// x: row blocks, y: heads, z: sequences.
template <class Call>
void launch(const Cuda& device, const HeadsGrid& grid, int threads, int shared_bytes,
            void (*kernel)(Call, HeadsOrigin), const Call& call) {
  constexpr std::int64_t kMost = 65535;
  for (std::int64_t b = 0; b < grid.sequences; b += kMost) {
    for (std::int64_t h = 0; h < grid.heads; h += kMost) {
      const dim3 blocks(static_cast<unsigned>(grid.row_blocks),
                        static_cast<unsigned>(std::min(grid.heads - h, kMost)),
                        static_cast<unsigned>(std::min(grid.sequences - b, kMost)));
      kernel<<<blocks, threads, static_cast<unsigned>(shared_bytes), device.stream>>>(
          call, HeadsOrigin{static_cast<std::int32_t>(b), static_cast<std::int32_t>(h)});
      check(cudaGetLastError());
    }
  }
}

}  // namespace deltaworks::cuda

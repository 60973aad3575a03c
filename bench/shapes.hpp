// Shapes of benchmarks, each named after the model that has it.
#pragma once

#include <cstdint>

namespace deltaworks::bench {

struct GatedDeltaNetShape {
  const char* name;
  std::int64_t key_heads, value_heads, key_dim, value_dim;
};

inline constexpr GatedDeltaNetShape kGatedDeltaNetShapes[] = {
    {"Qwen3.5-27B", 16, 48, 128, 128},
    {"Qwen3.5-0.8B", 16, 16, 128, 128},
    {"demo", 2, 4, 64, 64},
};

}  // namespace deltaworks::bench

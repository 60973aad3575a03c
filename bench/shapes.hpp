// Shapes of benchmarks, each named after the model that has it.
#pragma once

#include <cstdint>

namespace deltaworks::bench {

struct GatedDeltaNetShape {
  const char* name;
  std::int64_t key_heads, value_heads, key_dim, value_dim;

  // Of the convolution in front of it: queries, keys and values together.
  std::int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

inline constexpr GatedDeltaNetShape kGatedDeltaNetShapes[] = {
    {"Qwen3.5-27B", 16, 48, 128, 128},
    {"Qwen3.5-0.8B", 16, 16, 128, 128},
    {"demo", 2, 4, 64, 64},
};

struct AttentionShape {
  const char* name;
  std::int64_t heads, kv_heads, head_dim;
};

inline constexpr AttentionShape kAttentionShapes[] = {
    {"Qwen3.5-0.8B", 8, 2, 256},
    {"demo", 4, 2, 64},
};

struct DynamicConvShape {
  const char* name;
  std::int64_t channels, groups, taps, rows_per_lane;
};

inline constexpr DynamicConvShape kDynamicConvShapes[] = {
    {"Qwen3.8-27B DFlash2", 5120, 320, 2, 8},
    {"Muse-Glimmer-30B DFlash2", 6656, 416, 2, 16},
};

}  // namespace deltaworks::bench

// Fresh random operands. A test draws its seed from DELTAWORKS_TEST_SEED or the clock and prints it
// on failure.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "deltaworks/dtype.hpp"

namespace deltaworks::testing {

inline std::uint64_t fresh_seed() {
  static const std::uint64_t seed = [] {
    const char* given = std::getenv("DELTAWORKS_TEST_SEED");
    return given != nullptr ? std::stoull(given)
                            : static_cast<std::uint64_t>(
                                  std::chrono::system_clock::now().time_since_epoch().count());
  }();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

class Random {
 public:
  explicit Random(std::uint64_t stream) : engine_(fresh_seed() * 0x9e3779b97f4a7c15u + stream) {}

  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  template <class T>
  std::vector<T> normal(std::int64_t size, double deviation = 1, double mean = 0) {
    std::normal_distribution<double> draw(mean, deviation);
    std::vector<T> values(static_cast<std::size_t>(size));
    for (T& value : values) value = from_float<T>(static_cast<float>(draw(engine_)));
    return values;
  }
  // Offsets of `sequences` sequences of low … high tokens each.
  std::vector<std::int32_t> cu_seqlens(std::int64_t sequences, std::int64_t low,
                                       std::int64_t high) {
    std::vector<std::int32_t> offsets{0};
    for (std::int64_t b = 0; b < sequences; ++b) {
      offsets.push_back(offsets.back() + static_cast<std::int32_t>(integer(low, high)));
    }
    return offsets;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace deltaworks::testing

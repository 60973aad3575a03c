// Random operands and the error of results, for the commands that check and time the operators.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "cache_line.hpp"
#include "deltaworks/dtype.hpp"

namespace deltaworks::cli {

template <class T>
using Buffer = bench::CacheLineVector<T>;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}

  template <class T, class Values = std::vector<T>>
  Values normal(std::int64_t size, double deviation = 1, double mean = 0) {
    std::normal_distribution<double> draw(mean, deviation);
    Values values(static_cast<std::size_t>(size));
    for (T& value : values) value = from_float<T>(static_cast<float>(draw(engine_)));
    return values;
  }
  template <class T>
  Buffer<T> buffer(std::int64_t size, double deviation = 1) {
    return normal<T, Buffer<T>>(size, deviation);
  }
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }
  // Offsets of sequences that are empty, of one token, short and long.
  std::vector<std::int32_t> cu_seqlens() {
    std::vector<std::int32_t> offsets{0, 0, 1};
    offsets.push_back(offsets.back() + static_cast<std::int32_t>(integer(2, 9)));
    offsets.push_back(offsets.back() + static_cast<std::int32_t>(integer(30, 80)));
    return offsets;
  }

 private:
  std::mt19937_64 engine_;
};

// The largest error, relative to the largest expected magnitude; infinite where a result is not a
// number.
template <class Values>
double relative_error(const Values& actual, std::span<const double> expected) {
  double scale = 1e-3, error = 0;
  for (const double e : expected) scale = std::max(scale, std::abs(e));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double off = std::abs(static_cast<double>(to_float(actual[i])) - expected[i]) / scale;
    error = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(error, off);
  }
  return error;
}

}  // namespace deltaworks::cli

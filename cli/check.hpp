// What the checks of the operators share: random operands, errors against float64, their record.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "deltaworks/dtype.hpp"
#include "reference/tolerance.hpp"

namespace deltaworks::cli {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}

  template <class T>
  std::vector<T> normal(std::int64_t size, double deviation = 1, double mean = 0) {
    std::normal_distribution<double> draw(mean, deviation);
    std::vector<T> values(static_cast<std::size_t>(size));
    for (T& value : values) value = from_float<T>(static_cast<float>(draw(engine_)));
    return values;
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

// One result of one operator in one type; the largest error on each instruction set.
struct Measurement {
  std::string op, dtype, result;
  double allowed = 0;
  std::map<std::string, double> errors;

  bool within() const {
    return std::all_of(errors.begin(), errors.end(),
                       [&](const auto& error) { return error.second <= allowed; });
  }
};

class Measurements {
 public:
  void set(const std::string& op, const std::string& target) { op_ = op, target_ = target; }

  // `factor` widens the table's tolerance where errors add up.
  template <class T>
  void compare(DType dtype, const std::string& result, const std::vector<T>& actual,
               const std::vector<double>& expected, double factor = 1) {
    double scale = 1e-3, error = 0;
    for (const double e : expected) scale = std::max(scale, std::abs(e));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double off = std::abs(static_cast<double>(to_float(actual[i])) - expected[i]) / scale;
      error = std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(error, off);
    }
    record(dtype, result, error, factor * reference::tolerance<T>());
  }
  const std::vector<Measurement>& all() const { return all_; }

 private:
  void record(DType dtype, const std::string& result, double error, double allowed);

  std::string op_, target_;
  std::vector<Measurement> all_;
};

// Each runs its operator on the chosen instruction set, over all its types.
void check_dflash2_dynamic_conv(Draw& draw, Measurements& measurements);
void check_gated_delta_net(Draw& draw, Measurements& measurements);
void check_paged_attention(Draw& draw, Measurements& measurements);
void check_varlen_causal_conv(Draw& draw, Measurements& measurements);

}  // namespace deltaworks::cli

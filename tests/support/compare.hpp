// Bits and tolerances.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "deltaworks/dtype.hpp"
#include "reference/tolerance.hpp"

namespace deltaworks::testing {

using reference::tolerance;

template <class T>
::testing::AssertionResult same_bits(const std::vector<T>& actual, const std::vector<T>& expected) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << "has " << actual.size() << " elements, expected " << expected.size();
  }
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::memcmp(&actual[i], &expected[i], sizeof(T)) != 0) {
      if constexpr (std::is_integral_v<T>) {
        return ::testing::AssertionFailure()
               << "element " << i << " is " << actual[i] << ", expected " << expected[i];
      } else {
        return ::testing::AssertionFailure() << "element " << i << " is " << to_float(actual[i])
                                             << ", expected the bits of " << to_float(expected[i]);
      }
    }
  }
  return ::testing::AssertionSuccess();
}

// Every element within tolerance<T>() · max(1e-3, largest |expected|) of the float64 reference.
template <class T>
::testing::AssertionResult near(const std::vector<T>& actual, const std::vector<double>& expected,
                                double factor = 1) {
  if (actual.size() != expected.size()) {
    return ::testing::AssertionFailure()
           << "has " << actual.size() << " elements, expected " << expected.size();
  }
  double scale = 1e-3;
  for (const double e : expected) scale = std::max(scale, std::abs(e));
  const double allowed = factor * tolerance<T>() * scale;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    // What no finite element of the type can hold is an infinity.
    const float rounded = to_float(from_float<T>(static_cast<float>(expected[i])));
    if (std::isinf(rounded) && to_float(actual[i]) == rounded) continue;
    const double error = std::abs(static_cast<double>(to_float(actual[i])) - expected[i]);
    if (!(error <= allowed)) {
      return ::testing::AssertionFailure() << "element " << i << " is " << to_float(actual[i])
                                           << ", expected " << expected[i] << " within " << allowed;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace deltaworks::testing

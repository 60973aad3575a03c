// The one tolerance table: for the tests, for CI and for `deltaworks check`.
#pragma once

#include <type_traits>

#include "deltaworks/dtype.hpp"

namespace deltaworks::reference {

// Allowed error of a result against float64, relative to the largest expected magnitude: float32
// sums of a few thousand terms, or one rounding to the 16-bit type (half a unit in the last place)
// on top of it.
template <class T>
constexpr double tolerance() {
  if constexpr (std::is_same_v<T, Float16>) return 0x1p-11 + 2e-6;
  if constexpr (std::is_same_v<T, BFloat16>) return 0x1p-8 + 2e-6;
  return 2e-6;
}

}  // namespace deltaworks::reference

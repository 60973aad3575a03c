// Output memory: poisoned with NaN before a call, guarded on both sides.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "deltaworks/dtype.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks::testing {

template <class T>
T poison() {
  if constexpr (std::is_same_v<T, std::int32_t>) {
    return std::numeric_limits<T>::min();
  } else {
    return from_float<T>(std::numeric_limits<float>::quiet_NaN());
  }
}

template <class T>
class Buffer {
 public:
  static constexpr std::size_t kGuard = 64;

  explicit Buffer(std::int64_t size)
      : size_(static_cast<std::size_t>(size)), memory_(size_ + 2 * kGuard, poison<T>()) {}
  explicit Buffer(const std::vector<T>& values) : Buffer(static_cast<std::int64_t>(values.size())) {
    if (!values.empty()) std::memcpy(data(), values.data(), values.size() * sizeof(T));
  }
  Buffer(const Buffer&) = default;
  ~Buffer() {
    const T guard = poison<T>();
    for (std::size_t i = 0; i < kGuard; ++i) {
      const bool intact = std::memcmp(&memory_[i], &guard, sizeof(T)) == 0 &&
                          std::memcmp(&memory_[kGuard + size_ + i], &guard, sizeof(T)) == 0;
      if (!intact) {
        ADD_FAILURE() << "wrote outside a buffer of " << size_ << " elements";
        break;
      }
    }
  }

  T* data() { return memory_.data() + kGuard; }
  const T* data() const { return memory_.data() + kGuard; }
  std::int64_t size() const { return static_cast<std::int64_t>(size_); }
  std::vector<T> values() const { return {data(), data() + size_}; }

  template <std::size_t Rank>
  View<T, Rank> view(const std::array<std::int64_t, Rank>& extents) {
    return {data(), extents};
  }

 private:
  std::size_t size_;
  std::vector<T> memory_;
};

// A view of a vector; the vector must outlive it.
template <std::size_t Rank, class T>
View<const T, Rank> view_of(const std::vector<T>& values,
                            const std::array<std::int64_t, Rank>& extents) {
  return {values.data(), extents};
}

}  // namespace deltaworks::testing

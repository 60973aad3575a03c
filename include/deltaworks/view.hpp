/// A non-owning multi-dimensional array: pointer, extents and the distance between its rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace deltaworks {

/// Row-major view of rank >= 1. All dimensions but the first are dense; rows (the first dimension)
/// may be `row_stride` >= row size elements apart, so that a slice of a wider matrix needs no copy.
template <class T, std::size_t Rank>
class View {
  static_assert(Rank >= 1);

 public:
  using Extents = std::array<std::int64_t, Rank>;

  constexpr View() = default;
  constexpr View(T* data, const Extents& extents) : View(data, extents, row_size(extents)) {}
  constexpr View(T* data, const Extents& extents, std::int64_t row_stride)
      : data_(data), extents_(extents), row_stride_(row_stride) {}
  /// A view of mutable elements reads as one of const elements.
  template <class U>
  requires std::is_same_v<const U, T>
  constexpr View(const View<U, Rank>& other)
      : View(other.data(), other.extents(), other.row_stride()) {}

  constexpr T* data() const { return data_; }
  constexpr const Extents& extents() const { return extents_; }
  constexpr std::int64_t extent(std::size_t dim) const { return extents_[dim]; }
  /// Elements from one row to the next.
  constexpr std::int64_t row_stride() const { return row_stride_; }
  /// Elements in one row.
  constexpr std::int64_t row_size() const { return row_size(extents_); }
  constexpr std::int64_t size() const { return extents_[0] * row_size(); }
  constexpr bool is_dense() const { return row_stride_ == row_size() || extents_[0] <= 1; }
  constexpr T* row(std::int64_t index) const { return data_ + index * row_stride_; }

  template <class... Index>
  requires(sizeof...(Index) == Rank) constexpr T& operator()(Index... index) const {
    const Extents at{static_cast<std::int64_t>(index)...};
    std::int64_t inner = 0;
    for (std::size_t dim = 1; dim < Rank; ++dim) inner = inner * extents_[dim] + at[dim];
    return data_[at[0] * row_stride_ + inner];
  }

 private:
  // Unsigned, so that extents whose product has no 64 bits wrap: the operators refuse them by name.
  static constexpr std::int64_t row_size(const Extents& extents) {
    std::uint64_t size = 1;
    for (std::size_t dim = 1; dim < Rank; ++dim) size *= static_cast<std::uint64_t>(extents[dim]);
    return static_cast<std::int64_t>(size);
  }

  T* data_ = nullptr;
  Extents extents_{};
  std::int64_t row_stride_ = 0;
};

/// An operand that may be left out.
template <class T, std::size_t Rank>
using OptionalView = std::optional<View<T, Rank>>;

}  // namespace deltaworks

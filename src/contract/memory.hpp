// The memory of one call: every operand is listed once, and from the list follow the checks and what
// access_ranges reports.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "deltaworks/access.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks::contract {

class CallMemory {
 public:
  explicit CallMemory(std::string_view op) : op_(op) {}

  // A view of constant elements is read, one of others written. Throws InvalidArgument when it has
  // elements but no memory, or rows that overlap.
  template <class T, std::size_t Rank>
  CallMemory& add(std::string_view argument, const View<T, Rank>& view) {
    return add(argument, view, std::is_const_v<T> ? Access::kRead : Access::kWrite);
  }
  template <class T, std::size_t Rank>
  CallMemory& add(std::string_view argument, const std::optional<View<T, Rank>>& view) {
    return view ? add(argument, *view) : *this;
  }
  template <class T, std::size_t Rank>
  CallMemory& add(std::string_view argument, const View<T, Rank>& view, Access access) {
    add({argument, view.extents().data(), Rank, view.row_size(), view.row_stride()}, view.data(),
        sizeof(T), access);
    return *this;
  }

  // Throws InvalidArgument when what the call writes overlaps another operand. The two of a pair may
  // be exactly the same memory.
  using Pair = std::pair<std::string_view, std::string_view>;
  void check_apart(std::initializer_list<Pair> same = {}) const;

  std::vector<AccessRange> ranges() const;

 private:
  static constexpr std::size_t kMaxOperands = 24;

  struct Extents {
    std::string_view argument;
    const std::int64_t* extents;
    std::size_t rank;
    std::int64_t row_size, row_stride;
  };
  void add(const Extents& extents, const void* data, std::size_t element_bytes, Access access);

  std::string_view op_;
  std::array<AccessRange, kMaxOperands> ranges_{};
  std::size_t count_ = 0;
};

}  // namespace deltaworks::contract

// Checks of argument values and memory, for calls whose operands lie in host memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "contract/tensor.hpp"
#include "deltaworks/error.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks::contract {

// The geometry of an outcome, or InvalidArgument with its reason.
template <class Geometry>
const Geometry& value_or_throw(const Outcome<Geometry>& outcome) {
  if (const auto* reason = std::get_if<std::string>(&outcome)) throw InvalidArgument(*reason);
  return std::get<Geometry>(outcome);
}

// cu_seqlens starts at 0, never decreases, ends at `tokens`.
void check_cu_seqlens(std::string_view op, const View<const std::int32_t, 1>& cu_seqlens,
                      std::int64_t tokens);

// Every element lies in [low, high].
void check_range(std::string_view op, std::string_view argument,
                 const View<const std::int32_t, 1>& values, std::int64_t low, std::int64_t high);

// Slots of a state pool: all below `slots`, none written by two sequences; in place, none written
// by one sequence and read by another. A sequence with a negative slot takes no part; one with
// `fresh` != 0 reads nothing.
void check_pool(std::string_view op, const View<const std::int32_t, 1>& slots_in,
                const View<const std::int32_t, 1>& slots_out,
                const OptionalView<const std::int32_t, 1>& fresh, std::int64_t slots,
                bool in_place);

// Memory that a call touches, for overlap checks.
struct Range {
  std::string_view argument;
  const void* begin = nullptr;
  const void* end = nullptr;

  bool overlaps(
      const Range& other) const {  // std::less: the ranges may come from different allocations
    return begin != end && other.begin != other.end && std::less<>()(begin, other.end) &&
           std::less<>()(other.begin, end);
  }
  bool equals(const Range& other) const { return begin == other.begin && end == other.end; }
};

template <class T, std::size_t Rank>
Range range_of(std::string_view argument, const View<T, Rank>& view) {
  if (view.size() == 0) return {argument, view.data(), view.data()};
  return {argument, view.data(), view.row(view.extent(0) - 1) + view.row_size()};
}

template <class T, std::size_t Rank>
Range range_of(std::string_view argument, const std::optional<View<T, Rank>>& view) {
  return view ? range_of(argument, *view) : Range{argument};
}

// No written range overlaps a read one or another written one. `in_place`, a read range, may be
// exactly `twin`, a written one.
void check_overlap(std::string_view op, std::initializer_list<Range> read,
                   std::initializer_list<Range> written, std::string_view in_place = {},
                   std::string_view twin = {});

// No extent is negative (a view, unlike an operand of a graph, knows them all), and the elements can
// be counted.
void check_extents(std::string_view op, std::string_view argument, const std::int64_t* extents,
                   std::size_t rank);

// A view with elements has memory, and its rows do not overlap.
void check_memory(std::string_view op, std::string_view argument, const void* data,
                  std::int64_t rows, std::int64_t row_size, std::int64_t row_stride);

template <class T, std::size_t Rank>
void check_memory(std::string_view op, std::string_view argument, const View<T, Rank>& view) {
  check_extents(op, argument, view.extents().data(), Rank);
  check_memory(op, argument, view.data(), view.extent(0), view.row_size(), view.row_stride());
}

template <class T, std::size_t Rank>
void check_memory(std::string_view op, std::string_view argument,
                  const std::optional<View<T, Rank>>& view) {
  if (view) check_memory(op, argument, *view);
}

}  // namespace deltaworks::contract

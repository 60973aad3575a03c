#include "contract/memory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "deltaworks/error.hpp"

namespace deltaworks::contract {

namespace {

constexpr std::int64_t kLargest = std::int64_t{1} << 60;  // elements, so that bytes can be counted

// No extent is negative (a view, unlike an operand of a graph, knows them all), and the elements can
// be counted.
void check_extents(std::string_view op, std::string_view argument, const std::int64_t* extents,
                   std::size_t rank) {
  std::int64_t size = 1;
  for (std::size_t dim = 0; dim < rank; ++dim) {
    if (extents[dim] < 0) {
      throw InvalidArgument(fmt::format("{}: {} has extent {} in dimension {}, expected 0 or more",
                                        op, argument, extents[dim], dim));
    }
    if (__builtin_mul_overflow(size, std::max<std::int64_t>(extents[dim], 1), &size) ||
        size > kLargest) {
      throw InvalidArgument(fmt::format("{}: {} has shape [{}], expected less than 2^60 elements",
                                        op, argument, fmt::join(extents, extents + rank, ", ")));
    }
  }
}

void check_rows(std::string_view op, std::string_view argument, const void* data, std::int64_t rows,
                std::int64_t row_size, std::int64_t row_stride) {
  if (rows > 1 && row_stride < row_size) {
    throw InvalidArgument(fmt::format("{}: {} has row stride {}, expected at least the row size {}",
                                      op, argument, row_stride, row_size));
  }
  std::int64_t size = 0;
  if (rows > 1 && (__builtin_mul_overflow(row_stride, rows, &size) || size > kLargest)) {
    throw InvalidArgument(
        fmt::format("{}: {} has row stride {}, expected less than 2^60 elements "
                    "for all {} rows",
                    op, argument, row_stride, rows));
  }
  if (data == nullptr && rows > 0 && row_size > 0) {
    throw InvalidArgument(
        fmt::format("{}: {} has no memory for {} x {} elements", op, argument, rows, row_size));
  }
}

// Addresses, because the ranges may come from different allocations.
std::uintptr_t begin_of(const AccessRange& range) {
  return reinterpret_cast<std::uintptr_t>(range.begin);
}
std::uintptr_t end_of(const AccessRange& range) { return begin_of(range) + range.size_bytes; }

bool overlap(const AccessRange& a, const AccessRange& b) {
  return begin_of(a) < end_of(b) && begin_of(b) < end_of(a);
}

}  // namespace

void CallMemory::add(const Extents& of, const void* data, std::size_t element_bytes,
                     Access access) {
  check_extents(op_, of.argument, of.extents, of.rank);
  const std::int64_t rows = of.extents[0];
  check_rows(op_, of.argument, data, rows, of.row_size, of.row_stride);
  if (rows == 0 || of.row_size == 0) return;
  const auto elements = static_cast<std::size_t>((rows - 1) * of.row_stride + of.row_size);
  ranges_.at(count_++) = {of.argument, data, elements * element_bytes, access};
}

void CallMemory::check_apart(std::initializer_list<Pair> same) const {
  const auto may_share = [same](const AccessRange& a, const AccessRange& b) {
    const bool is_pair = std::any_of(same.begin(), same.end(), [&](const Pair& pair) {
      return (a.argument == pair.first && b.argument == pair.second) ||
             (a.argument == pair.second && b.argument == pair.first);
    });
    return is_pair && a.begin == b.begin && a.size_bytes == b.size_bytes;
  };
  for (std::size_t i = 0; i < count_; ++i) {
    const AccessRange& written = ranges_[i];
    if (written.access == Access::kRead) continue;
    for (std::size_t j = 0; j < count_; ++j) {
      const AccessRange& other = ranges_[j];
      if (i == j || !overlap(written, other) || may_share(written, other)) continue;
      throw InvalidArgument(fmt::format("{}: {} overlaps {}, expected separate memory", op_,
                                        written.argument, other.argument));
    }
  }
}

std::vector<AccessRange> CallMemory::ranges() const {
  return {ranges_.begin(), ranges_.begin() + static_cast<std::ptrdiff_t>(count_)};
}

}  // namespace deltaworks::contract

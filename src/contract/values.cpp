#include "contract/values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace deltaworks::contract {

void check_cu_seqlens(std::string_view op, const View<const std::int32_t, 1>& cu_seqlens,
                      std::int64_t tokens) {
  const std::int64_t sequences = cu_seqlens.extent(0) - 1;
  if (cu_seqlens(0) != 0) {
    throw InvalidArgument(
        fmt::format("{}: cu_seqlens starts at {}, expected 0", op, cu_seqlens(0)));
  }
  for (std::int64_t b = 0; b < sequences; ++b) {
    if (cu_seqlens(b + 1) < cu_seqlens(b)) {
      throw InvalidArgument(
          fmt::format("{}: cu_seqlens falls from {} to {} at sequence {}, "
                      "expected offsets that never decrease",
                      op, cu_seqlens(b), cu_seqlens(b + 1), b));
    }
  }
  if (cu_seqlens(sequences) != tokens) {
    throw InvalidArgument(
        fmt::format("{}: cu_seqlens ends at {}, expected {}, the number of tokens", op,
                    cu_seqlens(sequences), tokens));
  }
}

void check_range(std::string_view op, std::string_view argument,
                 const View<const std::int32_t, 1>& values, std::int64_t low, std::int64_t high) {
  for (std::int64_t i = 0; i < values.extent(0); ++i) {
    if (values(i) < low || values(i) > high) {
      throw InvalidArgument(fmt::format("{}: {}[{}] is {}, expected {} to {}", op, argument, i,
                                        values(i), low, high));
    }
  }
}

void check_pool(std::string_view op, const View<const std::int32_t, 1>& slots_in,
                const View<const std::int32_t, 1>& slots_out,
                const OptionalView<const std::int32_t, 1>& fresh, std::int64_t slots,
                bool in_place) {
  constexpr std::int64_t kNobody = -1;
  std::vector<std::int64_t> writer(static_cast<std::size_t>(slots), kNobody);
  for (const auto& [argument, view] :
       {std::pair{"slots_out", &slots_out}, {"slots_in", &slots_in}}) {
    const bool writes = view == &slots_out;
    for (std::int64_t b = 0; b < view->extent(0); ++b) {
      const std::int64_t slot = (*view)(b);
      if (slot >= slots) {
        throw InvalidArgument(
            fmt::format("{}: {}[{}] is {}, expected less than {}, the pool's slots", op, argument,
                        b, slot, slots));
      }
      const bool skipped = slots_in(b) < 0 || slots_out(b) < 0;
      const bool reads_nothing = !writes && (!in_place || (fresh && (*fresh)(b) != 0));
      if (skipped || reads_nothing) continue;
      std::int64_t& owner = writer[static_cast<std::size_t>(slot)];
      if (owner != kNobody && owner != b) {
        throw InvalidArgument(
            fmt::format("{}: {}[{}] is {}, which sequence {} writes, expected "
                        "a slot that no other sequence writes",
                        op, argument, b, slot, owner));
      }
      if (writes) owner = b;
    }
  }
}

void check_overlap(std::string_view op, std::initializer_list<Range> read,
                   std::initializer_list<Range> written, std::string_view in_place,
                   std::string_view twin) {
  const auto refuse = [op](const Range& a, const Range& b) {
    throw InvalidArgument(
        fmt::format("{}: {} overlaps {}, expected separate memory", op, a.argument, b.argument));
  };
  for (const Range* w = written.begin(); w != written.end(); ++w) {
    for (const Range& r : read) {
      const bool is_pair = r.argument == in_place && w->argument == twin;
      if (w->overlaps(r) && !(is_pair && w->equals(r))) refuse(*w, r);
    }
    for (const Range* other = w + 1; other != written.end(); ++other) {
      if (w->overlaps(*other)) refuse(*w, *other);
    }
  }
}

void check_extents(std::string_view op, std::string_view argument, const std::int64_t* extents,
                   std::size_t rank) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 60;
  std::int64_t size = 1;
  for (std::size_t dim = 0; dim < rank; ++dim) {
    if (extents[dim] < 0) {
      throw InvalidArgument(fmt::format("{}: {} has extent {} in dimension {}, expected 0 or more",
                                        op, argument, extents[dim], dim));
    }
    if (extents[dim] > kLargest / std::max<std::int64_t>(size, 1)) {
      throw InvalidArgument(fmt::format("{}: {} has shape [{}], expected less than 2^60 elements",
                                        op, argument, fmt::join(extents, extents + rank, ", ")));
    }
    size *= std::max<std::int64_t>(extents[dim], 1);
  }
}

void check_memory(std::string_view op, std::string_view argument, const void* data,
                  std::int64_t rows, std::int64_t row_size, std::int64_t row_stride) {
  if (rows > 1 && row_stride < row_size) {
    throw InvalidArgument(fmt::format("{}: {} has row stride {}, expected at least the row size {}",
                                      op, argument, row_stride, row_size));
  }
  if (rows > 1 && row_stride > (std::int64_t{1} << 60) / rows) {
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

}  // namespace deltaworks::contract

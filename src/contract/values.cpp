#include "contract/values.hpp"

#include <fmt/format.h>

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

}  // namespace deltaworks::contract

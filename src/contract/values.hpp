// Checks of argument values, for calls whose operands lie in host memory.
#pragma once

#include <cstdint>
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

}  // namespace deltaworks::contract

/// The memory that a call would touch, for whoever orders calls: a graph recorder, a scheduler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace deltaworks {

enum class Access : std::uint8_t { kRead, kWrite, kReadWrite };

/// What access_ranges(args), which stands beside every operator, lists for each operand that is given
/// and not empty. It reads no operand, and throws InvalidArgument where the operator would refuse the
/// call for the shapes or places of its operands.
///
/// The bytes of one operand, from the first element to the end of the last: the gaps between pitched
/// rows, and slots of a pool that the call leaves alone, count as touched.
struct AccessRange {
  std::string_view argument;  ///< the field of the call's arguments, a literal
  const void* begin = nullptr;
  std::size_t size_bytes = 0;
  Access access = Access::kRead;
};

}  // namespace deltaworks

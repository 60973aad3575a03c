// Run-time values to constants.
#pragma once

#include <utility>

namespace deltaworks::cuda {

// Calls body.template operator()<value>() for the one of kValues that equals value; false when none
// does.
template <auto... kValues, class Value, class Body>
bool visit_constant(Value value, const Body& body) {
  return ((value == kValues && (body.template operator()<kValues>(), true)) || ...);
}

}  // namespace deltaworks::cuda

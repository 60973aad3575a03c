/// The one exception of this library.
#pragma once

#include <stdexcept>

#include "deltaworks/export.hpp"

namespace deltaworks {

/// An argument breaks the operator's contract. The message names operator, argument, what came and
/// what was expected; nothing has been written when it is thrown.
class DELTAWORKS_EXPORT InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace deltaworks

/// The exceptions of this library.
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

/// CUDA failed: the message has its words and the place.
class DELTAWORKS_EXPORT DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace deltaworks

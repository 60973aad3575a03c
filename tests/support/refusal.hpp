// What a call that must be refused says.
#pragma once

#include <string>

#include "deltaworks/error.hpp"

namespace deltaworks::testing {

// The message of the InvalidArgument that `call` throws, or "no error".
template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace deltaworks::testing

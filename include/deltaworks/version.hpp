/// Version of this library.
#pragma once

#include "deltaworks/export.hpp"

namespace deltaworks {

/// "major.minor.patch", as in CMakeLists.txt.
DELTAWORKS_EXPORT const char* version();

}  // namespace deltaworks

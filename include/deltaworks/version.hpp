/// Version of this library.
#pragma once

namespace deltaworks {

/// "major.minor.patch", as in CMakeLists.txt.
const char* version();

}  // namespace deltaworks

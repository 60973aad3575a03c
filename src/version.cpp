#include "deltaworks/version.hpp"

namespace deltaworks {

const char* version() { return DELTAWORKS_VERSION; }

}  // namespace deltaworks

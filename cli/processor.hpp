#pragma once

#include <string>

namespace deltaworks::cli {

// "AMD EPYC 7763", or "unknown".
std::string processor_name();

}  // namespace deltaworks::cli

#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace deltaworks::cli {

// "AMD EPYC 7763", or "unknown".
std::string processor_name();

// Bytes of the first core's caches by name ("L1d", "L2", "L3"), where the system tells.
std::map<std::string, std::size_t> cache_bytes();

}  // namespace deltaworks::cli

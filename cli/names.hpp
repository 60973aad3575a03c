// Lists of names and sizes as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltaworks::cli {

// Names that differ in their first number become one: "/layers.{0-2,4}/conv". In order of the first.
std::vector<std::string> merged(const std::vector<std::string>& names);

// "640 B", "1.5 MiB".
std::string bytes_text(std::int64_t bytes);

}  // namespace deltaworks::cli

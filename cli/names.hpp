// Lists of names and sizes as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltaworks::cli {

// Names that differ in their first number become one: "/layers.{0-2,4}/conv". In order of the first.
std::vector<std::string> merged(const std::vector<std::string>& names);

// Without what a terminal obeys: a control character becomes "\\x1b".
std::string printable(std::string_view text);

// "640 B", "1.5 MiB".
std::string bytes_text(std::int64_t bytes);

}  // namespace deltaworks::cli

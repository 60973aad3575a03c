#include "names.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace deltaworks::cli {

namespace {

constexpr const char* kDigits = "0123456789";

// "0-2,4"
std::string ranges(const std::vector<std::int64_t>& numbers) {
  std::vector<std::string> parts;
  for (std::size_t first = 0, last = 0; first < numbers.size(); first = ++last) {
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    parts.push_back(first == last ? fmt::format("{}", numbers[first])
                                  : fmt::format("{}-{}", numbers[first], numbers[last]));
  }
  return fmt::format("{}", fmt::join(parts, ","));
}

}  // namespace

std::vector<std::string> merged(const std::vector<std::string>& names) {
  struct Group {
    std::string name, before, after;  // of its first
    std::vector<std::int64_t> numbers;
  };
  std::vector<Group> groups;
  std::map<std::pair<std::string, std::string>, std::size_t> known;
  for (const std::string& name : names) {
    constexpr std::size_t kLongest = 9;  // digits, of a number that is one
    const std::size_t begin = name.find_first_of(kDigits);
    const std::size_t end = std::min(name.find_first_not_of(kDigits, begin), name.size());
    if (begin == std::string::npos || end - begin > kLongest) {
      groups.push_back({name, {}, {}, {}});
      continue;
    }
    const std::pair around{name.substr(0, begin), name.substr(end)};
    const auto [found, is_new] = known.try_emplace(around, groups.size());
    if (is_new) groups.push_back({name, around.first, around.second, {}});
    groups[found->second].numbers.push_back(std::stoll(name.substr(begin, end - begin)));
  }
  std::vector<std::string> result;
  for (const Group& group : groups) {
    const bool alone = group.numbers.size() < 2;
    result.push_back(
        alone ? group.name
              : fmt::format("{}{{{}}}{}", group.before, ranges(group.numbers), group.after));
  }
  return result;
}

std::string printable(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // the other controls, as UTF-8
      result += fmt::format("\\x{:02x}", next);
      ++i;
    } else {
      result += text[i];
    }
  }
  return result;
}

std::string bytes_text(std::int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.{}f} {}", value, value < 100 ? 1 : 0, kUnits[unit]);
}

}  // namespace deltaworks::cli

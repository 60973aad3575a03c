#include "processor.hpp"

#include <fmt/format.h>

#include <fstream>

namespace deltaworks::cli {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

std::map<std::string, std::size_t> cache_bytes() {
  std::map<std::string, std::size_t> found;
  for (int index = 0;; ++index) {
    const auto folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    const auto word = [&](const char* name) {
      std::string text;
      std::ifstream(folder + name) >> text;
      return text;
    };
    const std::string size = word("size"), type = word("type");  // "48K", "Data"
    if (size.empty()) return found;
    const std::string suffix = type == "Data" ? "d" : type == "Instruction" ? "i" : "";
    const std::size_t unit = size.back() == 'M' ? 1 << 20 : size.back() == 'K' ? 1 << 10 : 1;
    found[fmt::format("L{}{}", word("level"), suffix)] = std::stoul(size) * unit;
  }
}

}  // namespace deltaworks::cli

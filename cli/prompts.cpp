#include "prompts.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

namespace deltaworks::cli {

std::vector<std::string> parse_prompt_lines(const std::string& name, std::string_view text) {
  std::vector<std::string> prompts;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto value = nlohmann::json::parse(line, nullptr, false);
    const bool wrapped = value.is_object() && value.contains("prompt");
    const auto& prompt = wrapped ? value.at("prompt") : value;
    if (!prompt.is_string()) {
      throw std::runtime_error(fmt::format(
          "{}:{}: expected a JSON string, or an object with a string \"prompt\"", name, number));
    }
    prompts.push_back(prompt.get<std::string>());
  }
  if (prompts.empty()) throw std::runtime_error(name + " has no prompts");
  return prompts;
}

std::string read_file(const std::string& path) {
  const bool standard = path == "-";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(
      standard ? nullptr : std::fopen(path.c_str(), "rb"),
      [](std::FILE* file) { return std::fclose(file); });
  std::FILE* file = standard ? stdin : opened.get();
  std::string text;
  char part[4096];
  for (std::size_t size = 1; file != nullptr && size > 0; text.append(part, size)) {
    size = std::fread(part, 1, sizeof part, file);
  }
  // Opening a folder succeeds and reading it fails.
  if (file == nullptr || std::ferror(file) != 0) {
    throw std::runtime_error(fmt::format("cannot read {}: {}", standard ? "standard input" : path,
                                         std::strerror(errno)));
  }
  return text;
}

std::vector<std::int32_t> byte_tokens(std::string_view text, std::int32_t first_token) {
  std::vector<std::int32_t> tokens{first_token};
  tokens.reserve(text.size() + 1);
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

}  // namespace deltaworks::cli

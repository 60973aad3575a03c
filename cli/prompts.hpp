// Where prompts come from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltaworks::cli {

// One prompt a line: a JSON string, or an object with a string "prompt"; empty lines are skipped.
// Throws std::runtime_error naming the line.
std::vector<std::string> parse_prompt_lines(const std::string& name, std::string_view text);

// The whole file, or standard input for "-". Throws std::runtime_error.
std::string read_file(const std::string& path);

// The package's first token, with which every training document began, and the bytes as tokens.
std::vector<std::int32_t> byte_tokens(std::string_view text, std::int32_t first_token);

}  // namespace deltaworks::cli

// What every command is made of: its entry in the command table and its two kinds of failure.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace deltaworks::cli {

// The call was wrong: exit 2. Any other exception means that the work failed: exit 1.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// For CLI::Option::transform: a decimal number from low to high, or a message that says so.
template <class T>
CLI::Validator number(T low, T high) {
  const std::string range = fmt::format("{} to {}", low, high);
  return CLI::Validator(
      [low, high, range](std::string& text) -> std::string {
        constexpr std::size_t kShown = 40;
        T value{};
        const char* end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, value);
        // Not a number compares as false.
        if (error == std::errc() && stop == end && value >= low && value <= high) {
          text = fmt::format("{}", value);  // CLI11 would read 010 as octal
          return {};
        }
        return fmt::format("\"{}\" is not {} from {}",
                           text.size() > kShown ? text.substr(0, kShown) + "…" : text,
                           std::is_integral_v<T> ? "an integer" : "a number", range);
      },
      range);
}

using Action = std::function<int()>;  // returns the exit status

// Each adds one command to the table; naming the command on the command line sets `chosen`.
void add_generate(CLI::App& app, Action& chosen);
void add_info(CLI::App& app, Action& chosen);
void add_check(CLI::App& app, Action& chosen);
void add_bench(CLI::App& app, Action& chosen);
void add_explain(CLI::App& app, Action& chosen);

}  // namespace deltaworks::cli

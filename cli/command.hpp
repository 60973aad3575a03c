// What every command is made of: its entry in the command table and its two kinds of failure.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>

namespace deltaworks::cli {

// The call was wrong: exit 2. Any other exception means that the work failed: exit 1.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

using Action = std::function<int()>;  // returns the exit status

// Each adds one command to the table; naming the command on the command line sets `chosen`.
void add_generate(CLI::App& app, Action& chosen);
void add_info(CLI::App& app, Action& chosen);
void add_check(CLI::App& app, Action& chosen);

}  // namespace deltaworks::cli

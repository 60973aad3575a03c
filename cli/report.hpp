// What generate says about its work: on standard error for people, as JSON for programs.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "decode.hpp"
#include "profile.hpp"

namespace deltaworks::cli {

// One prompt. `plain` is the decoding without drafts, with --verify.
struct Outcome {
  std::string prompt;
  Generation drafted, plain;
  bool equal = true;
};

struct Totals {
  std::int64_t prompts = 0, equal = 0, bytes = 0;
  Generation drafted, plain;

  Totals& operator+=(const Outcome& outcome);
};

// Where the time goes, from a second run under ONNX Runtime's profiler.
struct OperatorShares {
  std::vector<OperatorTime> times;
  double slowdown = 1;  // of a call, through profiling
};

void print_prompt_progress(std::int64_t done, std::int64_t total);
void print_stats(const Totals& totals);
void print_operators(const OperatorShares& shares);
void print_verify_line(const Outcome& outcome, std::size_t number, std::size_t count);
void print_verify_total(const Totals& totals);
void print_difference(const Outcome& outcome);

nlohmann::json outcome_json(const Outcome& outcome, bool verified);
nlohmann::json total_json(const Totals& totals, bool verified);
nlohmann::json operators_json(const OperatorShares& shares);

// The first byte that differs, or the length of the shorter text.
std::size_t first_difference(std::string_view a, std::string_view b);

// Writes to standard output at once; throws std::runtime_error when that fails.
void write_output(std::string_view text);
// One line; bytes that are no UTF-8 become U+FFFD.
void write_json(const nlohmann::json& value);

}  // namespace deltaworks::cli

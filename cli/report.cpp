#include "report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace deltaworks::cli {

namespace {

using nlohmann::json;

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

std::string excerpt(std::string_view text, std::size_t at) {
  if (at >= text.size()) return "the end";
  // json's own quoting shows any byte.
  return json(std::string(text.substr(at, 20))).dump(-1, ' ', true, json::error_handler_t::replace);
}

json counts_json(const Generation& g) {
  return {{"prompt_tokens", g.prompt_tokens},
          {"prompt_tokens_per_second", g.prompt_tokens_per_second()},
          {"tokens_per_second", g.tokens_per_second()},
          {"calls", g.calls},
          {"verify_calls", g.verify_calls},
          {"drafted", g.drafted},
          {"accepted", g.accepted},
          {"mean_accepted_length", g.mean_accepted_length()},
          {"draft_seconds", g.draft_seconds}};
}

// "mean accepted length 2.31, 812 tokens/s; plain 402 tokens/s"
std::string comparison(const Generation& drafted, const Generation& plain) {
  const std::string drafts =
      drafted.verify_calls == 0
          ? ""
          : fmt::format("mean accepted length {:.2f}, ", drafted.mean_accepted_length());
  return fmt::format("{}{:.0f} tokens/s; plain {:.0f} tokens/s", drafts,
                     drafted.tokens_per_second(), plain.tokens_per_second());
}

}  // namespace

Totals& Totals::operator+=(const Outcome& outcome) {
  prompts += 1;
  equal += outcome.equal ? 1 : 0;
  bytes += static_cast<std::int64_t>(outcome.drafted.text.size());
  drafted += outcome.drafted;
  plain += outcome.plain;
  return *this;
}

std::size_t first_difference(std::string_view a, std::string_view b) {
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return static_cast<std::size_t>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

void print_prompt_progress(std::int64_t done, std::int64_t total) {
  constexpr std::int64_t kWorthWaitingFor = 2048;  // tokens
  if (total < kWorthWaitingFor || isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\rprompt: {} of {} tokens", done, total);
  if (done == total) fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
}

void print_stats(const Totals& totals) {
  const Generation& g = totals.drafted;
  fmt::print(stderr, "prompt      {} tokens in {:.3f} s: {:.0f} tokens/s\n", g.prompt_tokens,
             g.prompt_seconds, g.prompt_tokens_per_second());
  fmt::print(stderr, "generation  {} tokens in {:.3f} s: {:.0f} tokens/s, {:.2f} tokens a call\n",
             totals.bytes, g.seconds, g.tokens_per_second(),
             share(static_cast<double>(g.later_tokens), static_cast<double>(g.calls)));
  if (g.verify_calls == 0) return;
  fmt::print(stderr,
             "drafts      {} of {} calls verify, {} of {} drafts accepted, "
             "mean accepted length {:.2f}\n",
             g.verify_calls, g.calls, g.accepted, g.drafted, g.mean_accepted_length());
  fmt::print(stderr, "drafting    {:.3f} s, {:.1f} % of the generation\n", g.draft_seconds,
             100 * share(g.draft_seconds, g.seconds));
}

void print_operators(const OperatorShares& shares) {
  double total = 0;
  for (const OperatorTime& time : shares.times) total += time.seconds;
  fmt::print(stderr, "operators   (run again under the profiler, {:.1f} times as slow)\n",
             shares.slowdown);
  double others = 0;
  for (const OperatorTime& time : shares.times) {
    const double part = share(time.seconds, total);
    if (part < 0.01) {
      others += part;
    } else {
      fmt::print(stderr, "  {:5.1f} %  {}, {} calls of {:.1f} us\n", 100 * part, time.op_type,
                 time.calls, 1e6 * share(time.seconds, static_cast<double>(time.calls)));
    }
  }
  if (others > 0) fmt::print(stderr, "  {:5.1f} %  others\n", 100 * others);
}

void print_verify_line(const Outcome& outcome, std::size_t number, std::size_t count) {
  fmt::print(stderr, "prompt {} of {}: {}, {} bytes, {}\n", number, count,
             outcome.equal ? "OK" : "DIFFERS", outcome.drafted.text.size(),
             comparison(outcome.drafted, outcome.plain));
}

void print_verify_total(const Totals& totals) {
  fmt::print(stderr, "verify: {} of {} texts equal plain decoding ({} bytes); {}\n", totals.equal,
             totals.prompts, totals.bytes, comparison(totals.drafted, totals.plain));
}

void print_difference(const Outcome& outcome) {
  const std::size_t at = first_difference(outcome.drafted.text, outcome.plain.text);
  fmt::print(stderr, "verify: byte {} differs: with drafts {}, plainly {}\n", at,
             excerpt(outcome.drafted.text, at), excerpt(outcome.plain.text, at));
}

json outcome_json(const Outcome& outcome, bool verified) {
  const std::string& text = outcome.drafted.text;
  json result = counts_json(outcome.drafted);
  result["prompt"] = outcome.prompt;
  result["text"] = text;
  // The text's bytes, exactly: JSON text cannot hold every byte.
  std::vector<int> bytes;
  for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  result["tokens"] = bytes;
  result["generated_tokens"] = text.size();
  result["end"] = outcome.drafted.ended ? "end of document" : "max tokens";
  if (verified) {
    result["verify"] = {{"equal", outcome.equal},
                        {"plain_tokens_per_second", outcome.plain.tokens_per_second()}};
  }
  return result;
}

json total_json(const Totals& totals, bool verified) {
  json result = counts_json(totals.drafted);
  result["prompts"] = totals.prompts;
  result["generated_tokens"] = totals.bytes;
  if (verified) {
    result["verify"] = {{"equal", totals.equal},
                        {"plain_tokens_per_second", totals.plain.tokens_per_second()}};
  }
  return {{"total", result}};
}

json operators_json(const OperatorShares& shares) {
  json list = json::array();
  for (const OperatorTime& time : shares.times) {
    list.push_back({{"op_type", time.op_type}, {"calls", time.calls}, {"seconds", time.seconds}});
  }
  return {{"profiling_slowdown", shares.slowdown}, {"times", list}};
}

void write_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw std::runtime_error(
        fmt::format("cannot write to standard output: {}", std::strerror(errno)));
  }
}

void write_json(const json& value) {
  const std::string line = value.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  write_output(line);
}

}  // namespace deltaworks::cli

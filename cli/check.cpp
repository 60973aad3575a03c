// deltaworks check: every operator on every instruction set against the float64 reference.
#include "check.hpp"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "command.hpp"
#include "deltaworks/device.hpp"
#include "report.hpp"

namespace deltaworks::cli {

namespace {

using nlohmann::json;

struct Operator {
  const char* name;
  void (*check)(Draw&, Measurements&);
};
constexpr Operator kOperators[] = {{"causal_conv_with_state", check_causal_conv_with_state},
                                   {"dflash2_dynamic_conv", check_dflash2_dynamic_conv},
                                   {"gated_delta_net", check_gated_delta_net},
                                   {"gated_delta_rates", check_gated_delta_rates},
                                   {"linear_attention", check_linear_attention},
                                   {"paged_attention", check_paged_attention},
                                   {"varlen_causal_conv", check_varlen_causal_conv}};
constexpr int kRounds = 5;  // of new operands

struct CheckOptions {
  std::string op;
  std::optional<std::uint64_t> seed;
  bool json = false;
};

Measurements measure(const CheckOptions& options, std::uint64_t seed) {
  Measurements measurements;
  for (const Operator& op : kOperators) {
    if (!options.op.empty() && options.op != op.name) continue;
    for (const std::string& target : cpu_targets()) {
      set_cpu_target(target);
      measurements.set(op.name, target);
      Draw draw(seed);  // the same operands on every instruction set
      for (int round = 0; round < kRounds; ++round) op.check(draw, measurements);
    }
  }
  set_cpu_target("");
  return measurements;
}

void print_table(const std::vector<Measurement>& all) {
  std::string header = fmt::format("{:<24}{:<10}{:<14}", "operator", "type", "result");
  for (const std::string& target : cpu_targets()) header += fmt::format("{:>10}", target);
  write_output(header + fmt::format("{:>10}\n", "allowed"));
  for (const Measurement& m : all) {
    std::string line = fmt::format("{:<24}{:<10}{:<14}", m.op, m.dtype, m.result);
    for (const std::string& target : cpu_targets()) {
      line += fmt::format("{:>10.1e}", m.errors.at(target));
    }
    write_output(line + fmt::format("{:>10.1e}{}\n", m.allowed, m.within() ? "" : "  TOO LARGE"));
  }
}

json to_json(const std::vector<Measurement>& all, std::uint64_t seed, bool within) {
  json results = json::array();
  for (const Measurement& m : all) {
    results.push_back({{"operator", m.op},
                       {"type", m.dtype},
                       {"result", m.result},
                       {"largest_error", m.errors},
                       {"allowed", m.allowed},
                       {"within", m.within()}});
  }
  return {{"seed", seed}, {"within", within}, {"results", results}};
}

int check(const CheckOptions& options) {
  const std::uint64_t seed = options.seed.value_or(
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()));
  const Measurements measurements = measure(options, seed);
  const auto& all = measurements.all();
  const bool within =
      std::all_of(all.begin(), all.end(), [](const Measurement& m) { return m.within(); });
  if (options.json) {
    write_json(to_json(all, seed, within));
  } else {
    print_table(all);
    fmt::print(stderr,
               "{}: largest errors relative to the largest value, over {} rounds of new "
               "operands (--seed {})\n",
               within ? "all within tolerance" : "NOT within tolerance", kRounds, seed);
  }
  return within ? 0 : 1;
}

}  // namespace

void Measurements::record(DType dtype, const std::string& result, double error, double allowed) {
  const std::string type(name(dtype));
  auto found = std::find_if(all_.begin(), all_.end(), [&](const Measurement& m) {
    return m.op == op_ && m.dtype == type && m.result == result;
  });
  if (found == all_.end()) found = all_.insert(found, Measurement{op_, type, result, allowed, {}});
  found->allowed = std::max(found->allowed, allowed);
  double& largest = found->errors[target_];
  largest = std::max(largest, error);
}

void add_check(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand(
      "check", "Run the operators on new random operands and compare with float64");
  const auto options = std::make_shared<CheckOptions>();
  std::vector<std::string> names;
  for (const Operator& op : kOperators) names.emplace_back(op.name);
  command->add_option("operator", options->op, "Only this one")->check(CLI::IsMember(names));
  command->add_option("--seed", options->seed, "Of the operands [the clock]")
      ->transform(number<std::uint64_t>(0, std::numeric_limits<std::uint64_t>::max()));
  command->add_flag("--json", options->json, "As one JSON object");
  command->callback([&chosen, options] { chosen = [options] { return check(*options); }; });
}

}  // namespace deltaworks::cli

#include "bench_report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "deltaworks/device.hpp"
#include "deltaworks/version.hpp"
#include "processor.hpp"
#include "report.hpp"

namespace deltaworks::cli {

namespace {

using nlohmann::json;

constexpr std::size_t kInCache = 1 << 20, kInMemory = 256 << 20;

const char* name_of(Bound::Kind kind) {
  switch (kind) {
    case Bound::Kind::kFma: return "fma peak";
    case Bound::Kind::kInPlace: return "update in place";
    case Bound::Kind::kRead: return "read";
    case Bound::Kind::kCopy: return "copy";
  }
  return "";
}

// Three digits: "2.47 us", "219 us", "12.4 ms", "1.69 s".
std::string duration(double us) {
  const char* unit = "us";
  if (us >= 1e6) {
    us /= 1e6, unit = "s ";
  } else if (us >= 1e4) {
    us /= 1e3, unit = "ms";
  }
  return fmt::format("{:.{}f} {}", us, us < 9.995 ? 2 : us < 99.95 ? 1 : 0, unit);
}

std::string rate(Bound::Kind kind, double rate) {
  return fmt::format("{:.1f} {}", rate / 1e9, kind == Bound::Kind::kFma ? "GFLOP/s" : "GB/s");
}

std::string line(const std::string& what, const std::string& type, const Timing& timing,
                 const std::string& last) {
  return fmt::format("  {:<42}{:<10}{:>9}{:>7.0f} %   {}\n", what, type, duration(timing.median_us),
                     100 * timing.spread, last);
}

json timing_json(const Timing& timing) {
  return {{"median_us", timing.median_us}, {"spread", timing.spread}};
}

double ratio(const Timing& ours, const Timing& theirs) { return theirs.median_us / ours.median_us; }

std::string times_as_long(const Timing& ours, const Timing& theirs) {
  const double times = ratio(ours, theirs);
  return fmt::format("{:.{}f} times as long", times, times < 2 ? 2 : 1);
}

std::string peer_lines(const std::string& our_name, const std::string& their_name,
                       const Timing& ours, const Timing& theirs) {
  return line(our_name, "", ours, "") + line(their_name, "", theirs, times_as_long(ours, theirs));
}

json peer_json(const std::string& name, const Timing& ours, const Timing& theirs) {
  return {{"name", name},
          {"ours", timing_json(ours)},
          {"theirs", timing_json(theirs)},
          {"ratio", ratio(ours, theirs)}};
}

}  // namespace

double ceiling(const Bound& bound, const bench::Effort& effort) {
  switch (bound.kind) {
    case Bound::Kind::kFma: return bench::fma_peak(effort);
    case Bound::Kind::kInPlace: return bench::in_place_bandwidth(bound.footprint, effort);
    case Bound::Kind::kRead: return bench::read_bandwidth(bound.footprint, effort);
    case Bound::Kind::kCopy: break;
  }
  return bench::copy_bandwidth(bound.footprint, effort);
}

bench::Sweep ceiling_sweep(const Bound& bound) {
  switch (bound.kind) {
    case Bound::Kind::kFma: return bench::fma_sweep();
    case Bound::Kind::kInPlace: return bench::in_place_sweep(bound.footprint);
    case Bound::Kind::kRead: return bench::read_sweep(bound.footprint);
    case Bound::Kind::kCopy: break;
  }
  return bench::copy_sweep(bound.footprint);
}

BenchReport::BenchReport(bool as_json, const bench::Effort& effort, std::string runtime)
    : as_json_(as_json), effort_(effort), runtime_(std::move(runtime)) {}

void BenchReport::begin() {
  report_ = {{"version", version()},
             {"compiler", DELTAWORKS_COMPILER},
             {"processor", processor_name()},
             {"cores", std::thread::hardware_concurrency()},
             {"caches", cache_bytes()},
             {"instruction_sets", cpu_targets()},
             {"instruction_set", cpu_target()},
             {"threads", effort_.threads},
             {"seconds", effort_.seconds},
             {"results", json::array()}};
  if (!runtime_.empty()) report_["peer"] = runtime_;
  json& ceilings = report_["ceilings"];
  ceilings["fma peak"] = bench::fma_peak(effort_);
  for (const Bound::Kind kind : {Bound::Kind::kInPlace, Bound::Kind::kRead, Bound::Kind::kCopy}) {
    for (const std::size_t bytes : {kInCache, kInMemory}) {
      ceilings[name_of(kind)][std::to_string(bytes)] = ceiling({kind, 0, bytes}, effort_);
    }
  }
  if (!as_json_) print_ceilings(ceilings);
}

void BenchReport::print_ceilings(const json& ceilings) const {
  std::string text = fmt::format("{}, {}, {} thread{}\n", processor_name(), cpu_target(),
                                 effort_.threads, effort_.threads == 1 ? "" : "s");
  text += fmt::format("ceilings                   1 MiB     256 MiB\n");
  for (const Bound::Kind kind : {Bound::Kind::kInPlace, Bound::Kind::kRead, Bound::Kind::kCopy}) {
    const json& of_kind = ceilings.at(name_of(kind));
    text += fmt::format("  {:<18}{:>12}{:>12}\n", name_of(kind),
                        rate(kind, of_kind.at(std::to_string(kInCache)).get<double>()),
                        rate(kind, of_kind.at(std::to_string(kInMemory)).get<double>()));
  }
  text += fmt::format("  {:<18}{:>15}\n", name_of(Bound::Kind::kFma),
                      rate(Bound::Kind::kFma, ceilings.at("fma peak").get<double>()));
  write_output(text);
}

void BenchReport::progress(std::size_t done, std::size_t total, const BenchCall& call) {
  if (isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r\033[K{} of {}: {}, {}, {}", done + 1, total, call.op, call.model,
             call.what);
  std::fflush(stderr);
}

void BenchReport::add(const BenchCall& call, const Result& result) {
  if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r\033[K");
  const std::string type(name(call.dtype));
  json entry = {{"operator", call.op}, {"model", call.model}, {"shape", call.shape},
                {"call", call.what},   {"type", type},        {"right", result.is_right}};
  const std::string heading = fmt::format("\n{}: {} ({})\n", call.op, call.shape, call.model);
  std::string text;
  if (heading != heading_) {
    text = heading + fmt::format("  {:<42}{:<10}{:>9}{:>9}   {}\n", "call", "type", "median",
                                 "spread", "of the ceiling");
    heading_ = heading;
  }
  if (!result.is_right) {
    entry["complaint"] = result.complaint;
    text += fmt::format("  {:<42}{:<10}  WRONG: {}\n", call.what, type, result.complaint);
  } else {
    const Bound::Kind kind = call.bound.kind;
    text += line(call.what, type, result.timing,
                 fmt::format("{:.0f} % of {}, {}", 100 * result.share.of_ceiling, name_of(kind),
                             rate(kind, result.share.rate)));
    entry.update(timing_json(result.timing));
    entry["ceiling"] = name_of(kind);
    entry["share"] = result.share.of_ceiling;
    entry["rate"] = result.share.rate;
    entry["flops"] = call.bound.flops();
    entry["bytes"] = call.bound.bytes();
  }
  if (result.is_right && result.variant) {
    const auto& [their_name, theirs] = *result.variant;
    text += line("  " + their_name, "", theirs, times_as_long(result.timing, theirs));
    entry["variant"] = peer_json(their_name, result.timing, theirs);
  }
  if (result.is_right && result.alone) {
    text += line("  on one thread", "", *result.alone,
                 fmt::format("{:.2f} times as long", result.alone->ratio));
    entry["alone"] = timing_json(*result.alone);
    entry["alone"]["ratio"] = result.alone->ratio;
  }
  if (result.peer && !result.peer->missing.empty()) {
    text += fmt::format("    {} does not run {} here\n", runtime_, result.peer_name);
    entry["peer"] = {{"name", result.peer_name}, {"missing", result.peer->missing}};
  } else if (result.peer) {
    text += peer_lines("  as a node of " + runtime_, "  " + result.peer_name, result.peer->ours,
                       result.peer->theirs);
    entry["peer"] = peer_json(result.peer_name, result.peer->ours, result.peer->theirs);
  }
  report_["results"].push_back(std::move(entry));
  if (!as_json_) write_output(text);
}

void BenchReport::add_ggml(const json& figures) {
  report_["ggml"] = figures;
  if (as_json_) return;
  const auto timing = [](const json& side) {
    return Timing{side.at("median_us").get<double>(), side.at("spread").get<double>()};
  };
  const auto word = [](const json& from, const char* key) {
    return from.at(key).get<std::string>();
  };
  for (const json& op : figures.at("operators")) {
    std::string text =
        fmt::format("\n{}: {} ({})\n", word(op, "operator"), word(op, "shape"), word(op, "model"));
    for (const json& row : op.at("results")) {
      text += fmt::format("  {}\n", word(row, "call"));
      text += peer_lines("  as a node of " + runtime_, "  " + word(figures, "name"),
                         timing(row.at("ours")), timing(row.at("theirs")));
    }
    write_output(text);
  }
}

void BenchReport::end() {
  if (as_json_) write_json(report_);
}

}  // namespace deltaworks::cli

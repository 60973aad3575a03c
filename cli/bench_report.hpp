// What bench says: a table as its lines come, or one JSON object at the end.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "bench.hpp"
#include "ceilings.hpp"
#include "peers.hpp"
#include "timing.hpp"

namespace deltaworks::cli {

// A share of a ceiling that was measured in this run.
struct Share {
  double rate = 0;  // floating-point operations or bytes per second
  double of_ceiling = 0;
};

struct Result {
  bool is_right = true;  // equals the reference, and the peer: else there are no times
  std::string complaint{};
  Timing timing{};
  Share share{};
  std::optional<std::pair<std::string, Timing>> variant{};
  std::optional<Timing> alone{};  // on one thread, of several
  std::optional<PeerFigures> peer{};
  std::string peer_name{};
};

class BenchReport {
 public:
  BenchReport(bool as_json, const bench::Effort& effort, std::string runtime);

  // This machine and its ceilings.
  void begin();
  void progress(std::size_t done, std::size_t total, const BenchCall& call);
  void add(const BenchCall& call, const Result& result);
  // What bench/ggml_bench.py printed.
  void add_ggml(const nlohmann::json& figures);
  void end();

 private:
  void print_ceilings(const nlohmann::json& ceilings) const;

  bool as_json_;
  bench::Effort effort_;
  std::string runtime_;
  std::string heading_;  // of the lines being printed
  nlohmann::json report_;
};

// The rate that bounds a call, measured once; and what that measures, to be timed beside the call.
double ceiling(const Bound& bound, const bench::Effort& effort);
bench::Sweep ceiling_sweep(const Bound& bound);

}  // namespace deltaworks::cli

// deltaworks bench: the operators at the shapes of published models, as shares of what this machine
// can do, and beside what else is found here.
#include "bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench_report.hpp"
#include "command.hpp"
#include "ggml.hpp"
#include "peers.hpp"
#include "timing.hpp"

namespace deltaworks::cli {

namespace {

struct Operator {
  const char* name;
  void (*add)(DType, BenchCalls&);
};
constexpr Operator kOperators[] = {{"causal_conv_with_state", bench_causal_conv_with_state},
                                   {"dflash2_dynamic_conv", bench_dflash2_dynamic_conv},
                                   {"gated_delta_net", bench_gated_delta_net},
                                   {"gated_delta_rates", bench_gated_delta_rates},
                                   {"linear_attention", bench_linear_attention},
                                   {"paged_attention", bench_paged_attention},
                                   {"varlen_causal_conv", bench_varlen_causal_conv}};
constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

struct BenchOptions {
  std::string op;
  std::vector<std::string> types{"float32"};
  int threads = 1;
  double seconds = 0.2;  // for each call
  bool peers = false, json = false;

  bench::Effort effort() const { return {threads, seconds}; }
};

// Operator by operator and shape by shape; the types of one call follow each other.
BenchCalls calls_of(const BenchOptions& options) {
  BenchCalls all;
  for (const Operator& op : kOperators) {
    if (!options.op.empty() && options.op != op.name) continue;
    std::vector<BenchCalls> by_type;
    for (const DType dtype : kTypes) {
      const auto& types = options.types;
      if (std::find(types.begin(), types.end(), name(dtype)) == types.end()) continue;
      op.add(dtype, by_type.emplace_back());
    }
    for (std::size_t i = 0; i < by_type[0].size(); ++i) {
      for (BenchCalls& calls : by_type) all.push_back(std::move(calls[i]));
    }
  }
  return all;
}

Result measure(const BenchCall& call, const Peers* peers, ThreadPool& pool,
               const BenchOptions& options) {
  const ReadyCall ready = call.prepare();
  if (!(ready.error <= 1)) {
    return {.is_right = false,
            .complaint = fmt::format("{:.1f} times the allowed error", ready.error)};
  }
  std::vector<std::function<void()>> runs{[&] { ready.run(pool.device()); }};
  if (ready.variant) runs.emplace_back([&] { ready.variant->run(pool.device()); });
  double swept = 0;
  if (options.threads == 1) {
    runs.emplace_back([&, sweep = ceiling_sweep(call.bound)] { swept = sweep(); });
  } else {
    runs.emplace_back([&] { ready.run(Cpu{}); });
  }
  const auto timings = time_in_turns(runs, options.threads, options.seconds);
  Result result;
  result.timing = timings[0];
  if (ready.variant) result.variant = {ready.variant->name, timings[1]};
  result.share.rate = call.bound.amount / (1e-6 * result.timing.median_us);
  if (options.threads == 1) {
    result.share.of_ceiling = call.bound.amount / swept * timings.back().ratio;
  } else {
    result.share.of_ceiling = result.share.rate / ceiling(call.bound, options.effort());
    result.alone = timings.back();
  }
  if (peers != nullptr && ready.peers) {
    result.peer = peers->measure(*ready.peers, options.seconds);
    result.peer_name = ready.peers->peer;
  }
  if (result.peer && !(result.peer->difference <= 1)) {
    return {.is_right = false,
            .complaint = fmt::format("{:.1f} times the allowed difference from {}",
                                     result.peer->difference, ready.peers->peer)};
  }
  return result;
}

std::unique_ptr<Peers> find_peers(const BenchOptions& options) {
  if (!options.peers) return nullptr;
  return std::make_unique<Peers>(options.threads);
}

// Whether it could be measured, or is not there.
bool add_ggml(const Peers& peers, const BenchOptions& options, BenchReport& report) {
  try {
    const auto figures = ggml_figures(peers.path(), options.op, options.effort());
    if (figures) report.add_ggml(*figures);
    return true;
  } catch (const std::exception& error) {  // the other figures are right all the same
    fmt::print(stderr, "deltaworks: {}\n", error.what());
    return false;
  }
}

int bench(const BenchOptions& options) {
  const std::unique_ptr<Peers> peers = find_peers(options);
  const BenchCalls calls = calls_of(options);
  ThreadPool pool(options.threads);
  BenchReport report(options.json, options.effort(), peers ? peers->name() : "");
  report.begin();
  bool all_right = true;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    report.progress(i, calls.size(), calls[i]);
    const Result result = measure(calls[i], peers.get(), pool, options);
    report.add(calls[i], result);
    all_right = all_right && result.is_right;
  }
  if (peers && ggml_has(options.op)) all_right = add_ggml(*peers, options, report) && all_right;
  report.end();
  return all_right ? 0 : 1;
}

}  // namespace

std::string shape_text(const bench::GatedDeltaNetShape& shape) {
  return fmt::format("{} key and {} value heads of {} x {}", shape.key_heads, shape.value_heads,
                     shape.key_dim, shape.value_dim);
}

void add_bench(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand(
      "bench", "Time the operators beside what this machine and other kernels can do");
  const auto options = std::make_shared<BenchOptions>();
  std::vector<std::string> names, types;
  for (const Operator& op : kOperators) names.emplace_back(op.name);
  for (const DType dtype : kTypes) types.emplace_back(name(dtype));
  command->add_option("operator", options->op, "Only this one")->check(CLI::IsMember(names));
  command->add_flag("--peers", options->peers,
                    "Time ONNX Runtime's own kernels too, and ggml where xllamacpp is installed");
  command->add_option("--type", options->types, "Element types [float32]")
      ->check(CLI::IsMember(types));
  command->add_option("--threads", options->threads, "Threads of a call [1]")
      ->transform(number(1, 1024));
  command->add_option("--seconds", options->seconds, "For each call and each ceiling [0.2]")
      ->transform(number(0.0, 60.0));
  command->add_flag("--json", options->json, "As one JSON object");
  command->callback([&chosen, options] { chosen = [options] { return bench(*options); }; });
}

}  // namespace deltaworks::cli

// cuda_bench [REPORT.json]: prints a table, and writes it as JSON.
// cuda_bench --results FOLDER: writes results of gated_delta_net, which fla_bench.py compares with others.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <string_view>

#include "cuda/bench.hpp"

namespace {

void write_report(const deltaworks::bench::Bench& bench, const char* path) {
  std::ofstream file(path);
  file << fmt::format("{{\"card\": \"{}\", \"copy_tb_per_s\": {:.3f}, \"rows\": [",
                      deltaworks::cuda_device(), bench.copy_bytes_per_us() * 1e-6);
  const char* separator = "\n";
  for (const auto& row : bench.rows()) {
    file << fmt::format(
        "{}  {{\"op\": \"{}\", \"shape\": \"{}\", \"us\": {:.5g}, \"floor_us\": {:.5g}, \"flop\": "
        "{:.4g}}}",
        separator, row.op, row.shape, row.us, row.floor_us, row.flop);
    separator = ",\n";
  }
  file << "\n]}\n";
}

}  // namespace

int main(int argc, char** argv) {
  using namespace deltaworks::bench;
  const std::string card = deltaworks::cuda_device();
  if (card.empty()) {
    fmt::print("no NVIDIA GPU\n");
    return 1;
  }
  if (argc > 2 && std::string_view(argv[1]) == "--results") {
    write_results(argv[2]);
    return 0;
  }
  fmt::print("{}\n", card);
  Bench bench;
  bench_varlen_causal_conv(bench);
  bench_dflash2_dynamic_conv(bench);
  bench_gated_delta_rates(bench);
  bench_gated_delta_net(bench);
  bench_replays(bench);
  if (argc > 1) write_report(bench, argv[1]);
  return 0;
}

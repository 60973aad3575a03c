// cuda_bench [REPORT.json]: prints a table, and writes it as JSON.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>

#include "cuda/bench.hpp"

namespace {

void write_report(const deltaworks::bench::Bench& bench, const char* path) {
  std::ofstream file(path);
  file << fmt::format("{{\"card\": \"{}\", \"copy_tb_per_s\": {:.3f}, \"rows\": [",
                      deltaworks::cuda_device(), bench.copy_bytes_per_us() * 1e-6);
  const char* separator = "\n";
  for (const auto& row : bench.rows()) {
    file << fmt::format(
        "{}  {{\"op\": \"{}\", \"shape\": \"{}\", \"us\": {:.3f}, \"floor_us\": {:.3f}}}",
        separator, row.op, row.shape, row.us, row.floor_us);
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

#include "cuda/bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace deltaworks::bench {

using cuda::check;

Bench::Bench() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  const Memory from(std::size_t{2} << 30), to(from.bytes());
  fill(from.as<float>(), static_cast<std::int64_t>(from.bytes() / sizeof(float)));
  const double us = median_us(
      [&] {
        check(cudaMemcpyAsync(to.as<void>(), from.as<void>(), from.bytes(),
                              cudaMemcpyDeviceToDevice, stream_));
      },
      9);
  copy_bytes_per_us_ = 2 * static_cast<double>(from.bytes()) / us;
  fmt::print("copy: {:.2f} TB/s read and written\n", copy_bytes_per_us_ * 1e-6);
}

std::int64_t Bench::sets_of(std::size_t bytes) {
  constexpr std::size_t kCold = 400u << 20;  // several times the cache
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(kCold / bytes), 2, 512);
}

double Bench::median_us(const std::function<void()>& work, int repetitions) const {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin)), check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = -3; i < repetitions; ++i) {  // three to warm up
    check(cudaEventRecord(begin, stream_));
    work();
    check(cudaEventRecord(end, stream_));
    check(cudaEventSynchronize(end));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 0) times.push_back(ms * 1000);
  }
  check(cudaEventDestroy(begin)), check(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + repetitions / 2, times.end());
  return times[static_cast<std::size_t>(repetitions / 2)];
}

double Bench::graph_us(std::int64_t sets, std::int64_t nodes, int repetitions,
                       const Record& record) const {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  for (std::int64_t node = 0; node < nodes; ++node) record(Cuda{stream_}, node % sets);
  check(cudaStreamEndCapture(stream_, &graph));
  check(cudaGraphInstantiate(&exec, graph, 0));
  const double us = median_us([&] { check(cudaGraphLaunch(exec, stream_)); }, repetitions);
  check(cudaGraphExecDestroy(exec)), check(cudaGraphDestroy(graph));
  return us / static_cast<double>(nodes);
}

void Bench::measure(const std::string& op, const std::string& shape, const Work& work,
                    std::int64_t sets, const Record& record) {
  const double floor_us = static_cast<double>(work.bytes) / copy_bytes_per_us_;
  // Long enough that starting the graph does not count: a few milliseconds.
  constexpr double kEnoughUs = 3000;
  const double first_us = graph_us(sets, sets, 1, record);
  const std::int64_t rounds =
      std::max<std::int64_t>(1, std::llround(kEnoughUs / (first_us * static_cast<double>(sets))));
  const double us = graph_us(sets, rounds * sets, 13, record);
  rows_.push_back({op, shape, us, floor_us, work.flop});
  fmt::print("{:28} {:34} {:9.2f} us  floor {:8.2f} us  ratio {:5.2f}\n", op, shape, us, floor_us,
             us / floor_us);
  std::fflush(stdout);
}

}  // namespace deltaworks::bench

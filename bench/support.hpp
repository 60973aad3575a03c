// What benchmarks share: a machine ceiling, measured in the same run as the figure beside it.
#pragma once

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace deltaworks::bench {

// Seconds that this thread has run, as Google Benchmark counts a benchmark of one thread: a busy
// machine's waits are in neither.
inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Median bytes per second, read and written ones counted, of copying `bytes` / 2 bytes again and
// again: the stream that an operator could at best be which moves `bytes` in all, at the same
// place in the cache hierarchy.
inline double copy_bandwidth(std::size_t bytes) {
  const std::size_t half = std::max<std::size_t>(64, bytes / 2);
  std::vector<char> from(half, 1), to(half, 2);
  std::vector<double> rates;
  const std::size_t copies = std::max<std::size_t>(1, (8 << 20) / half);  // above timer resolution
  for (const double start = thread_seconds(); rates.size() < 5 || thread_seconds() < start + 0.2;) {
    const double before = thread_seconds();
    for (std::size_t i = 0; i < copies; ++i) {
      std::memcpy(to.data(), from.data(), half);
      asm volatile("" : : "r"(to.data()), "r"(from.data()) : "memory");
    }
    rates.push_back(2.0 * static_cast<double>(half * copies) / (thread_seconds() - before));
  }
  std::nth_element(rates.begin(), rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2),
                   rates.end());
  return rates[rates.size() / 2];
}

}  // namespace deltaworks::bench

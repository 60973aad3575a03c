// What this machine can do at best, measured in the run that reports a share of it.
#pragma once

#include <cstddef>
#include <functional>

namespace deltaworks::bench {

struct Effort {
  int threads = 1;        // at the same time, no more than processors; they share the bytes
  double seconds = 0.25;  // for each figure
};

// What a ceiling repeats: a call does some of it and returns how many operations or bytes that were. To be timed in
// turns with what it bounds, where a machine's speed does not stay the same.
using Sweep = std::function<double()>;
Sweep fma_sweep();
Sweep in_place_sweep(std::size_t bytes);
Sweep read_sweep(std::size_t bytes);
Sweep copy_sweep(std::size_t bytes);

// Floating-point operations per second of independent chains of the widest fma.
double fma_peak(const Effort& effort = {});

// Bytes per second, read and written ones counted, of scaling `bytes` of float32 in place again and again.
double in_place_bandwidth(std::size_t bytes, const Effort& effort = {});

// Bytes per second of summing `bytes` of float32 again and again.
double read_bandwidth(std::size_t bytes, const Effort& effort = {});

// Bytes per second, read and written ones counted, of copying bytes / 2 again and again.
double copy_bandwidth(std::size_t bytes, const Effort& effort = {});

}  // namespace deltaworks::bench

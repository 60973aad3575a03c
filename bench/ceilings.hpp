// What this machine can do at best, measured in the run that reports a share of it.
#pragma once

#include <cstddef>

namespace deltaworks::bench {

// Floating-point operations per second of one thread: independent chains of the widest fma.
double fma_peak();

// Bytes per second, read and written ones counted, of scaling `bytes` of float32 in place again and again.
double in_place_bandwidth(std::size_t bytes);

// Bytes per second of summing `bytes` of float32 again and again.
double read_bandwidth(std::size_t bytes);

// Bytes per second, read and written ones counted, of copying bytes / 2 again and again.
double copy_bandwidth(std::size_t bytes);

}  // namespace deltaworks::bench

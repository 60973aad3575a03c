// How long calls take: rounds of them, their median and spread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "deltaworks/device.hpp"

namespace deltaworks::cli {

struct Timing {
  double median_us = 0;
  double spread = 0;  // between the quartiles, as a part of the median
  double ratio = 1;   // to the first call, the median of those of the rounds
};

// Times the calls in turns, so that what disturbs the machine disturbs all of them; each gets about
// `seconds`, and five rounds at least. One thread is timed by the processor time that it used,
// which other programs disturb less; more by the clock on the wall.
std::vector<Timing> time_in_turns(const std::vector<std::function<void()>>& calls, int threads,
                                  double seconds);

// Threads that share the tasks of an operator, the calling one among them.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  Cpu device();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deltaworks::cli

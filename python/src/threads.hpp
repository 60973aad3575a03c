// Threads that live as long as one call.
#pragma once

#include <cstdint>

#include "deltaworks/device.hpp"

namespace deltaworks::python {

// The calling thread and up to `count` - 1 others share the tasks. Nothing is kept between calls, so
// that a process that forks finds no pool without threads; starting one costs tens of microseconds.
class Threads {
 public:
  explicit Threads(std::int64_t count) : count_(count) {}

  ParallelFor parallel_for() {
    return count_ > 1 ? ParallelFor{&Threads::run, this} : ParallelFor{};
  }

 private:
  static void run(void* threads, std::int64_t tasks, ParallelFor::Task task, void* task_data);

  std::int64_t count_;
};

}  // namespace deltaworks::python

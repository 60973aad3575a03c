/// Where an operator runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deltaworks/export.hpp"

namespace deltaworks {

/// How an operator spreads independent tasks over threads. A host gives its own pool; by default
/// tasks run one after another on the calling thread. Results never depend on it.
struct ParallelFor {
  using Task = void (*)(void* task_data, std::int64_t task);
  /// Calls task(task_data, i) once for every i in [0, tasks), in any order, and returns when all
  /// are done.
  using Run = void (*)(void* pool, std::int64_t tasks, Task task, void* task_data);

  Run run = nullptr;
  void* pool = nullptr;

  template <class Body>
  void operator()(std::int64_t tasks, const Body& body) const {
    if (run == nullptr || tasks <= 1) {
      for (std::int64_t task = 0; task < tasks; ++task) body(task);
      return;
    }
    run(
        pool, tasks, [](void* data, std::int64_t task) { (*static_cast<const Body*>(data))(task); },
        const_cast<Body*>(&body));
  }
};

/// The host's processor, with the best instruction set that it and this build have.
struct Cpu {
  ParallelFor parallel_for{};
};

/// Instruction sets that this build can use on this processor, best first ("AVX3", "AVX2", "SSE4",
/// …).
DELTAWORKS_EXPORT std::vector<std::string> cpu_targets();

/// The instruction set that the next call uses. DELTAWORKS_CPU_TARGET sets it for a process.
DELTAWORKS_EXPORT std::string cpu_target();

/// Uses only `target`, one of cpu_targets(), from now on; an empty string goes back to the best
/// one. Throws InvalidArgument for any other name. Not for use while an operator runs.
DELTAWORKS_EXPORT void set_cpu_target(const std::string& target);

}  // namespace deltaworks

#include "threads.hpp"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace deltaworks::python {

void Threads::run(void* threads, std::int64_t tasks, ParallelFor::Task task, void* task_data) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i = next++; i < tasks; i = next++) task(task_data, i);
  };
  std::vector<std::jthread> others;
  try {
    const std::int64_t count = std::min(static_cast<Threads*>(threads)->count_, tasks);
    others.reserve(static_cast<std::size_t>(count));
    while (static_cast<std::int64_t>(others.size()) + 1 < count) others.emplace_back(work);
  } catch (const std::exception&) {
    // The system gives no more threads or memory: those there are do the work.
  }
  work();
}

}  // namespace deltaworks::python

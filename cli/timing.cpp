#include "timing.hpp"

#include <hwy/cache_control.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <utility>

namespace deltaworks::cli {

namespace {

constexpr double kRoundSeconds = 5e-3;  // a thousand times what a look at the clock takes
constexpr std::size_t kRounds = 5;

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Seconds of one call, from a round of them.
double seconds_a_call(clockid_t clock, const std::function<void()>& call, int repeats) {
  const double start = seconds_of(clock);
  for (int i = 0; i < repeats; ++i) call();
  return (seconds_of(clock) - start) / repeats;
}

// Calls in a round. The first call of all warms up.
int repeats_of(clockid_t clock, const std::function<void()>& call) {
  call();
  const double once = std::max(1e-9, seconds_a_call(clock, call, 1));
  return std::max(1, static_cast<int>(kRoundSeconds / once));
}

double quantile(const std::vector<double>& sorted, double part) {
  return sorted[static_cast<std::size_t>(part * static_cast<double>(sorted.size() - 1) + 0.5)];
}

Timing summary(std::vector<double> seconds, const std::vector<double>& first) {
  std::vector<double> ratios(seconds.size());
  std::transform(seconds.begin(), seconds.end(), first.begin(), ratios.begin(), std::divides<>());
  std::sort(ratios.begin(), ratios.end());
  std::sort(seconds.begin(), seconds.end());
  const double median = quantile(seconds, 0.5);
  return {1e6 * median, (quantile(seconds, 0.75) - quantile(seconds, 0.25)) / median,
          quantile(ratios, 0.5)};
}

}  // namespace

std::vector<Timing> time_in_turns(const std::vector<std::function<void()>>& calls, int threads,
                                  double seconds) {
  const clockid_t clock = threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  std::vector<int> repeats;
  for (const auto& call : calls) repeats.push_back(repeats_of(clock, call));
  std::vector<std::vector<double>> samples(calls.size());
  const double end = seconds_of(clock) + seconds * static_cast<double>(calls.size());
  while (seconds_of(clock) < end || samples[0].size() < kRounds) {
    for (std::size_t i = 0; i < calls.size(); ++i) {
      samples[i].push_back(seconds_a_call(clock, calls[i], repeats[i]));
    }
  }
  std::vector<Timing> timings;
  for (const auto& sample : samples) timings.push_back(summary(sample, samples[0]));
  return timings;
}

// Each thread begins with tasks of its own, neighbours, as kernels that fetch ahead expect, and call after call the same
// ones, whose memory its core's caches have: two threads take 60 us for one token of a large layer, 90 where each takes the
// next task. Then it helps the others. Threads wait awake for a while, as those of ONNX Runtime do: with one that has to
// be woken it is 130 us in a virtual machine.
struct ThreadPool::State {
  struct alignas(64) Range {
    std::atomic<std::int64_t> next = 0;
    std::int64_t end = 0;
  };

  explicit State(int threads) : ranges(static_cast<std::size_t>(threads)) {
    for (std::size_t i = 1; i < ranges.size(); ++i) workers.emplace_back([this, i] { work(i); });
  }

  // Returns when `value` is no longer `old`.
  static void await_change(const std::atomic<int>& value, int old) {
    constexpr int kPauses = 10000;  // of 4 to 60 ns, by processor
    for (int i = 0; i < kPauses; ++i) {
      if (value != old) return;
      hwy::Pause();
    }
    value.wait(old);
  }

  void work(std::size_t thread) {
    for (int seen = 0;; ++seen) {
      await_change(job, seen);
      if (task == nullptr) return;
      take_tasks(thread);
      if (--working == 0) working.notify_one();
    }
  }
  void take_tasks(std::size_t thread) {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      Range& range = ranges[(thread + i) % ranges.size()];
      for (std::int64_t k = range.next++; k < range.end; k = range.next++) task(data, k);
    }
  }
  void begin(std::int64_t tasks, ParallelFor::Task what, void* with) {
    task = what, data = with;
    const auto parts = static_cast<std::int64_t>(ranges.size());
    for (std::int64_t i = 0; i < parts; ++i) {
      Range& range = ranges[static_cast<std::size_t>(i)];
      range.next = i * tasks / parts, range.end = (i + 1) * tasks / parts;
    }
    working = static_cast<int>(workers.size());
    ++job;
    job.notify_all();
  }
  void run(std::int64_t tasks, ParallelFor::Task what, void* with) {
    begin(tasks, what, with);
    take_tasks(0);
    for (int left = working; left > 0; left = working) await_change(working, left);
  }

  std::vector<Range> ranges;  // of tasks, one for each thread, the calling one's first
  std::vector<std::thread> workers;
  std::atomic<int> job = 0;  // counts them
  std::atomic<int> working = 0;
  ParallelFor::Task task = nullptr;
  void* data = nullptr;
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>(threads)) {}

ThreadPool::~ThreadPool() {
  state_->begin(0, nullptr, nullptr);
  for (std::thread& worker : state_->workers) worker.join();
}

Cpu ThreadPool::device() {
  if (state_->workers.empty()) return {};
  return {{[](void* pool, std::int64_t tasks, ParallelFor::Task task, void* data) {
             static_cast<State*>(pool)->run(tasks, task, data);
           },
           state_.get()}};
}

}  // namespace deltaworks::cli

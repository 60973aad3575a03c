#include "timing.hpp"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <barrier>
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

// A job begins and ends where all threads meet.
struct ThreadPool::State {
  explicit State(int threads) : meeting(threads) {
    for (int i = 1; i < threads; ++i) workers.emplace_back([this] { work(); });
  }

  void work() {
    for (;;) {
      meeting.arrive_and_wait();
      if (task == nullptr) return;
      take_tasks();
      meeting.arrive_and_wait();
    }
  }
  void take_tasks() {
    for (std::int64_t i = next++; i < tasks; i = next++) task(data, i);
  }
  void run(std::int64_t count, ParallelFor::Task what, void* with) {
    tasks = count, task = what, data = with, next = 0;
    meeting.arrive_and_wait();
    take_tasks();
    meeting.arrive_and_wait();
  }

  std::barrier<> meeting;
  std::vector<std::thread> workers;
  std::atomic<std::int64_t> next = 0;
  std::int64_t tasks = 0;
  ParallelFor::Task task = nullptr;
  void* data = nullptr;
};

ThreadPool::ThreadPool(int threads) : state_(std::make_unique<State>(threads)) {}

ThreadPool::~ThreadPool() {
  state_->task = nullptr;
  state_->meeting.arrive_and_wait();
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

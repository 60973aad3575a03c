// Runs a test on every instruction set, skipping by name those that the processor lacks, and on any
// thread count.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "deltaworks/device.hpp"

namespace deltaworks::testing {

inline bool has_target(const std::string& target) {
  const auto usable = cpu_targets();
  return std::find(usable.begin(), usable.end(), target) != usable.end();
}

class OnTarget : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!has_target(GetParam())) GTEST_SKIP() << "this processor or build lacks " << GetParam();
    set_cpu_target(GetParam());
  }
  void TearDown() override { set_cpu_target(""); }
};

inline auto every_target() {
  return ::testing::Values(std::string("SCALAR"), std::string("SSE4"), std::string("AVX2"),
                           std::string("AVX3"));
}

inline std::string target_name(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

// Threads that take tasks from one counter: any order, any interleaving.
class Threads {
 public:
  explicit Threads(int count) : count_(count) {}
  Cpu cpu() { return {.parallel_for = {.run = run, .pool = this}}; }

 private:
  static void run(void* pool, std::int64_t tasks, ParallelFor::Task task, void* data) {
    std::atomic<std::int64_t> next{0};
    std::vector<std::jthread> threads;
    for (int i = 0; i < static_cast<Threads*>(pool)->count_; ++i) {
      threads.emplace_back([&] {
        for (std::int64_t t = next++; t < tasks; t = next++) task(data, t);
      });
    }
  }
  int count_;
};

}  // namespace deltaworks::testing

#include "cpu/target.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <mutex>

#include "deltaworks/device.hpp"
#include "deltaworks/error.hpp"

namespace deltaworks {

namespace {

bool same_name(const std::string& a, const std::string& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](unsigned char x, unsigned char y) {
    return std::tolower(x) == std::tolower(y);
  });
}

// Targets that are compiled in and that the processor has. A lower bit is a better target.
std::vector<std::int64_t> usable_targets() {
  const bool chosen = hwy::GetChosenTarget().IsInitialized();
  hwy::SetSupportedTargetsForTest(0);  // SupportedTargets() then asks the processor
  std::vector<std::int64_t> targets;
  for (std::int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1) {
    targets.push_back(left & -left);
  }
  // SupportedTargets() also chooses the best: DELTAWORKS_CPU_TARGET is still to be asked.
  if (!chosen) hwy::GetChosenTarget().DeInit();
  return targets;
}

const std::vector<std::int64_t>& all_targets() {
  static const std::vector<std::int64_t> targets = usable_targets();
  return targets;
}

void choose(const std::string& target, const char* source) {
  if (target.empty()) {  // Highway is shared by the process: leave it what it would choose itself
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return;
  }
  for (const std::int64_t candidate : all_targets()) {
    if (same_name(target, hwy::TargetName(candidate))) {
      hwy::GetChosenTarget().Update(candidate);
      return;
    }
  }
  throw InvalidArgument(fmt::format("{} is \"{}\", expected one of {}", source, target,
                                    fmt::join(cpu_targets(), ", ")));
}

}  // namespace

namespace cpu {

void ensure_target() {
  if (hwy::GetChosenTarget().IsInitialized()) return;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (hwy::GetChosenTarget().IsInitialized()) return;
  const char* wanted = std::getenv("DELTAWORKS_CPU_TARGET");
  choose(wanted == nullptr ? "" : wanted, "DELTAWORKS_CPU_TARGET");
}

}  // namespace cpu

std::vector<std::string> cpu_targets() {
  std::vector<std::string> names;
  for (const std::int64_t target : all_targets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

std::string cpu_target() {
  cpu::ensure_target();
  const auto bit = static_cast<std::int64_t>(hwy::GetChosenTarget().GetIndex());
  for (const std::int64_t target : all_targets()) {
    hwy::ChosenTarget probe;
    probe.Update(target);
    if (static_cast<std::int64_t>(probe.GetIndex()) == bit) return hwy::TargetName(target);
  }
  return "unknown";
}

void set_cpu_target(const std::string& target) { choose(target, "set_cpu_target: target"); }

}  // namespace deltaworks

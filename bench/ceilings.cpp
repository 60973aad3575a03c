#include "ceilings.hpp"

#include <time.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ceilings.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The chains start from different values: a compiler may merge equal ones and show more than the machine has.
double chains_of_fma(std::size_t rounds, const float* seeds, float* result) {
  const hn::ScalableTag<float> d;
  constexpr std::size_t kChains = 12;  // latency 4 on 2 ports, and some to spare
  hn::Vec<decltype(d)> chain[kChains];
  for (std::size_t c = 0; c < kChains; ++c) chain[c] = hn::Set(d, seeds[c]);
  const auto factor = hn::Set(d, seeds[kChains]), term = hn::Set(d, seeds[kChains + 1]);
  for (std::size_t round = 0; round < rounds; ++round) {
    for (auto& c : chain) c = hn::MulAdd(c, factor, term);
  }
  auto sum = chain[0];
  for (std::size_t c = 1; c < kChains; ++c) sum = hn::Add(sum, chain[c]);
  *result = hn::GetLane(sum);
  return 2.0 * static_cast<double>(rounds * kChains * hn::Lanes(d));
}

void scale_in_place(float* data, std::size_t size, float factor) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i + lanes <= size; i += lanes) {
    hn::StoreU(hn::Mul(hn::Set(d, factor), hn::LoadU(d, data + i)), d, data + i);
  }
}

float sum_of(const float* data, std::size_t size) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (std::size_t i = 0; i + 4 * lanes <= size; i += 4 * lanes) {
    a = hn::Add(a, hn::LoadU(d, data + i));
    b = hn::Add(b, hn::LoadU(d, data + i + lanes));
    c = hn::Add(c, hn::LoadU(d, data + i + 2 * lanes));
    e = hn::Add(e, hn::LoadU(d, data + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaworks {

HWY_EXPORT(chains_of_fma);
HWY_EXPORT(scale_in_place);
HWY_EXPORT(sum_of);

namespace bench {

namespace {

thread_local volatile float sink;

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Median of `amount / seconds` over repetitions that fill the time.
double median_rate(clockid_t clock, double seconds, const Sweep& run) {
  std::vector<double> rates;
  for (const double start = seconds_of(clock);
       rates.size() < 5 || seconds_of(clock) < start + seconds;) {
    const double before = seconds_of(clock);
    const double amount = run();
    rates.push_back(amount / (seconds_of(clock) - before));
  }
  std::nth_element(rates.begin(), rates.begin() + static_cast<long>(rates.size() / 2), rates.end());
  return rates[rates.size() / 2];
}

// The threads' rates together. `prepare` makes what one thread repeats, in that thread. One thread is timed by the
// seconds that it has run, as Google Benchmark's rates are, so that a busy machine's waits are in neither.
double rate_of(const Effort& effort, const std::function<Sweep()>& prepare) {
  if (effort.threads == 1) {
    return median_rate(CLOCK_THREAD_CPUTIME_ID, effort.seconds, prepare());
  }
  std::vector<double> rates(static_cast<std::size_t>(effort.threads));
  std::barrier start(effort.threads);
  std::vector<std::thread> workers;
  for (double& rate : rates) {
    workers.emplace_back([&] {
      const Sweep run = prepare();
      start.arrive_and_wait();
      rate = median_rate(CLOCK_MONOTONIC, effort.seconds, run);
    });
  }
  for (std::thread& worker : workers) worker.join();
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

// Threads that take turns on a processor each time their own turns: their rates would add up to what no machine has.
Effort at_once(Effort effort) {
  const auto processors = static_cast<int>(std::thread::hardware_concurrency());
  if (processors > 0) effort.threads = std::min(effort.threads, processors);
  return effort;
}

// Bytes per second of one kind of traffic, measured once for each size and number of threads. Each thread has
// its part of the bytes; parts below a few MiB are swept several times between two looks at the clock.
class Bandwidth {
 public:
  explicit Bandwidth(Sweep (*prepare)(std::size_t part)) : prepare_(prepare) {}

  double operator()(std::size_t bytes, const Effort& wanted) {
    const Effort effort = at_once(wanted);
    const auto [found, is_new] = known_.try_emplace({bytes, effort.threads});
    if (!is_new) return found->second;
    const std::size_t part =
        std::max<std::size_t>(256, bytes / static_cast<std::size_t>(effort.threads));
    const std::size_t sweeps = std::max<std::size_t>(1, (8 << 20) / part);
    return found->second = rate_of(effort, [&]() -> Sweep {
             return [sweeps, sweep = prepare_(part)] {
               double amount = 0;
               for (std::size_t i = 0; i < sweeps; ++i) amount += sweep();
               return amount;
             };
           });
  }

 private:
  Sweep (*prepare_)(std::size_t part);
  std::map<std::pair<std::size_t, int>, double> known_;
};

std::vector<float> ones(std::size_t bytes) {
  return std::vector<float>(bytes / sizeof(float), 1.0f);
}

}  // namespace

Sweep fma_sweep() {
  return [seeds = std::vector<float>{0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 0.7f, 0.8f, 0.9f, 1.0f,
                                     1.1f, 1.2f, 0.99f, 0.01f}] {
    float result = 0;
    const double amount = HWY_DYNAMIC_DISPATCH(chains_of_fma)(1 << 18, seeds.data(), &result);
    sink = result;
    return amount;
  };
}

Sweep in_place_sweep(std::size_t bytes) {
  return [data = ones(bytes)]() mutable {
    HWY_DYNAMIC_DISPATCH(scale_in_place)(data.data(), data.size(), 1.0f);
    return 2.0 * static_cast<double>(data.size() * sizeof(float));
  };
}

Sweep read_sweep(std::size_t bytes) {
  return [data = ones(bytes)] {
    sink = HWY_DYNAMIC_DISPATCH(sum_of)(data.data(), data.size());
    return static_cast<double>(data.size() * sizeof(float));
  };
}

Sweep copy_sweep(std::size_t bytes) {
  return [from = ones(bytes / 2), to = ones(bytes / 2)]() mutable {
    std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
    asm volatile("" : : "r"(to.data()), "r"(from.data()) : "memory");
    return 2.0 * static_cast<double>(from.size() * sizeof(float));
  };
}

double fma_peak(const Effort& wanted) {
  const Effort effort = at_once(wanted);
  static std::map<int, double> known;
  const auto [found, is_new] = known.try_emplace(effort.threads);
  return is_new ? found->second = rate_of(effort, fma_sweep) : found->second;
}

double in_place_bandwidth(std::size_t bytes, const Effort& effort) {
  static Bandwidth bandwidth(in_place_sweep);
  return bandwidth(bytes, effort);
}

double read_bandwidth(std::size_t bytes, const Effort& effort) {
  static Bandwidth bandwidth(read_sweep);
  return bandwidth(bytes, effort);
}

double copy_bandwidth(std::size_t bytes, const Effort& effort) {
  static Bandwidth bandwidth(copy_sweep);
  return bandwidth(bytes, effort);
}

}  // namespace bench
}  // namespace deltaworks
#endif

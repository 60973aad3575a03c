#include "ceilings.hpp"

#include <time.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ceilings.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <map>
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

volatile float sink;

// Seconds that this thread has run: what Google Benchmark's rates count, so that a busy machine's waits are in neither.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Median of `amount / seconds` over repetitions that fill a quarter of a second.
template <class Run>
double median_rate(const Run& run) {
  std::vector<double> rates;
  for (const double start = thread_seconds();
       rates.size() < 5 || thread_seconds() < start + 0.25;) {
    const double before = thread_seconds();
    const double amount = run();
    rates.push_back(amount / (thread_seconds() - before));
  }
  std::nth_element(rates.begin(), rates.begin() + static_cast<long>(rates.size() / 2), rates.end());
  return rates[rates.size() / 2];
}

// Buffers below a few MiB are swept several times between two looks at the clock.
std::size_t sweeps(std::size_t bytes) { return std::max<std::size_t>(1, (8 << 20) / bytes); }

}  // namespace

double fma_peak() {
  static const double peak = [] {
    const std::vector<float> seeds{0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f,  0.7f,
                                   0.8f, 0.9f, 1.0f, 1.1f, 1.2f, 0.99f, 0.01f};
    return median_rate([&] {
      float result = 0;
      const double amount = HWY_DYNAMIC_DISPATCH(chains_of_fma)(1 << 18, seeds.data(), &result);
      sink = result;
      return amount;
    });
  }();
  return peak;
}

double in_place_bandwidth(std::size_t bytes) {
  static std::map<std::size_t, double> known;
  if (const auto found = known.find(bytes); found != known.end()) return found->second;
  std::vector<float> data(bytes / sizeof(float), 1.0f);
  return known[bytes] = median_rate([&] {
           for (std::size_t i = 0; i < sweeps(bytes); ++i) {
             HWY_DYNAMIC_DISPATCH(scale_in_place)(data.data(), data.size(), 1.0f);
           }
           return 2.0 * static_cast<double>(bytes * sweeps(bytes));
         });
}

double read_bandwidth(std::size_t bytes) {
  static std::map<std::size_t, double> known;
  if (const auto found = known.find(bytes); found != known.end()) return found->second;
  std::vector<float> data(bytes / sizeof(float), 1.0f);
  return known[bytes] = median_rate([&] {
           for (std::size_t i = 0; i < sweeps(bytes); ++i) {
             sink = HWY_DYNAMIC_DISPATCH(sum_of)(data.data(), data.size());
           }
           return static_cast<double>(bytes * sweeps(bytes));
         });
}

double copy_bandwidth(std::size_t bytes) {
  static std::map<std::size_t, double> known;
  if (const auto found = known.find(bytes); found != known.end()) return found->second;
  const std::size_t half = std::max<std::size_t>(64, bytes / 2);
  std::vector<char> from(half, 1), to(half, 2);
  return known[bytes] = median_rate([&] {
           for (std::size_t i = 0; i < sweeps(half); ++i) {
             std::memcpy(to.data(), from.data(), half);
             asm volatile("" : : "r"(to.data()), "r"(from.data()) : "memory");
           }
           return 2.0 * static_cast<double>(half * sweeps(half));
         });
}

}  // namespace bench
}  // namespace deltaworks
#endif

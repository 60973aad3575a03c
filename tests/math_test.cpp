// The elementary functions against libm in double, in units in the last place, on every instruction
// set. A prime stride from a random start samples the float32 patterns; DELTAWORKS_TEST_ALL=1 takes
// every one (a minute for each function and instruction set).
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "support/math_functions.hpp"
#include "support/random.hpp"
#include "support/targets.hpp"

namespace deltaworks {
namespace {

using testing::OnTarget;
using Function = void (*)(const float*, float*, std::size_t);

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// |actual − expected| in units of the last place of expected; infinity where one of them alone is
// NaN.
double ulps(float actual, double expected) {
  if (std::isnan(expected)) return std::isnan(actual) ? 0 : kInfinity;
  if (static_cast<float>(expected) == actual) return 0;
  const double magnitude = std::max(std::abs(expected), 0x1p-126);
  const double unit = std::ldexp(1.0, std::ilogb(magnitude) - 23);
  return std::abs(static_cast<double>(actual) - expected) / unit;
}

// Calls body(block of patterns) until all, or a sample of them, have passed.
template <class Body>
void for_each_pattern(const Body& body) {
  constexpr std::size_t kBlock = 1 << 18;
  const bool all = std::getenv("DELTAWORKS_TEST_ALL") != nullptr;
  const std::uint64_t stride = all ? 1 : 4099;
  testing::Random random(1);
  std::vector<float> x(kBlock);
  std::uint64_t bits = all ? 0 : static_cast<std::uint64_t>(random.integer(0, 4098));
  for (; bits < (1ull << 32); bits += stride * kBlock) {
    for (std::size_t i = 0; i < kBlock; ++i) {
      x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits + i * stride));
    }
    body(x);
  }
}

// Where a function is asked for, and below which magnitude it may give 0 instead.
struct Domain {
  float low = -kInfinity, high = kInfinity;
  double flush_below = 0;

  bool has(float x) const { return !(x < low || x > high); }  // a NaN too
};

double largest_error(Function function, double (*exact)(double), const Domain& domain = {}) {
  double largest = 0;
  std::vector<float> y;
  for_each_pattern([&](const std::vector<float>& x) {
    y.resize(x.size());
    function(x.data(), y.data(), x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (!domain.has(x[i])) continue;
      const double expected = exact(x[i]);
      if (y[i] == 0 && std::abs(expected) < domain.flush_below) continue;
      const double error = ulps(y[i], expected);
      if (error > 16 && largest <= 16) {
        ADD_FAILURE() << "at " << x[i] << ": " << y[i] << ", expected " << expected;
      }
      largest = std::max(largest, error);
    }
  });
  ::testing::Test::RecordProperty("largest_ulps", std::to_string(largest));
  return largest;
}

class MathTest : public OnTarget {
 protected:
  bool has_fma() const { return GetParam() != "SSE4" && GetParam() != "SCALAR"; }
};

TEST_P(MathTest, ExpIsWithinOneUnit) {
  EXPECT_LE(largest_error(math_exp, [](double x) { return std::exp(x); }), has_fma() ? 1 : 2);
}
TEST_P(MathTest, Log1pIsWithinTwoUnits) {
  EXPECT_LE(
      largest_error(math_log1p, [](double x) { return std::log1p(x); }, {.low = 0, .high = 1}), 2);
}
TEST_P(MathTest, SigmoidIsWithinThreeUnits) {
  EXPECT_LE(largest_error(math_sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); },
                          {.flush_below = 0x1p-126}),
            3);
}
TEST_P(MathTest, SiluIsWithinThreeUnits) {
  EXPECT_LE(largest_error(math_silu, [](double x) { return x / (1 + std::exp(-x)); },
                          {.flush_below = 0x1p-120}),
            3);
}
TEST_P(MathTest, SoftplusIsWithinThreeUnits) {
  EXPECT_LE(
      largest_error(math_softplus,
                    [](double x) { return std::fmax(x, 0) + std::log1p(std::exp(-std::abs(x))); }),
      3);
}
TEST_P(MathTest, TanhIsWithinFourUnits) {
  EXPECT_LE(largest_error(math_tanh, [](double x) { return std::tanh(x); }), 4);
}

// The exponential that knows the sign of its power is the other one, bit for bit.
TEST_P(MathTest, ExpOfMinusHasTheBitsOfExp) {
  std::vector<float> negated, expected, actual;
  for_each_pattern([&](const std::vector<float>& x) {
    if (std::signbit(x[0])) return;
    negated.resize(x.size()), expected.resize(x.size()), actual.resize(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) negated[i] = -x[i];
    math_exp(negated.data(), expected.data(), x.size());
    math_exp_of_minus(x.data(), actual.data(), x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i]) || std::signbit(x[i])) continue;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(actual[i]), std::bit_cast<std::uint32_t>(expected[i]))
          << x[i];
    }
  });
}

TEST_P(MathTest, BordersAreExact) {
  const std::vector<float> x{-kInfinity, -1e30f, -200.0f, 0.0f, -0.0f, 89.0f, 1e30f, kInfinity};
  std::vector<float> y(x.size());
  math_exp(x.data(), y.data(), x.size());
  EXPECT_EQ(y, (std::vector<float>{0, 0, 0, 1, 1, kInfinity, kInfinity, kInfinity}));
  math_sigmoid(x.data(), y.data(), x.size());
  EXPECT_EQ(y, (std::vector<float>{0, 0, 0, 0.5f, 0.5f, 1, 1, 1}));
  math_softplus(x.data(), y.data(), x.size());
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[6], 1e30f);
  EXPECT_EQ(y[7], kInfinity);
}

INSTANTIATE_TEST_SUITE_P(Targets, MathTest, testing::every_target(), testing::target_name);

// Wherever there is a fused multiply-add, whatever the width of the vectors.
TEST(MathBits, AreThoseOfEveryInstructionSetWithFma) {
  if (!testing::has_target("AVX2") || !testing::has_target("AVX3"))
    GTEST_SKIP() << "this processor lacks AVX2 or AVX-512";
  std::vector<float> narrow, wide;
  for (const Function function : {math_exp, math_log1p, math_sigmoid, math_silu, math_softplus}) {
    for_each_pattern([&](const std::vector<float>& x) {
      narrow.resize(x.size()), wide.resize(x.size());
      set_cpu_target("AVX2");
      function(x.data(), narrow.data(), x.size());
      set_cpu_target("AVX3");
      function(x.data(), wide.data(), x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (std::isnan(wide[i]) && std::isnan(narrow[i])) continue;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(narrow[i]))
            << x[i];
      }
    });
  }
  set_cpu_target("");
}

}  // namespace
}  // namespace deltaworks

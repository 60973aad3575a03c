// The elementary functions against libm in double, in units in the last place, on every instruction
// set. A prime stride samples the float32 patterns; DELTAWORKS_TEST_ALL=1 takes every one.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "support/math_functions.hpp"
#include "support/targets.hpp"

namespace deltaworks {
namespace {

using testing::OnTarget;

// |actual − expected| in units of the last place of expected; infinity where one of them alone is
// NaN.
double ulps(float actual, double expected) {
  if (std::isnan(expected)) return std::isnan(actual) ? 0 : std::numeric_limits<double>::infinity();
  if (static_cast<float>(expected) == actual) return 0;
  const double magnitude = std::max(std::abs(expected), 0x1p-126);
  const double unit = std::ldexp(1.0, std::ilogb(magnitude) - 23);
  return std::abs(static_cast<double>(actual) - expected) / unit;
}

double largest_error(void (*function)(const float*, float*, std::size_t), double (*exact)(double),
                     double flush_below = 0) {
  const std::uint64_t stride = std::getenv("DELTAWORKS_TEST_ALL") != nullptr ? 1 : 4099;
  constexpr std::size_t kBlock = 1 << 14;
  std::vector<float> x(kBlock), y(kBlock);
  double largest = 0;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += stride * kBlock) {
    for (std::size_t i = 0; i < kBlock; ++i) {
      x[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits + i * stride));
    }
    function(x.data(), y.data(), kBlock);
    for (std::size_t i = 0; i < kBlock; ++i) {
      const double expected = exact(x[i]);
      if (y[i] == 0 && std::abs(expected) < flush_below) continue;
      const double error = ulps(y[i], expected);
      EXPECT_LT(error, 16) << "at " << x[i] << ": " << y[i] << ", expected " << expected;
      if (error >= 16) return error;
      largest = std::max(largest, error);
    }
  }
  ::testing::Test::RecordProperty("largest_ulps", std::to_string(largest));
  return largest;
}

class MathTest : public OnTarget {};

TEST_P(MathTest, ExpIsWithinTwoUnits) {
  EXPECT_LE(largest_error(math_exp, [](double x) { return std::exp(x); }), 2);
}
TEST_P(MathTest, SigmoidIsWithinThreeUnits) {
  EXPECT_LE(largest_error(
                math_sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, 0x1p-126),
            3);
}
TEST_P(MathTest, SiluIsWithinThreeUnits) {
  EXPECT_LE(largest_error(
                math_silu, [](double x) { return x / (1 + std::exp(-x)); }, 0x1p-120),
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

TEST_P(MathTest, BordersAreExact) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
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

}  // namespace
}  // namespace deltaworks

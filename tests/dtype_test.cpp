// Element types: every 16-bit pattern survives a round trip, and rounding is to nearest even.
#include "deltaworks/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/random.hpp"

namespace deltaworks {
namespace {

template <class T>
class DTypeTest : public ::testing::Test {};
using SixteenBit = ::testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(DTypeTest, SixteenBit);

TYPED_TEST(DTypeTest, EveryPatternSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const TypeParam element{static_cast<std::uint16_t>(bits)};
    const float value = to_float(element);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(from_float<TypeParam>(value)))) << bits;
    } else {
      EXPECT_EQ(from_float<TypeParam>(value).bits, bits);
    }
  }
}

TYPED_TEST(DTypeTest, RoundsToTheNearestAndTiesToEven) {
  for (std::uint32_t bits = 0; bits + 1 < 0x7c00; ++bits) {
    const TypeParam below{static_cast<std::uint16_t>(bits)};
    const TypeParam above{static_cast<std::uint16_t>(bits + 1)};
    const float middle = (to_float(below) + to_float(above)) / 2;  // exact in float32
    if (std::isinf(to_float(above))) break;
    EXPECT_EQ(from_float<TypeParam>(middle).bits, bits + (bits & 1)) << bits;
    EXPECT_EQ(from_float<TypeParam>(std::nextafter(middle, 0.0f)).bits, bits);
    EXPECT_EQ(from_float<TypeParam>(std::nextafter(middle, 1e38f)).bits, bits + 1);
    EXPECT_EQ(from_float<TypeParam>(-middle).bits, 0x8000 | (bits + (bits & 1)));
  }
}

TEST(Float16Test, OverflowsToInfinityFromHalfAStepAboveTheLargest) {
  EXPECT_EQ(from_float<Float16>(std::nextafter(65520.0f, 0.0f)).bits, 0x7bff);
  EXPECT_EQ(from_float<Float16>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(from_float<Float16>(-std::numeric_limits<float>::max()).bits, 0xfc00);
}

}  // namespace
}  // namespace deltaworks

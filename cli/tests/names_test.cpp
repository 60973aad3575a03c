#include "names.hpp"

#include <gtest/gtest.h>

namespace deltaworks::cli {
namespace {

using Names = std::vector<std::string>;

TEST(Names, ThatDifferInTheirFirstNumberBecomeOne) {
  EXPECT_EQ(merged({"/layers.0/conv", "/layers.1/conv", "/layers.2/conv", "/layers.4/conv"}),
            Names{"/layers.{0-2,4}/conv"});
  EXPECT_EQ(merged({"a", "x1", "b", "x3", "x1y"}), (Names{"a", "x{1,3}", "b", "x1y"}));
  EXPECT_EQ(merged({"layer 7"}), Names{"layer 7"});
  EXPECT_EQ(merged({"n123456789012345678901", "n123456789012345678902"}),
            (Names{"n123456789012345678901", "n123456789012345678902"}));
  EXPECT_EQ(merged({}), Names{});
}

TEST(Names, ControlCharactersAreShown) {
  using namespace std::string_view_literals;
  EXPECT_EQ(printable("a\x1b[31m\n\0\x7f\xc2\x9bz"sv), "a\\x1b[31m\\x0a\\x00\\x7f\\x9bz");
  EXPECT_EQ(printable("/läyers.0/µ ☂"), "/läyers.0/µ ☂");
}

TEST(Names, SizesHaveUnits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(3 << 20), "3.0 MiB");
  EXPECT_EQ(bytes_text(std::int64_t{200} << 30), "200 GiB");
  EXPECT_EQ(bytes_text(std::int64_t{7} << 60), "7.0 EiB");
}

}  // namespace
}  // namespace deltaworks::cli

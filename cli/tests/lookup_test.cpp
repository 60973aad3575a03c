#include "lookup.hpp"

#include <gtest/gtest.h>

#include <string_view>

namespace deltaworks::cli {
namespace {

std::string drafts(std::string_view history, std::size_t limit, LookupLengths lengths = {}) {
  std::vector<std::int32_t> tokens(history.begin(), history.end());
  const auto proposed = lookup_drafts(tokens, limit, lengths);
  return {proposed.begin(), proposed.end()};
}

TEST(Lookup, CopiesWhatFollowedTheSuffix) { EXPECT_EQ(drafts("the cat. the", 4), " ca"); }

TEST(Lookup, ProposesNothingWithoutAnEarlierOccurrence) {
  EXPECT_EQ(drafts("", 4), "");
  EXPECT_EQ(drafts("a", 4), "");
  EXPECT_EQ(drafts("abcdef", 4), "");
  EXPECT_EQ(drafts("the cat. the", 0), "");
}

TEST(Lookup, ShorterMatchesThanTheShortestProposeNothing) {
  EXPECT_EQ(drafts("xaby, zab", 1, {.shortest = 2, .longest = 8}), "y");
  EXPECT_EQ(drafts("xaby, zab", 1, {.shortest = 3, .longest = 8}), "");
}

TEST(Lookup, PrefersTheLongestThenTheMostRecent) {
  EXPECT_EQ(drafts("abcd1 bcd2 abcd", 1), "1");
  EXPECT_EQ(drafts("bcd1 bcd2 bcd", 1), "2");
  EXPECT_EQ(drafts("abcd1 bcd2 abcd", 1, {.shortest = 3, .longest = 3}), "2");
}

TEST(Lookup, DraftsNoMoreThanAgreed) {
  EXPECT_EQ(drafts("..ab 123456789 ,,ab ", 7), "123");
  EXPECT_EQ(drafts("abcdefgh 123456789, abcdefgh ", 7), "1234567");
}

TEST(Lookup, FollowsALoopBeyondTheEnd) {
  EXPECT_EQ(drafts("xyxyxyxyxy", 7), "xyxyxyx");
  EXPECT_EQ(drafts("zzzzzzzz", 7), "zzzzzzz");
}

}  // namespace
}  // namespace deltaworks::cli

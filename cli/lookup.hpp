// Prompt lookup: drafts without a model, copied from what the text has said before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace deltaworks::cli {

struct LookupLengths {
  std::size_t shortest = 2;  // a suffix of fewer tokens proposes nothing
  std::size_t longest = 16;  // a longer match is not preferred to a more recent one
};

// At most `limit` drafts: what followed the most recent earlier occurrence of the longest suffix of
// `history`, and no more tokens than that suffix has: a short match is likely to be chance. A match
// that runs into the end of the history goes on with its own drafts. (Saxena, "Prompt lookup
// decoding", 2023.)
std::vector<std::int32_t> lookup_drafts(std::span<const std::int32_t> history, std::size_t limit,
                                        const LookupLengths& lengths = {});

}  // namespace deltaworks::cli

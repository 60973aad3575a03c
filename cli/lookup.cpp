#include "lookup.hpp"

#include <algorithm>

namespace deltaworks::cli {

namespace {

// Tokens that the text ending before `end` shares with the end of the history, up to `longest`.
std::size_t match_length(std::span<const std::int32_t> history, std::size_t end,
                         std::size_t longest) {
  const std::size_t most = std::min(end, longest);
  std::size_t length = 0;
  while (length < most && history[end - 1 - length] == history[history.size() - 1 - length]) {
    ++length;
  }
  return length;
}

}  // namespace

std::vector<std::int32_t> lookup_drafts(std::span<const std::int32_t> history, std::size_t limit,
                                        const LookupLengths& lengths) {
  if (limit == 0 || history.empty()) return {};
  std::size_t best_length = 0, best_end = 0;
  for (std::size_t end = history.size() - 1; end > 0 && best_length < lengths.longest; --end) {
    const std::size_t length = match_length(history, end, lengths.longest);
    if (length > best_length) best_length = length, best_end = end;
  }
  if (best_length < lengths.shortest) return {};

  const std::size_t count = std::min(limit, best_length);
  std::vector<std::int32_t> drafts;
  for (std::size_t i = best_end; drafts.size() < count; ++i) {
    drafts.push_back(i < history.size() ? history[i] : drafts[i - history.size()]);
  }
  return drafts;
}

}  // namespace deltaworks::cli

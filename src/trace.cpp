#include "trace.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

namespace deltaworks {

bool Trace::is_on() {
  static const bool on = [] {
    const char* const wanted = std::getenv("DELTAWORKS_TRACE");
    return wanted != nullptr && *wanted != '\0' && std::string_view(wanted) != "0";
  }();
  return on;
}

void Trace::begin(std::string_view op, DType dtype, const Extents& extents, const char* engine) {
  line_ = fmt::format("deltaworks: {} {}: ", op, name(dtype));
  for (const auto& [extent, value] : extents) line_ += fmt::format("{} {}, ", extent, value);
  line_.replace(line_.size() - 2, 2, fmt::format("; {}; ", engine));
  start_ = std::chrono::steady_clock::now();
}

// In one write, so that calls on several threads do not mix their lines.
void Trace::end() const {
  const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - start_;
  const std::string text = fmt::format("{}{:.1f} us\n", line_, taken.count());
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace deltaworks

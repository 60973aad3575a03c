#include "contract/engine.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "contract/values.hpp"

namespace deltaworks::contract {

Outcome<Engine> parse_engine(std::string_view op, std::string_view source, std::string_view text) {
  if (text == "auto") return Engine::kAuto;
  if (text == "recurrent") return Engine::kRecurrent;
  if (text == "chunked") return Engine::kChunked;
  const char* const fate = text == "deferred" ? ", which does not exist yet" : "";
  return fmt::format("{}: {} is \"{}\"{}, expected one of auto, recurrent, chunked", op, source,
                     text, fate);
}

Engine chosen_engine(std::string_view op, Engine asked, Engine own_choice) {
  if (asked > Engine::kChunked) {
    throw InvalidArgument(fmt::format("{}: engine is {}, expected 0 to {}", op,
                                      static_cast<int>(asked), static_cast<int>(Engine::kChunked)));
  }
  // A copy, since a later setenv may end the variable's memory.
  static const std::string environment = [] {
    const char* const text = std::getenv("DELTAWORKS_ENGINE");
    return std::string(text == nullptr ? "" : text);
  }();
  if (asked == Engine::kAuto && !environment.empty()) {
    asked = value_or_throw(parse_engine(op, "DELTAWORKS_ENGINE", environment));
  }
  return asked == Engine::kAuto ? own_choice : asked;
}

std::int64_t chunked_tokens(const GatedDeltaNetGeometry& geometry, Engine chosen,
                            std::int64_t length, std::int64_t captured) {
  const bool serves = chosen == Engine::kChunked && !geometry.decay_per_key &&
                      geometry.key_dim != kUnknown && geometry.key_dim <= kMaxChunkedKeyDim &&
                      captured == 0;
  return serves ? length / kChunkTokens * kChunkTokens : 0;
}

}  // namespace deltaworks::contract

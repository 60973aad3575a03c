// Which engine of gated_delta_net runs: asked by the operator, the ONNX nodes and the command line.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "contract/gated_delta_net.hpp"
#include "contract/tensor.hpp"
#include "deltaworks/gated_delta_net.hpp"

namespace deltaworks::contract {

inline constexpr std::int64_t kChunkTokens = 16;  // 8 and 32 are slower: Gram matrices, solution
inline constexpr std::int64_t kMaxChunkedKeyDim =
    256;  // a task keeps a panel of the state on its stack

// The name of an engine, where `source` says it: an argument, a configuration entry, the environment.
Outcome<Engine> parse_engine(std::string_view op, std::string_view source, std::string_view text);

// The engine asked for, or the environment's instead of kAuto, or the device's own choice; never kAuto. Throws
// InvalidArgument when there is no such engine.
Engine chosen_engine(std::string_view op, Engine asked, Engine own_choice = Engine::kRecurrent);

// The first tokens of a sequence that the chunked engine takes: whole chunks of one that captures nothing. The recurrent
// engine takes the others, so that a split among them changes no bit.
std::int64_t chunked_tokens(const GatedDeltaNetGeometry& geometry, Engine chosen,
                            std::int64_t length, std::int64_t captured);

// Whether a call leaves sequence b out.
template <class T, class G>
bool is_skipped(const GatedDeltaNetArgs<T, G>& args, std::int64_t b) {
  return args.slots_in && ((*args.slots_in)(b) < 0 || (*args.slots_out)(b) < 0);
}

// How many tokens of sequence b a call captures.
template <class T, class G>
std::int64_t captured_tokens(const GatedDeltaNetArgs<T, G>& args,
                             const GatedDeltaNetGeometry& geometry, std::int64_t b) {
  if (geometry.capacity == 0 || !args.state_update_active || is_skipped(args, b)) return 0;
  const std::int64_t length = args.cu_seqlens(b + 1) - args.cu_seqlens(b);
  return std::clamp<std::int64_t>((*args.capture_count)(b), 0, std::min(geometry.capacity, length));
}

// chunked_tokens of sequence b of a call whose engine is chosen.
template <class T, class G>
std::int64_t chunked_tokens(const GatedDeltaNetArgs<T, G>& args,
                            const GatedDeltaNetGeometry& geometry, std::int64_t b) {
  if (is_skipped(args, b)) return 0;
  const std::int64_t length = args.cu_seqlens(b + 1) - args.cu_seqlens(b);
  return chunked_tokens(geometry, args.engine, length, captured_tokens(args, geometry, b));
}

}  // namespace deltaworks::contract

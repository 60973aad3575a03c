// Which engine of gated_delta_net runs: asked by the operator, the ONNX nodes and the command line.
#pragma once

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

// Throws InvalidArgument when there is no such engine.
void check_engine(std::string_view op, Engine asked);

// The engine asked for, or the environment's instead of kAuto; never kAuto. Throws InvalidArgument when there is no such
// engine.
Engine chosen_engine(std::string_view op, Engine asked);

// The first tokens of a sequence that the chunked engine takes: whole chunks of one that captures nothing. The recurrent
// engine takes the others, so that a split among them changes no bit.
std::int64_t chunked_tokens(const GatedDeltaNetGeometry& geometry, Engine chosen,
                            std::int64_t length, std::int64_t captured);

}  // namespace deltaworks::contract

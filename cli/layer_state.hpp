// The carried state of a linear layer, which a call writes as a whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tensor.hpp"

namespace deltaworks::cli {

// A call reads one bank and writes the other, so that the state before it is still there when some
// of its tokens are taken back.
struct LayerState {
  std::string past, present, update_name;  // in the graph
  Tensor banks[2];
  std::optional<Tensor> update;  // what a verifying call captures
};

// Writes into the other bank the state in `bank` after the first `count` captured tokens.
void replay_convolution(const LayerState& layer, int bank, std::int32_t count);
void replay_recurrence(const LayerState& layer, int bank, std::int32_t count,
                       std::int64_t key_heads, std::int64_t capacity);

}  // namespace deltaworks::cli

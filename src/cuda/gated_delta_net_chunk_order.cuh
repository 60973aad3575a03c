// Which sequence a block of the chunked engine serves. Blocks start in the order of their indices: the
// longest sequences first, so that none is left over at the end, when the rest of the card has nothing
// to do. In a batch that has room for few long sequences, blocks are started for so many only.
#pragma once

#include <cstdint>

#include "cuda/gated_delta_net_call.cuh"
#include "cuda/gated_delta_net_chunked.hpp"
#include "cuda/gated_delta_net_step.cuh"

namespace deltaworks::cuda {

// So many neighbours at most are put in order: of more, each group. Every block looks for itself, and
// 128 cost half a microsecond, a twentieth of 64 tokens.
inline constexpr std::int32_t kOrderedSequences = 32;
inline constexpr std::int64_t kProcessors = 132;  // of an H100 or H200

// Grows with the length, up to 255: exact to an eighth of it in units of 64 tokens. 0 where the
// recurrent engine serves the sequence.
__device__ inline std::int32_t length_class(std::int32_t length) {
  if (length <= kLongest) return 0;
  const auto units = static_cast<float>((length - 1) / 64 + 1);
  return (__float_as_int(units) >> 20) - (127 << 3) + 1;  // exponent and three bits of the fraction
}

// The sequence at place `rank` of the batch: in groups of neighbours the longest first, equal classes
// in the order of the batch. By a whole warp; every warp of the card has the same answer. Offsets out
// of order give some order.
template <class T>
__device__ std::int32_t longest_first(const GatedDeltaNetCall<T>& call, std::int32_t rank) {
  const std::int64_t blocks = std::int64_t{call.value_heads} * (call.value_dim / kChunkRows);
  if (call.sequences == 1 || call.sequences * blocks <= kProcessors) return rank;
  const std::int32_t groups = (call.sequences - 1) / kOrderedSequences + 1;
  const std::int32_t size = (call.sequences - 1) / groups + 1;
  const std::int32_t first = rank / size * size, count = min(size, call.sequences - first);
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const Offsets offsets = offsets_at(call, first + min(lane, count - 1));
  const auto difference =
      static_cast<std::uint32_t>(offsets.end) - static_cast<std::uint32_t>(offsets.begin);
  const std::int32_t length = max(static_cast<std::int32_t>(difference), 0);
  // Left over at the end, the longest would cost a sixteenth of the time: little more than the search.
  const std::int64_t longest = __reduce_max_sync(kFullWarp, length);
  if (longest * kProcessors * 16 <= call.tokens * blocks) return rank;
  const std::int32_t own = lane < count ? length_class(length) : -1;
  // The greatest class that more than `place` sequences are in or above, bit by bit; and how many are
  // above it.
  const std::int32_t place = rank - first;
  std::int32_t wanted = 0, above = 0;
#pragma unroll
  for (std::int32_t bit = 128; bit > 0; bit /= 2) {
    const std::int32_t so_many = __popc(__ballot_sync(kFullWarp, own >= wanted + bit));
    if (so_many > place) {
      wanted += bit;
    } else {
      above = so_many;
    }
  }
  const std::uint32_t members = __ballot_sync(kFullWarp, own == wanted);
  const bool is_it = own == wanted && __popc(members & ((1u << lane) - 1)) == place - above;
  return first + __ffs(static_cast<int>(__ballot_sync(kFullWarp, is_it))) - 1;
}

// How many sequences of a call can be long. Offsets out of order can hold more, of which some are then
// not served.
template <class T>
__host__ __device__ std::int32_t most_long_sequences(const GatedDeltaNetCall<T>& call) {
  const std::int32_t most = call.tokens / (kLongest + 1);
  return most < call.sequences ? most : call.sequences;
}

// The long sequence that `rank` others come before, −1 when there is none. By a whole warp.
template <class T>
__device__ std::int32_t long_sequence(const GatedDeltaNetCall<T>& call, std::int32_t rank) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  for (std::int32_t first = 0; first < call.sequences; first += 32) {
    const std::int32_t b = min(first + lane, call.sequences - 1);
    const bool is_long = first + lane < call.sequences && is_chunked(sequence_at(call, b));
    std::uint32_t members = __ballot_sync(kFullWarp, is_long);
    const std::int32_t count = __popc(members);
    if (rank < count) {
      for (; rank > 0; --rank) members &= members - 1;
      return first + __ffs(static_cast<int>(members)) - 1;
    }
    rank -= count;
  }
  return -1;
}

// The sequence of the blocks of place `rank`, −1 when there is none.
template <class T>
__device__ std::int32_t chunked_sequence(const GatedDeltaNetCall<T>& call, std::int32_t rank) {
  return most_long_sequences(call) < call.sequences ? long_sequence(call, rank)
                                                    : longest_first(call, rank);
}

}  // namespace deltaworks::cuda

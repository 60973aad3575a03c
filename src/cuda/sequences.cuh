// Offsets, slots and counts that only the GPU knows: whatever they hold, what comes out of here stays
// inside the operands.
#pragma once

#include <cstdint>

#include "deltaworks/device.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks::cuda {

using Ints = View<const std::int32_t, 1>;

// A kernel's view of an operand that may be left out: no data when it is.
template <class T, std::size_t Rank>
View<T, Rank> or_null(const OptionalView<T, Rank>& view) {
  return view ? *view : View<T, Rank>();
}

__device__ inline void report(std::int32_t* faults, CudaFault fault) {
  if (faults != nullptr) atomicOr(faults, fault);
}

__device__ inline std::int64_t clamp(std::int64_t x, std::int64_t low, std::int64_t high) {
  return x < low ? low : x > high ? high : x;
}

// Rows [begin, begin + length) of the packed operands.
struct Span {
  std::int64_t begin, length;
};

__device__ inline Span span_of(const Ints& cu_seqlens, std::int64_t sequence, std::int64_t tokens) {
  const std::int64_t begin = clamp(cu_seqlens(sequence), 0, tokens);
  return {begin, clamp(cu_seqlens(sequence + 1), begin, tokens) - begin};
}

// For one thread a sequence.
__device__ inline void check_span(const Ints& cu_seqlens, std::int64_t sequence,
                                  std::int64_t tokens, std::int32_t* faults) {
  const std::int32_t begin = cu_seqlens(sequence), end = cu_seqlens(sequence + 1);
  if ((sequence == 0 && begin != 0) || end < begin || end > tokens) report(faults, kCudaOffsets);
}

// The sequence that packed row `row` belongs to; `sequences` when none does. Decreasing offsets give
// some sequence, whose span need not hold the row.
__device__ inline std::int64_t sequence_of(const Ints& cu_seqlens, std::int64_t row) {
  std::int64_t low = 0, high = cu_seqlens.extent(0);  // cu_seqlens(low) <= row < cu_seqlens(high)
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (cu_seqlens(middle) <= row ? low : high) = middle;
  }
  return low;
}

// Where the states of a batch lie. Without a pool, sequence b has slot b.
struct Pool {
  Ints slots_in, slots_out, fresh;
  std::int64_t slots;
};

struct Slot {
  std::int64_t in, out;
  bool is_skipped, is_fresh;
};

__device__ inline Slot slot_of(const Pool& pool, std::int64_t sequence) {
  const bool is_fresh = pool.fresh.data() != nullptr && pool.fresh(sequence) != 0;
  if (pool.slots_in.data() == nullptr) return {sequence, sequence, false, is_fresh};
  const std::int32_t in = pool.slots_in(sequence), out = pool.slots_out(sequence);
  return {in, out, in < 0 || out < 0 || in >= pool.slots || out >= pool.slots, is_fresh};
}

// For one thread a sequence.
__device__ inline void check_slot(const Pool& pool, std::int64_t sequence, std::int32_t* faults) {
  const Slot slot = slot_of(pool, sequence);
  if (slot.in >= pool.slots || slot.out >= pool.slots) report(faults, kCudaSlots);
}

}  // namespace deltaworks::cuda

// The recurrent engine for several tokens on Hopper: persistent blocks, whose next state tile and
// next tokens arrive while this tile computes.
//
// An item is 64 rows of one head of one sequence; a block of 128 threads works through items, and
// through each item in chunks of up to `chunk` tokens. Eight lanes hold four rows in registers, so
// that a token's key and query, read from shared memory, serve four rows. They are normalised once a
// chunk, eight lanes a token, while one warp activates the gates. The state tile comes by bulk copy:
// one thread starts it as soon as the tile before has been read into registers.
#pragma once

#include "cuda/async_copy.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/gated_delta_net_call.cuh"
#include "cuda/gated_delta_net_step.cuh"

namespace deltaworks::cuda {

inline constexpr int kVerifyThreads = 128;
inline constexpr int kVerifyBlocks = 4;  // on a multiprocessor: 128 registers a thread
inline constexpr int kVerifyRows = 64;
inline constexpr int kLaneRows = 4;
inline constexpr int kVerifyChunk = 8;   // most tokens in a chunk: more, and three blocks fit
inline constexpr int kVerifyItems = 64;  // that a block knows in advance
static_assert(kVerifyRows == kVerifyThreads / kLanes * kLaneRows);
static_assert(kVerifyChunk <= kVerifyThreads / kLanes);

// What the steps need of a token beside its vectors, in one load.
struct alignas(16) TokenScalars {
  Gates gates;
  float key_query;
};

// Rows first_row … first_row + kVerifyRows − 1 of head h of sequence b.
struct VerifyItem {
  Sequence sequence;
  std::int32_t b, h, first_row, key_column;
};

// A chunk of tokens of a block's item: tokens first, first + 1, … of its sequence.
struct VerifyChunk {
  std::int32_t index, first;

  // Tokens in it; a skipped sequence has one chunk of none, as an empty one has.
  __device__ std::int32_t count(const Sequence& sequence, int chunk) const {
    return sequence.is_skipped() ? 0 : min(chunk, sequence.length - first);
  }
  __device__ VerifyChunk next(const Sequence& sequence, int chunk) const {
    const bool goes_on = !sequence.is_skipped() && first + chunk < sequence.length;
    return goes_on ? VerifyChunk{index, first + chunk} : VerifyChunk{index + 1, 0};
  }
};

extern __shared__ __align__(128) unsigned char verify_memory[];

// A block's shared memory, for chunks of `chunk` tokens. Pointers are made anew at each use: kept,
// they would take two registers each in a loop that has none to spare.
template <class T>
struct VerifyMemory {
  static constexpr int kRawRow = 2 * kKeyDim + kVerifyRows;  // key, query, values of the rows
  static constexpr int kRawBytes = kRawRow * static_cast<int>(sizeof(T));
  static constexpr int kVectorBytes = kKeyDim * 4;  // a token's key, or its query
  static constexpr int kBarrierAt = kVerifyRows * kKeyDim * 4;
  static constexpr int kScalarsAt = kBarrierAt + 16;
  static constexpr int kVectorsAt =
      kScalarsAt + kVerifyChunk * static_cast<int>(sizeof(TokenScalars));
  static constexpr int kItemBytes = kVerifyItems * static_cast<int>(sizeof(VerifyItem));

  int chunk;

  static constexpr int bytes(int chunk) {
    return kVectorsAt + chunk * 2 * (kVectorBytes + kRawBytes) + kItemBytes;
  }
  // [kVerifyRows, kKeyDim]
  __device__ static float* state() { return reinterpret_cast<float*>(verify_memory); }
  __device__ static CopyBarrier& state_barrier() {
    return *reinterpret_cast<CopyBarrier*>(verify_memory + kBarrierAt);
  }
  // [chunk]
  __device__ static TokenScalars* scalars() {
    return reinterpret_cast<TokenScalars*>(verify_memory + kScalarsAt);
  }
  // [chunk, 2, kKeyDim]: a token's key, then its query
  __device__ static float* vectors() {
    return reinterpret_cast<float*>(verify_memory + kVectorsAt);
  }
  // [chunk, kRawRow]
  __device__ T* raw(int buffer) const {
    return reinterpret_cast<T*>(verify_memory + kVectorsAt +
                                chunk * (2 * kVectorBytes + buffer * kRawBytes));
  }
  __device__ VerifyItem& item(std::int32_t index) const {
    auto* const items = verify_memory + kVectorsAt + chunk * 2 * (kVectorBytes + kRawBytes);
    return reinterpret_cast<VerifyItem*>(items)[index % kVerifyItems];
  }
};

template <class T, bool kCaptures>
class Verify {
 public:
  __device__ Verify(const GatedDeltaNetCall<T>& call, int chunk, std::uint32_t items)
      : call_(call), memory_{chunk}, chunk_(chunk) {
    own_items_ = static_cast<std::int32_t>((items - blockIdx.x - 1) / gridDim.x + 1);
  }

  __device__ void run() {
    if (threadIdx.x == 0) memory_.state_barrier().init();
    const bool has_work = learn_items(0, kVerifyItems);
    // Beside the chunked engine there is often none.
    if (!__syncthreads_or(has_work) && own_items_ <= kVerifyItems) return;
    copy_state(0);
    copy_tokens({0, 0}, 0);
    RawGates raw_gates = own_gates({0, 0});
    StateRows<kLaneRows> state;
    std::uint32_t turn = 0, tiles = 0;
    for (VerifyChunk at{0, 0}; own_items_ > at.index; ++turn) {
      const int buffer = turn % 2;
      const VerifyItem& item = memory_.item(at.index);
      const VerifyChunk next = at.next(item.sequence, chunk_);
      const std::int32_t count = at.count(item.sequence, chunk_);
      const bool has_next = own_items_ > next.index;
      wait_for_async_copies();
      __syncthreads();  // this chunk's tokens are here, the chunk before has been read
      if (has_next) copy_tokens(next, 1 - buffer);
      if (at.first == 0) open_item(item, at.index);
      prepare(item, at.first, count, memory_.raw(buffer), raw_gates);
      if (has_next) raw_gates = own_gates(next);
      if (at.first == 0) load_state(item.sequence, tiles, state);
      __syncthreads();  // the tokens are prepared, the state tile has been read
      if (has_next && next.first == 0) copy_state(next.index);
      steps(item, at.first, count, memory_.raw(buffer), state);
      if (next.first == 0) store_state(item, state);
      at = next;
    }
  }

 private:
  static constexpr int kGateWarp = kVerifyThreads / 32 - 1;  // the last to prepare tokens

  __device__ static int lane() { return threadIdx.x % kLanes; }
  __device__ static int first_lane_row() { return threadIdx.x / kLanes * kLaneRows; }

  // Items first … end − 1 of this block, in the order row block, head, sequence. Whether any of those
  // that this thread looks up leaves something to do.
  __device__ bool learn_items(std::int32_t first, std::int32_t end) const {
    bool has_work = false;
    const auto blocks = static_cast<std::uint32_t>(call_.value_dim / kVerifyRows);
    const auto heads = static_cast<std::uint32_t>(call_.value_heads);
    for (std::int32_t i = first + threadIdx.x; i < min(end, own_items_); i += kVerifyThreads) {
      const std::uint32_t item = blockIdx.x + static_cast<std::uint32_t>(i) * gridDim.x;
      const std::uint32_t head = item / blocks, row_block = item % blocks;
      const auto b = static_cast<std::int32_t>(head / heads);
      const auto h = static_cast<std::int32_t>(head % heads);
      const Sequence sequence = without_chunked(call_, sequence_at(call_, b));
      memory_.item(i) = {sequence, b, h, static_cast<std::int32_t>(row_block * kVerifyRows),
                         call_.key_column(h)};
      if (h == 0 && row_block == 0) check_sequence(call_, b);
      has_work = has_work || kCaptures || !sequence.is_skipped() || sequence.length > 0;
    }
    return has_work;
  }

  __device__ void copy_state(std::int32_t index) const {
    const VerifyItem& item = memory_.item(index);
    if (threadIdx.x != 0 || item.sequence.is_skipped() || item.sequence.starts_from_zero()) return;
    constexpr int kParts = 2, kFloats = kVerifyRows * kKeyDim / kParts;
    const float* const from = call_.initial_state + item.sequence.slots.in * call_.initial_stride +
                              call_.state_row(item.h, item.first_row);
    CopyBarrier& barrier = memory_.state_barrier();
    barrier.announce(kParts * kFloats * 4);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      bulk_copy_streaming(memory_.state() + part * kFloats, from + part * kFloats, kFloats * 4,
                          barrier);
    }
  }

  // By all threads, 16 bytes at a time: a thread copies the same place of every few tokens.
  __device__ void copy_tokens(VerifyChunk at, int buffer) const {
    constexpr int kSize = 16 / sizeof(T), kPerRow = memory_.kRawRow / kSize;
    constexpr int kTogether = kVerifyThreads / kPerRow;  // tokens
    const VerifyItem& item = memory_.item(at.index);
    const std::int32_t count = at.count(item.sequence, chunk_);
    const int place = threadIdx.x % kPerRow * kSize, first = threadIdx.x / kPerRow;
    const T* from = call_.value + call_.column(item.h, item.first_row) + place - 2 * kKeyDim;
    std::int64_t stride = call_.value_stride;
    if (place < 2 * kKeyDim) {
      const bool is_key = place < kKeyDim;
      from = (is_key ? call_.key : call_.query) + item.key_column + place % kKeyDim;
      stride = is_key ? call_.key_stride : call_.query_stride;
    }
    from += (item.sequence.start + at.first + first) * stride;
    if (first >= kTogether) return;
    for (std::int32_t t = first; t < count; t += kTogether) {
      async_copy16(memory_.raw(buffer) + t * memory_.kRawRow + place, from);
      from += kTogether * stride;
    }
  }

  // Raw gates of the token that this thread activates, read a chunk ahead.
  __device__ RawGates own_gates(VerifyChunk at) const {
    const VerifyItem& item = memory_.item(at.index);
    const std::int32_t t = threadIdx.x - 32 * kGateWarp;
    if (t < 0 || t >= at.count(item.sequence, chunk_)) return {};
    return load_gates(call_, item.sequence.start + at.first + t, item.h);
  }

  // What an item does once: unused capsule slots, a skipped sequence's output, and items to come.
  __device__ void open_item(const VerifyItem& item, std::int32_t index) const {
    if (kCaptures) {
      Capsule<T>{call_, item.b, item.h}.clear(item.sequence.captured, item.first_row, kVerifyRows);
    }
    if (item.sequence.is_skipped()) {
      clear_output(call_, item.sequence, item.h, item.first_row, kVerifyRows);
    }
    constexpr std::int32_t kHalf = kVerifyItems / 2;  // the other half is in use
    if (index > 0 && index % kHalf == 0) learn_items(index + kHalf, index + kVerifyItems);
  }

  __device__ void prepare(const VerifyItem& item, std::int32_t first, std::int32_t count,
                          const T* raw, const RawGates& raw_gates) const {
    const Capsule<T> capsule{call_, item.b, item.h};
    const bool owns_shared = item.first_row == 0;
    const std::int32_t gate = threadIdx.x - 32 * kGateWarp, t = threadIdx.x / kLanes;
    if (gate >= 0 && gate < count) {
      const Gates gates = activate(call_, raw_gates);
      memory_.scalars()[gate].gates = gates;
      if (kCaptures && owns_shared && first + gate < item.sequence.captured) {
        *capsule.decays(first + gate) = gates.decay;
      }
    }
    if (t / 4 * 4 >= count) return;  // a warp prepares four tokens
    __syncwarp();
    const T* const row = raw + min(t, count - 1) * memory_.kRawRow + 4 * lane();
    KeyQuery kq;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      kq.key[j] = load4<true>(row + 4 * kLanes * j);
      kq.query[j] = load4<true>(row + kKeyDim + 4 * kLanes * j);
    }
    normalise(kq, call_.epsilon);
    if (t >= count) return;
    const bool captures =
        kCaptures && owns_shared && first + t < item.sequence.captured && capsule.owns_keys();
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const int i = 4 * (j * kLanes + lane());
      store<4>(kq.key[j], memory_.vectors() + 2 * t * kKeyDim + i);
      store<4>(kq.query[j], memory_.vectors() + (2 * t + 1) * kKeyDim + i);
    }
    if (captures) store_key(kq, capsule.keys(first + t) + 4 * lane());
    if (lane() == 0) memory_.scalars()[t].key_query = kq.key_query;
  }

  // A capsule's keys start at any multiple of a float.
  __device__ static void store_key(const KeyQuery& kq, float* to) {
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(to) % sizeof(Four) == 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      is_aligned ? stream_store4<true>(kq.key[j], to + 4 * kLanes * j)
                 : stream_store4<false>(kq.key[j], to + 4 * kLanes * j);
    }
  }

  __device__ void load_state(const Sequence& sequence, std::uint32_t& tiles,
                             StateRows<kLaneRows>& state) const {
    if (sequence.is_skipped() || sequence.starts_from_zero()) {
      state = {};
      return;
    }
    memory_.state_barrier().wait(tiles++ % 2);
#pragma unroll
    for (int i = 0; i < kLaneRows * kPieces; ++i) {
      const int row = first_lane_row() + i / kPieces, j = i % kPieces;
      state.at[i / kPieces][j] =
          load<4>(memory_.state() + row * kKeyDim + 4 * (j * kLanes + lane()));
    }
  }

  __device__ void steps(const VerifyItem& item, std::int32_t first, std::int32_t count,
                        const T* raw, StateRows<kLaneRows>& state) const {
    const int row = first_lane_row() + row_of_lane<kLaneRows>(lane());
    const float* key = memory_.vectors() + 4 * lane();
    const T* value = raw + 2 * kKeyDim + row;
    LaneStore to = lane_store(item, first, count, row);
    if (count == 0) return;
    // Read a token ahead: they come last into the chain from one token's state to the next.
    TokenScalars scalars = memory_.scalars()[0];
    T next_value = *value;
#pragma unroll 1
    for (std::int32_t t = 0; t < count; ++t) {
      const TokenScalars now = scalars;
      const float value_now = widen(next_value);
      const std::int32_t ahead = min(t + 1, count - 1);
      scalars = memory_.scalars()[ahead];
      next_value = value[ahead * memory_.kRawRow];
      const auto result = step<kLaneRows>(
          state, [&](int j) { return load<4>(key + 4 * kLanes * j); },
          [&](int j) { return load<4>(key + kKeyDim + 4 * kLanes * j); }, now.key_query, now.gates,
          value_now, call_.recalls, lane());
      to.store(t, result, call_.scale, is_output_lane<kLaneRows>(lane()));
      key += 2 * kKeyDim;
    }
  }

  // Where a lane's results of a chunk go: its outputs, or its deltas of the first tokens. One pointer for
  // both, since the steps have no registers to spare, and no branch between the lanes.
  struct LaneStore {
    char* at;
    std::uint32_t stride_bytes;
    std::int32_t tokens;

    __device__ void store(std::int32_t t, const StepResult& result, float scale, bool is_output) {
      __builtin_assume(__isGlobal(at));
      const bool stores = !kCaptures || t < tokens;
      if (stores && is_output) *reinterpret_cast<T*>(at) = narrow<T>(scale * result.output);
      if (kCaptures && stores && !is_output) *reinterpret_cast<float*>(at) = result.delta;
      at += stride_bytes;
    }
  };

  __device__ LaneStore lane_store(const VerifyItem& item, std::int32_t first, std::int32_t count,
                                  int row) const {
    if (kCaptures && !is_output_lane<kLaneRows>(lane())) {
      float* const delta = Capsule<T>{call_, item.b, item.h}.deltas(first) + item.first_row + row;
      return {reinterpret_cast<char*>(delta),
              static_cast<std::uint32_t>(call_.value_heads * call_.value_dim) * 4,
              item.sequence.captured - first};
    }
    T* const output = call_.output + (item.sequence.start + first) * call_.output_stride +
                      call_.column(item.h, item.first_row + row);
    return {reinterpret_cast<char*>(output),
            static_cast<std::uint32_t>(call_.output_stride) * static_cast<std::uint32_t>(sizeof(T)),
            count};
  }

  __device__ void store_state(const VerifyItem& item, const StateRows<kLaneRows>& state) const {
    if (item.sequence.is_skipped()) return;
    float* const to = call_.final_state + item.sequence.slots.out * call_.final_stride +
                      call_.state_row(item.h, item.first_row + first_lane_row()) + 4 * lane();
    store_state_rows<true>(state, to);
  }

  const GatedDeltaNetCall<T>& call_;
  VerifyMemory<T> memory_;
  int chunk_;
  std::int32_t own_items_;
};

// Grid: at most as many blocks as items, and as fit on the card at once.
template <class T, bool kCaptures>
__global__ void __launch_bounds__(kVerifyThreads, kVerifyBlocks)
    verify_kernel(const __grid_constant__ GatedDeltaNetCall<T> call, int chunk,
                  std::uint32_t items) {
  Verify<T, kCaptures>(call, chunk, items).run();
  wait_for_kernel_before();
}

}  // namespace deltaworks::cuda

// The part of the chunked engine that carries the state from chunk to chunk.
// Formulas in gated_delta_net_chunked.cu.
#pragma once

#include "cuda/gated_delta_net_chunk.cuh"

namespace deltaworks::cuda {

// Reads of shared memory by address. Addresses are carried from chunk to chunk in registers: pointers
// would be made anew at each use.
__device__ inline float2 load_shared2(std::uint32_t at) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at));
  return x;
}
__device__ inline float4 load_shared4(std::uint32_t at) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(at));
  return x;
}
__device__ inline uint4 load_shared_words(std::uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at));
  return x;
}
__device__ inline std::uint32_t kept(std::uint32_t x) {  // not made anew at each use
  asm volatile("" : "+r"(x));
  return x;
}

// By one warpgroup, which has 64 rows of the state in registers. All products are transposed: rows of
// the state down, tokens across, so that the sums of one are the left operand of the next.
template <class T>
class ChunkSteps {
 public:
  __device__ ChunkSteps(const GatedDeltaNetCall<T>& call, ChunkMemory& memory,
                        const Sequence& sequence, std::int32_t h, std::int32_t first_row)
      : call_(call), memory_(memory), sequence_(sequence), h_(h), first_row_(first_row) {
    const int half = lane() % 2, matrix = lane() / 8;
    const std::int64_t first = sequence.start + lane() / 2;
    output_ = call.output + first * call.output_stride +
              call.column(h, first_row + 16 * warp() + 8 * half);
    is_wide_ =
        reinterpret_cast<std::uintptr_t>(call.output) % 16 == 0 && call.output_stride % 8 == 0;
    lane_ = kept(lane());
    column_ = kept(2 * (lane() % 4));
    token_ = kept(lane() / 2);
    matrix_at_ = kept(tile_offset(8 * (matrix / 2) + lane() % 8, 2 * warp() + matrix % 2));
    result_at_ = kept(tile_offset(lane() / 2, 2 * warp() + half));
  }

  __device__ void run(int chunks) {
    float state[64], outputs[16]{};  // outputs: of the chunk before
    Left rounded[kKeyDim / 16];
    load_state(state);
    round_state(state, rounded);
    const Places first{shared_address(memory_.rows), shared_address(memory_.matrices),
                       shared_address(memory_.factors)};
    Places at = first;
    std::uint32_t values_before = first.rows + kValuesAt;  // any, at first
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (chunk % kPair == 0) memory_.wait_until_prepared(chunk / kPair);
      step(chunk, at, values_before, state, rounded, outputs);
      values_before = at.rows + kValuesAt;
      at.rows += sizeof(ChunkRows);
      at.matrices += sizeof(ChunkMatrices);
      at.factors += sizeof(ChunkFactors);
      if (at.rows == first.rows + sizeof(memory_.rows)) at.rows = first.rows;
      if (at.matrices == first.matrices + sizeof(memory_.matrices)) {
        at.matrices = first.matrices, at.factors = first.factors;
      }
    }
    stage_results(values_before, outputs);
    store_results(chunks - 1, load_shared_words(values_before + result_at_),
                  load_shared_words(values_before + result_at_ + kHalfTile));
    store_state(state);
  }

 private:
  static constexpr int kValuesAt = 2 * kTileBytes, kHalfTile = 16 * kTileRowBytes;
  static constexpr int kErrorAt = 0, kTailAt = 8 * kChunk, kResultAt = 12 * kChunk;
  static constexpr int kWholeAt = 16 * kChunk;  // and behind it bad, bad_queries
  static_assert(offsetof(ChunkRows, values) == kValuesAt &&
                offsetof(ChunkFactors, tail) == kTailAt);
  static_assert(offsetof(ChunkFactors, result) == kResultAt &&
                offsetof(ChunkFactors, whole) == kWholeAt);
  static_assert(offsetof(ChunkFactors, bad) == kWholeAt + 4 &&
                offsetof(ChunkFactors, bad_queries) == kWholeAt + 8);

  // Where what belongs to a chunk lies.
  struct Places {
    std::uint32_t rows, matrices, factors;
  };

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int warp() { return threadIdx.x % kGroupThreads / 32; }
  __device__ static int row() { return 16 * warp() + lane() / 4; }
  __device__ int column() const { return static_cast<int>(column_); }

  __device__ void load_state(float (&state)[64]) const {
    const float* const from = call_.initial_state + sequence_.slots.in * call_.initial_stride +
                              call_.state_row(h_, first_row_ + row()) + column();
#pragma unroll
    for (int j = 0; j < kKeyDim / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* const at = from + 8 * i * kKeyDim + 8 * j;
        state[4 * j + 2 * i] = sequence_.starts_from_zero() ? 0 : at[0];
        state[4 * j + 2 * i + 1] = sequence_.starts_from_zero() ? 0 : at[1];
      }
    }
  }

  __device__ void store_state(const float (&state)[64]) const {
    float* const to = call_.final_state + sequence_.slots.out * call_.final_stride +
                      call_.state_row(h_, first_row_ + row()) + column();
#pragma unroll
    for (int j = 0; j < kKeyDim / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float* const at = to + 8 * i * kKeyDim + 8 * j;
        at[0] = state[4 * j + 2 * i], at[1] = state[4 * j + 2 * i + 1];
      }
    }
  }

  __device__ static void round_state(const float (&state)[64], Left (&rounded)[kKeyDim / 16]) {
#pragma unroll
    for (int k = 0; k < kKeyDim / 16; ++k) rounded[k] = left_of<T>(state, k);
    hold(rounded);
  }

  // One chunk. The outputs of the chunk before are stored in the shadow of its products; its own are left
  // for the next.
  __device__ void step(int chunk, const Places& at, std::uint32_t values_before, float (&state)[64],
                       Left (&rounded)[kKeyDim / 16], float (&outputs)[16]) {
    const Tiles keys = tiles_at(at.rows), queries = keys.skip(kChunk * kTileRowBytes);
    const Tiles inverse = tiles_at(at.matrices);
    const Tiles attention = inverse.skip(16 * ChunkMatrices::kAttentionPart);
    std::uint32_t values[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_transposed(values[i], at.rows + kValuesAt + matrix_at_ + i * kHalfTile);
    }
    const float4 flags = load_shared4(at.factors + kWholeAt);
    float deltas[16];  // S K, then Δ
    products_begin();
    multiply<T, false>(deltas, rounded[0], keys);
#pragma unroll
    for (int k = 1; k < kKeyDim / 16; ++k) {
      multiply<T, true>(deltas, rounded[k], columns_from(keys, 16 * k));
    }
    products_commit();
    if (chunk > 0) stage_results(values_before, outputs);
    products_begin();
    multiply<T, false>(outputs, rounded[0], queries);  // S Q, then o
#pragma unroll
    for (int k = 1; k < kKeyDim / 16; ++k) {
      multiply<T, true>(outputs, rounded[k], columns_from(queries, 16 * k));
    }
    products_commit();
    note_bad(flags, values);
    products_wait<1>();
    hold(deltas);

    Left left[2], tailed[2];
    subtract(at.factors + kErrorAt + 8 * column_, values, deltas);
#pragma unroll
    for (int i = 0; i < 2; ++i) left[i] = left_of<T>(deltas, i);
    hold(left);
    products_begin();
    multiply<T, false>(deltas, left[0], inverse);
    multiply<T, true>(deltas, left[1], inverse.skip(kDepthBytes));
    products_commit();
#pragma unroll
    for (int i = 0; i < 64; ++i) state[i] *= flags.x;
    products_wait<0>();
    hold(deltas);
    hold(outputs);

    weigh(at.factors + kTailAt + 4 * column_, deltas, tailed);
    hold(tailed);
    hold(state);
    products_begin();
    multiply_rows<T>(state, tailed[0], keys);
    multiply_rows<T>(state, tailed[1], keys.skip(kDepthRowsBytes));
    products_commit();
    const uint4 upper = load_shared_words(values_before + result_at_);
    const uint4 lower = load_shared_words(values_before + result_at_ + kHalfTile);
    weigh(at.factors + kResultAt + 4 * column_, outputs);
#pragma unroll
    for (int i = 0; i < 2; ++i) left[i] = left_of<T>(deltas, i);
    hold(left);
    hold(outputs);
    products_begin();
    multiply<T, true>(outputs, left[0], attention);
    multiply<T, true>(outputs, left[1], attention.skip(kDepthBytes));
    products_commit();
    if (chunk > 0) store_results(chunk - 1, upper, lower);
    products_wait<1>();
    hold(state);
    if (__builtin_expect(bad_ < kChunk || bad_below_ < kChunk, 0)) poison(state);
    round_state(state, rounded);
    products_wait<0>();
    hold(outputs);
  }

  // Values that are not finite become zeros; bad_, bad_below_: the first token from which on this lane's
  // rows are no numbers.
  __device__ void note_bad(const float4& flags, std::uint32_t (&values)[2][4]) {
    bad_ = bad_below_ = __float_as_int(flags.y);
    bad_queries_ = __float_as_uint(flags.z);
    if (__builtin_expect(__any_sync(kFullWarp, !are_finite(values)), 0)) clear(values);
  }

  // R = β (v − exp(G) S k).
  __device__ static void subtract(std::uint32_t factors, const std::uint32_t (&values)[2][4],
                                  float (&recalled)[16]) {
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
      const float4 f = load_shared4(factors + 64 * j);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 v = widen2<T>(values[j / 2][2 * (j % 2) + i]);
        float* const r = recalled + 4 * j + 2 * i;
        r[0] = f.x * fmaf(-f.y, r[0], v.x);
        r[1] = f.z * fmaf(-f.w, r[1], v.y);
      }
    }
  }

  // Two elements at a time: what is not finite makes a sum of zeros something else.
  __device__ static bool are_finite(const std::uint32_t (&values)[2][4]) {
    using Pair = std::conditional_t<std::is_same_v<T, Float16>, __half2, __nv_bfloat162>;
    std::uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Pair none, pairs[2];
      const std::uint32_t zero = 0;
      memcpy(&none, &zero, sizeof(none));
      memcpy(&pairs[0], &values[0][j], sizeof(none));
      memcpy(&pairs[1], &values[1][j], sizeof(none));
      const Pair pair = __hfma2(pairs[0], none, __hmul2(pairs[1], none));
      std::uint32_t sum;
      memcpy(&sum, &pair, sizeof(sum));
      word |= sum;
    }
    return (word & 0x7fff7fffu) == 0;
  }

  // Rarely, by a warp.
  __device__ void clear(std::uint32_t (&values)[2][4]) {
    int bad[2] = {bad_, bad_below_};
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        std::uint32_t& word = values[j / 2][2 * (j % 2) + i];
        const float2 v = widen2<T>(word);
        if (!(fabsf(v.x) < INFINITY)) bad[i] = min(bad[i], 8 * j + column()), word &= 0xffff0000u;
        if (!(fabsf(v.y) < INFINITY)) bad[i] = min(bad[i], 8 * j + column() + 1), word &= 0xffffu;
      }
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      bad[0] = min(bad[0], __shfl_xor_sync(kFullWarp, bad[0], offset));
      bad[1] = min(bad[1], __shfl_xor_sync(kFullWarp, bad[1], offset));
    }
    bad_ = bad[0], bad_below_ = bad[1];
  }

  // Each token's column by its factor.
  __device__ static void weigh(std::uint32_t factors, float (&sums)[16]) {
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
      const float2 f = load_shared2(factors + 32 * j);
      float* const s = sums + 4 * j;
      s[0] *= f.x, s[1] *= f.y, s[2] *= f.x, s[3] *= f.y;
    }
  }
  __device__ static void weigh(std::uint32_t factors, const float (&sums)[16], Left (&to)[2]) {
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
      const float* const s = sums + 4 * j;
      const float2 f = load_shared2(factors + 32 * j);
      to[j / 2].at[2 * (j % 2)] = pack2<T>(s[0] * f.x, s[1] * f.y);
      to[j / 2].at[2 * (j % 2) + 1] = pack2<T>(s[2] * f.x, s[3] * f.y);
    }
  }

  // Rarely: NaN where a token that is not finite reaches.
  __device__ void poison(float (&state)[64]) const {
#pragma unroll
    for (int j = 0; j < 64; ++j) {
      if ((j / 2 % 2 == 0 ? bad_ : bad_below_) < kChunk) state[j] = NAN;
    }
  }

  // Rounded outputs into the tile of values, of which each warp alone has read its part. Before note_bad
  // of the next chunk, and with NaN where a token that is not finite reaches.
  __device__ void stage_results(std::uint32_t values, float (&outputs)[16]) const {
    if (__builtin_expect(bad_ < kChunk || bad_below_ < kChunk || bad_queries_ != 0, 0)) {
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const int t = 8 * (j / 4) + column() + j % 2;
        const bool is_bad_query = (bad_queries_ >> t & 1) != 0;
        if (t >= (j / 2 % 2 == 0 ? bad_ : bad_below_) || is_bad_query) outputs[j] = NAN;
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* const o = outputs + 8 * i;
      store_transposed({narrow2<T>(o[0], o[1]), narrow2<T>(o[2], o[3]), narrow2<T>(o[4], o[5]),
                        narrow2<T>(o[6], o[7])},
                       values + matrix_at_ + i * kHalfTile);
    }
    __syncwarp();
  }

  // By each warp its own rows; then the chunk is done with.
  __device__ void store_results(int chunk, const uint4& upper, const uint4& lower) {
    const int left = sequence_.length - chunk * kChunk - static_cast<int>(token_);
    const std::int64_t half = 16 * call_.output_stride;
    if (__builtin_expect(is_wide_, 1)) {
      if (left > 0) *reinterpret_cast<uint4*>(output_) = upper;
      if (left > 16) *reinterpret_cast<uint4*>(output_ + half) = lower;
    } else {
      if (left > 0) store_elements(upper, output_);
      if (left > 16) store_elements(lower, output_ + half);
    }
    output_ += 2 * half;
    __syncwarp();
    if (chunk % kPair == kPair - 1 && lane_ == 0) {
      memory_.consumed[static_cast<unsigned>(chunk) / kPair % ChunkMemory::kPairs].arrive();
    }
  }
  __device__ static void store_elements(const uint4& words, T* to) {
    T elements[8];
    memcpy(elements, &words, sizeof(words));
#pragma unroll
    for (int e = 0; e < 8; ++e) to[e] = elements[e];
  }

  const GatedDeltaNetCall<T>& call_;
  ChunkMemory& memory_;
  const Sequence sequence_;
  const std::int32_t h_, first_row_;
  T* output_;     // of this lane's first token of the next chunk to be stored
  bool is_wide_;  // output rows take stores of 16 bytes
  int bad_ = kChunk, bad_below_ = kChunk;
  std::uint32_t bad_queries_ = 0;
  std::uint32_t lane_, column_, token_, matrix_at_, result_at_;  // this lane's
};

}  // namespace deltaworks::cuda

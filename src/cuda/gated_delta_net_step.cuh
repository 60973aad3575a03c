// One token on rows of the state in registers.
//
// Eight lanes share a state row; lane l owns the columns i with i / 4 mod 8 = l, four neighbours at
// a time, so that a warp loads whole 128-byte lines. A sum over columns is an ascending fma chain
// in each lane, then the tree ((0+4) + (2+6)) + ((1+5) + (3+7)): one order in every kernel, whatever
// the rows per lane, hence one set of bits for decode, verify and every split of a sequence.
#pragma once

#include "cuda/four.cuh"
#include "cuda/gated_delta_net_call.cuh"

namespace deltaworks::cuda {

inline constexpr int kKeyDim = 128;  // of the kernels that hold the state in registers
inline constexpr int kLanes = 8;
inline constexpr int kPieces = kKeyDim / (4 * kLanes);  // of four columns in a lane
inline constexpr unsigned kFullWarp = 0xffffffffu;

// sum + Σ a · b, ascending.
__device__ inline float dot4(const Four& a, const Four& b, float sum) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sum = fmaf(a.at[i], b.at[i], sum);
  return sum;
}

__device__ inline Four scale4(Four x, float factor) {
#pragma unroll
  for (int i = 0; i < 4; ++i) x.at[i] *= factor;
  return x;
}

// round(factor · s) + key · delta with one rounding: the update of ONNX Runtime on CUDA.
__device__ inline Four update4(const Four& s, float factor, const Four& key, float delta) {
  Four next;
#pragma unroll
  for (int i = 0; i < 4; ++i) next.at[i] = fmaf(key.at[i], delta, factor * s.at[i]);
  return next;
}

__device__ inline float sum_over_lanes(float x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(kFullWarp, x, offset);
  }
  return x;
}

// A lane's columns of key and query of one token, and the whole q · k.
struct KeyQuery {
  Four key[kPieces], query[kPieces];
  float key_query;
};

// Key and query by their norms, unless epsilon is 0; then q · k. kAlways: epsilon is not 0.
template <bool kAlways = false>
__device__ void normalise(KeyQuery& kq, float epsilon) {
  float keys = 0, queries = 0, both = 0;
  if (kAlways || epsilon > 0) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      keys = dot4(kq.key[j], kq.key[j], keys);
      queries = dot4(kq.query[j], kq.query[j], queries);
    }
    const float key_factor = rsqrtf(sum_over_lanes(keys) + epsilon);
    const float query_factor = rsqrtf(sum_over_lanes(queries) + epsilon);
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      kq.key[j] = scale4(kq.key[j], key_factor);
      kq.query[j] = scale4(kq.query[j], query_factor);
    }
  }
#pragma unroll
  for (int j = 0; j < kPieces; ++j) both = dot4(kq.query[j], kq.key[j], both);
  kq.key_query = sum_over_lanes(both);
}

// A lane's columns of kRows consecutive state rows.
template <int kRows>
struct StateRows {
  Four at[kRows][kPieces];
};

// A state streams through: `from` and `to` are where the lane's first columns of the first row lie.
template <bool kAligned, int kRows>
__device__ void load_state_rows(const float* from, StateRows<kRows>& state) {
#pragma unroll
  for (int i = 0; i < kRows * kPieces; ++i) {
    const int row = i / kPieces, j = i % kPieces;
    state.at[row][j] = stream_load4<kAligned>(from + row * kKeyDim + 4 * kLanes * j);
  }
}
template <bool kAligned, int kRows>
__device__ void store_state_rows(const StateRows<kRows>& state, float* to) {
#pragma unroll
  for (int i = 0; i < kRows * kPieces; ++i) {
    const int row = i / kPieces, j = i % kPieces;
    stream_store4<kAligned>(state.at[row][j], to + row * kKeyDim + 4 * kLanes * j);
  }
}

// The row of kRows whose sums a lane holds after transposed_sums.
template <int kRows>
__device__ int row_of_lane(int lane) {
  return lane % (kLanes / 2) / (kLanes / 2 / kRows);
}

// sums[0 … kRows) are a lane's parts of one sum for each row, sums[kRows … 2 kRows) of another.
// After it the first four lanes hold totals of the first kind and the last four of the second kind,
// each of its row_of_lane. Every exchange halves what a lane still has to carry: both sums of four
// rows take 7 shuffles instead of the 24 of trees of their own.
template <int kRows>
__device__ float transposed_sums(float (&sums)[2 * kRows], int lane) {
  int kept = 2 * kRows;
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    if (kept == 1) {
      sums[0] += __shfl_xor_sync(kFullWarp, sums[0], offset);
      continue;
    }
    kept /= 2;
    const bool is_upper = lane & offset;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i >= kept) break;
      const float sent = is_upper ? sums[i] : sums[i + kept];
      const float own = is_upper ? sums[i + kept] : sums[i];
      sums[i] = own + __shfl_xor_sync(kFullWarp, sent, offset);
    }
  }
  return sums[0];
}

// The lane of a row that stores its output.
template <int kRows>
__device__ bool is_output_lane(int lane) {
  return lane >= kLanes / 2 && lane % (kLanes / 2 / kRows) == 0;
}

// What one token's step leaves in a lane: the output, unscaled, in the last four lanes and delta in
// all, of its row_of_lane.
struct StepResult {
  float output, delta;
};

// value: of row_of_lane. key(j), query(j): the lane's pieces,
// from registers or shared memory.
template <int kRows, class Key, class Query>
__device__ StepResult step(StateRows<kRows>& state, const Key& key_at, const Query& query_at,
                           float key_query, const Gates& gates, float value, bool recalls,
                           int lane) {
  Four key[kPieces];
  float sums[2 * kRows] = {};
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    key[j] = key_at(j);
    const Four query = query_at(j);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      sums[row] = dot4(state.at[row][j], key[j], sums[row]);
      sums[kRows + row] = dot4(state.at[row][j], query, sums[kRows + row]);
    }
  }
  const float sum = transposed_sums<kRows>(sums, lane);
  const float error = recalls ? fmaf(-gates.decay, sum, value) : value;
  const float own = gates.beta * error;  // meaningful in the first four lanes
  const float delta = __shfl_sync(kFullWarp, own, lane % (kLanes / 2), kLanes);
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
    const float row_delta =
        kRows == 1 ? delta : __shfl_sync(kFullWarp, own, row * (kLanes / 2 / kRows), kLanes);
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      state.at[row][j] = update4(state.at[row][j], gates.decay, key[j], row_delta);
    }
  }
  return {fmaf(gates.decay, sum, key_query * delta), delta};
}

}  // namespace deltaworks::cuda

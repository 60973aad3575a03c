// What the two sides of the chunked engine share: the shared memory of a block and who waits for whom.
#pragma once

#include "cuda/gated_delta_net_call.cuh"
#include "cuda/gated_delta_net_chunked.hpp"
#include "cuda/gated_delta_net_step.cuh"
#include "cuda/tf32.cuh"
#include "cuda/wgmma.cuh"

namespace deltaworks::cuda {

inline constexpr int kChunk = 32;          // tokens
inline constexpr int kGroupThreads = 128;  // of a warpgroup
inline constexpr int kPreparers = 2;       // warpgroups
inline constexpr int kPair = 2;            // chunks that are prepared together
inline constexpr int kChunkThreads = (1 + kPreparers) * kGroupThreads;
static_assert(2 * kChunk == kTileRows && kChunkRows == kTileColumns);
static_assert(kKeyDim == 2 * kTileColumns);

// Counts arrivals of threads; a phase ends with the last.
struct Arrivals {
  std::uint64_t bits;
  __device__ void init(int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(&bits)), "r"(count)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(&bits)) : "memory");
  }
  __device__ bool has_ended(unsigned number) {
    std::uint32_t ended;
    asm volatile(
        "{.reg .pred done;\n"
        "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
        "selp.b32 %0, 1, 0, done;}\n"
        : "=r"(ended)
        : "r"(shared_address(&bits)), "r"(number & 1)
        : "memory");
    return ended != 0;
  }
  // Until phase `number` (0, 1, …) has ended; no later one may have.
  __device__ void wait(unsigned number) { wait_for_phase(bits, number & 1); }
};

// The rows of a chunk as they came: keys, and below them queries, in two tiles of 64 columns, so that
// one product takes both. Rows behind the last token are zeros.
struct ChunkRows {
  unsigned char keys_queries[2 * kTileBytes], values[kChunk * kTileRowBytes];
};

// What the steps need beside them: T in columns 0 … 31 of half a tile, P in the others, …
struct ChunkMatrices {
  unsigned char tile[kChunk * kTileRowBytes];
  static constexpr int kAttentionPart = 4;  // the first 16 bytes of P in a row
};
// … and factors. Keys and queries are not normalised: their norms are factors here.
struct alignas(16) ChunkFactors {
  float2 error[kChunk];                // β_t; exp(G_t) / |k_t|, or 0 where nothing is recalled
  float tail[kChunk], result[kChunk];  // exp(G_C − G_t) / |k_t|; scale exp(G_t) / |q_t|
  float whole;                         // exp(G_C)
  int bad;                             // the first token that is not finite, or kChunk
  std::uint32_t bad_queries;           // a bit a token
};

// What a chunk's gates come to.
struct alignas(16) ChunkGates {
  float sum[kChunk], beta[kChunk];  // G_t log2 e, β_t
  int bad;                          // as in ChunkFactors
};

// Of one preparing warpgroup.
struct alignas(16) ChunkScratch {
  struct Chunk {
    SquareRows diagonal[2], below;                   // of A; on the diagonal, then of (I + A)⁻¹
    float key_sum[kChunk];                           // G_t log2 e − log2 1 / |k_t|
    float key_factor[kChunk], query_factor[kChunk];  // 1 / |k_t|, scale / |q_t|
  };
  Chunk chunks[kPair];
  ChunkGates gates[2][kPair];  // of this pair, and of the next
  std::uint32_t bad_queries[kPair];
  std::uint32_t odd[2][2];  // rows to be mended, of keys and queries, of a block: 16 bits a chunk
};

struct ChunkMemory {
  static constexpr int kPairs = 2 * kPreparers;  // whose rows are here
  ChunkRows rows[kPairs * kPair];
  ChunkMatrices matrices[kPreparers * kPair];
  ChunkFactors factors[kPreparers * kPair];
  ChunkScratch scratch[kPreparers];
  Arrivals prepared[kPreparers];  // one phase a pair of that warpgroup
  Arrivals consumed[kPairs];      // one phase a pair with these rows

  __device__ ChunkRows& rows_of(unsigned chunk) { return rows[chunk % (kPairs * kPair)]; }
  __device__ ChunkMatrices& matrices_of(unsigned chunk) {
    return matrices[chunk % (kPreparers * kPair)];
  }
  __device__ ChunkFactors& factors_of(unsigned chunk) {
    return factors[chunk % (kPreparers * kPair)];
  }
  __device__ bool is_consumed(unsigned pair) {
    return consumed[pair % kPairs].has_ended(pair / kPairs);
  }
  __device__ void wait_until_consumed(unsigned pair) {
    consumed[pair % kPairs].wait(pair / kPairs);
  }
  __device__ void wait_until_prepared(unsigned pair) {
    prepared[pair % kPreparers].wait(pair / kPreparers);
  }
};
static_assert(sizeof(ChunkRows) % 1024 == 0 && sizeof(ChunkMatrices) % 1024 == 0);
static_assert(sizeof(ChunkMemory) + 1024 <= 227 * 1024);

__device__ inline int tokens_in_chunk(const Sequence& sequence, int chunk) {
  return max(0, min(kChunk, sequence.length - chunk * kChunk));
}

}  // namespace deltaworks::cuda

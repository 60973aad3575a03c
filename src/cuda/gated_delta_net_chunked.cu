// The chunked engine on Hopper, for sequences of more than kLongest tokens in calls that do not
// capture: the state is rescaled and rounded once for 32 tokens, and everything else is products of
// matrices on the tensor cores.
//
// With G_t = Σ g over the chunk up to t, k and q normalised, for a chunk that starts from state S:
//   A[t,s] = β_t exp(G_t − G_s) k_t·k_s, s < t;   P[t,s] = scale exp(G_t − G_s) q_t·k_s, s <= t
//   T = (I + A)⁻¹,  R_t = β_t (v_t − exp(G_t) S k_t),  Δ = T R
//   o_t = scale exp(G_t) S q_t + Σ P[t,s] Δ_s;   S ← exp(G_C) S + Σ exp(G_C − G_t) Δ_t k_tᵀ
// Products take rows of k and q as they came, norms are factors of the results.
//
// A block owns 64 rows of the state of a head of one sequence. One warpgroup carries them through the
// chunks in registers; two others take turns in preparing the chunks ahead, T and P. The inverse is of
// blocks: 16 × 16 on the diagonal by substitution in float32, the rest by products in tf32.
//
// Causal to the bit: a token that is not finite counts as absent, and what it reaches becomes NaN.
#include "cuda/gated_delta_net_chunked.hpp"

#include "cuda/early_launch.cuh"
#include "cuda/gated_delta_net_chunk_order.cuh"
#include "cuda/gated_delta_net_chunk_prepare.cuh"
#include "cuda/gated_delta_net_chunk_step.cuh"
#include "cuda/launch.hpp"

namespace deltaworks::cuda {

namespace {

constexpr int kStepRegisters = 216, kPrepareRegisters = 144;
constexpr int kMemoryBytes = sizeof(ChunkMemory) + 1024;  // and what an aligned start can take

extern __shared__ unsigned char chunk_memory[];

__device__ ChunkMemory& aligned_memory() {
  const std::uint32_t past = shared_address(chunk_memory) % 1024;
  return *reinterpret_cast<ChunkMemory*>(chunk_memory + (past == 0 ? 0 : 1024 - past));
}

// Blocks above the diagonal, which nothing writes.
__device__ void clear_tiles(ChunkMemory& memory) {
  auto* const words = reinterpret_cast<uint4*>(memory.matrices);
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(memory.matrices) / sizeof(uint4));
       i += kChunkThreads) {
    words[i] = {};
  }
}

template <class T, bool kAligned>
__global__ void __launch_bounds__(kChunkThreads, 1)
    chunked_kernel(const __grid_constant__ GatedDeltaNetCall<T> call) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  let_next_start();
  const auto row_blocks = static_cast<std::uint32_t>(call.value_dim / kChunkRows);
  const auto heads = static_cast<std::uint32_t>(call.value_heads);
  const std::int32_t b =
      chunked_sequence(call, static_cast<std::int32_t>(blockIdx.x / (heads * row_blocks)));
  if (b < 0) return;
  const auto h = static_cast<std::int32_t>(blockIdx.x / row_blocks % heads);
  const auto first_row = static_cast<std::int32_t>(blockIdx.x % row_blocks) * kChunkRows;
  const Sequence sequence = sequence_at(call, b);
  if (!is_chunked(sequence) || sequence.is_skipped()) return;
  ChunkMemory& memory = aligned_memory();
  clear_tiles(memory);
  if (threadIdx.x == 0) {
    for (Arrivals& prepared : memory.prepared) prepared.init(kGroupThreads);
    for (Arrivals& consumed : memory.consumed) consumed.init(kGroupThreads / 32);
  }
  __syncthreads();
  const int chunks = (sequence.length + kChunk - 1) / kChunk;
  if (threadIdx.x < kGroupThreads) {
    take_registers<kStepRegisters>();
    ChunkSteps<T>(call, memory, sequence, h, first_row).run(chunks);
  } else {
    give_registers<kPrepareRegisters>();
    const int group = static_cast<int>(threadIdx.x) / kGroupThreads - 1;
    ChunkPreparer<T, kAligned>(call, memory, sequence, h, first_row, group).run(chunks);
  }
#else
  __trap();
#endif
}

}  // namespace

template <class T>
bool launch_chunked(const Cuda& device, const GatedDeltaNetCall<T>& call, bool wide) {
  const auto kernel = wide ? chunked_kernel<T, true> : chunked_kernel<T, false>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMemoryBytes));
  const std::int64_t blocks = static_cast<std::int64_t>(most_long_sequences(call)) *
                              call.value_heads * (call.value_dim / kChunkRows);
  kernel<<<static_cast<unsigned>(blocks), kChunkThreads, kMemoryBytes, device.stream>>>(call);
  check(cudaGetLastError());
  return true;
}

template bool launch_chunked(const Cuda&, const GatedDeltaNetCall<Float16>&, bool);
template bool launch_chunked(const Cuda&, const GatedDeltaNetCall<BFloat16>&, bool);

}  // namespace deltaworks::cuda

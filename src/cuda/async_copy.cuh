// Copies from global to shared memory while the threads go on.
#pragma once

#include <cstdint>

namespace deltaworks::cuda {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes, both addresses multiples of 16.
__device__ inline void async_copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}

// The same for the first `bytes` of them (0 or 16), the rest zeros.
__device__ inline void async_copy16(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes)
               : "memory");
}

// 8 bytes, both addresses multiples of 8.
__device__ inline void async_copy8(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}

// This thread's copies since the last call are a group.
__device__ inline void commit_async_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Until all of this thread's groups but the last kGroups have arrived, for this thread to read.
template <int kGroups>
__device__ inline void wait_for_async_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// Until this thread's copies so far have arrived; a block-wide barrier then shows them to all.
__device__ inline void wait_for_async_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Orders `threads` threads of a block, a multiple of 32; __syncthreads has number 0.
__device__ inline void named_barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// The same, and whether any of them says so.
__device__ inline bool named_barrier_or(int number, int threads, bool says) {
  std::uint32_t any;
  asm volatile(
      "{.reg .pred says, any; setp.ne.b32 says, %3, 0;\n"
      "bar.red.or.pred any, %1, %2, says;\n"
      "selp.b32 %0, 1, 0, any;}\n"
      : "=r"(any)
      : "r"(number), "r"(threads), "r"(static_cast<std::uint32_t>(says))
      : "memory");
  return any != 0;
}

// Bulk copies are the work of Hopper's copy engine and report to a barrier. Sizes and addresses are
// multiples of 16. On older cards the functions below exist and trap: launchers choose a kernel
// without them.
inline constexpr int kBulkCopyMajor = 9;  // least compute capability

// Until the phase of this parity of a barrier in shared memory has ended.
__device__ inline void wait_for_phase(const std::uint64_t& barrier, std::uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "retry%=:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra retry%=;\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
#endif
}

// Counts the bytes of copies; a phase ends when all that were announced have arrived.
struct CopyBarrier {
  std::uint64_t bits;

  // By one thread, before a block-wide barrier.
  __device__ void init() {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&bits)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
    __trap();
#endif
  }
  // By one thread; `bytes` may be 0.
  __device__ void announce(std::uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    // What this block has read and the copies will overwrite lies before this point.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(&bits)),
                 "r"(bytes)
                 : "memory");
#endif
  }
  // Until the phase of this parity (0, 1, 0, …) has ended.
  __device__ void wait(std::uint32_t parity) { wait_for_phase(bits, parity); }
};

// For data that nothing reads again: first to leave the L2 cache.
__device__ inline void bulk_copy_streaming(void* to, const void* from, std::uint32_t bytes,
                                           CopyBarrier& barrier) {
#if __CUDA_ARCH__ >= 900
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], "
      "%2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier.bits)), "l"(policy)
      : "memory");
#endif
}

}  // namespace deltaworks::cuda

/// Where an operator runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deltaworks/export.hpp"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace deltaworks {

/// How an operator spreads independent tasks over threads. A host gives its own pool; by default
/// tasks run one after another on the calling thread. Results never depend on it.
struct ParallelFor {
  using Task = void (*)(void* task_data, std::int64_t task);
  /// Calls task(task_data, i) once for every i in [0, tasks), in any order, and returns when all
  /// are done.
  using Run = void (*)(void* pool, std::int64_t tasks, Task task, void* task_data);

  Run run = nullptr;
  void* pool = nullptr;

  template <class Body>
  void operator()(std::int64_t tasks, const Body& body) const {
    if (run == nullptr || tasks <= 1) {
      for (std::int64_t task = 0; task < tasks; ++task) body(task);
      return;
    }
    run(
        pool, tasks, [](void* data, std::int64_t task) { (*static_cast<const Body*>(data))(task); },
        const_cast<Body*>(&body));
  }
};

/// The host's processor, with the best instruction set that it and this build have.
struct Cpu {
  ParallelFor parallel_for{};
};

/// An NVIDIA GPU, through a stream of the caller's. Every operand then lies in memory of the GPU that
/// is current. A call checks shapes and addresses as on the Cpu, puts kernels into the stream and
/// returns: it reads no operand on the host, allocates nothing, waits for nothing, and may be captured
/// into a CUDA graph, whose replays take what the operands hold by then.
///
/// The values of cu_seqlens, slots and counts are known on the GPU alone and never trusted: whatever
/// they are, a call stays inside the operands. A count is the nearest one in its range; a sequence
/// whose slot lies outside the pool is skipped. What sequences with offsets out of order compute is
/// unspecified, and so is a slot that two sequences write: they race. Offsets may end before the last token: rows behind
/// them are not written and reach no result, so that a graph serves batches of any fill.
/// Throws DeviceError when CUDA fails, InvalidArgument when this build has no CUDA.
struct Cuda {
  CUstream_st* stream = nullptr;  ///< a cudaStream_t; null is the default stream
  /// On the GPU, or null: gets the CudaFault bits of what was not as it should be; never cleared here.
  std::int32_t* faults = nullptr;
};

/// Offsets that start after 0, decrease or pass the last token; slots outside the pool; counts of a
/// replay outside 0 … capacity.
enum CudaFault : std::int32_t { kCudaOffsets = 1, kCudaSlots = 2, kCudaCounts = 4 };

/// Name of the GPU that is current; empty when there is none or this build has no CUDA.
DELTAWORKS_EXPORT std::string cuda_device();

/// Instruction sets that this build can use on this processor, best first ("AVX3", "AVX2", "SSE4",
/// …).
DELTAWORKS_EXPORT std::vector<std::string> cpu_targets();

/// The instruction set that the next call uses. DELTAWORKS_CPU_TARGET sets it for a process.
DELTAWORKS_EXPORT std::string cpu_target();

/// Uses only `target`, one of cpu_targets(), from now on; an empty string goes back to the best
/// one. Throws InvalidArgument for any other name. Not for use while an operator runs.
DELTAWORKS_EXPORT void set_cpu_target(const std::string& target);

}  // namespace deltaworks

// Calls on the GPU from tests whose operands lie in host memory: in copies of them, between guards.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "deltaworks/device.hpp"
#include "deltaworks/dflash2_dynamic_conv.hpp"
#include "deltaworks/gated_delta_net.hpp"
#include "deltaworks/gated_delta_rates.hpp"
#include "deltaworks/varlen_causal_conv.hpp"
#include "deltaworks/view.hpp"
#include "support/targets.hpp"

namespace deltaworks::testing {

// Whether run_on calls the operator on the GPU; OnBackend sets it.
inline bool& is_on_cuda() {
  static bool on_cuda = false;
  return on_cuda;
}

// Runs a test on every instruction set and on the GPU.
class OnBackend : public OnTarget {
 protected:
  void SetUp() override {
    if (GetParam() != "CUDA") return OnTarget::SetUp();
    if (cuda_device().empty()) GTEST_SKIP() << "needs an NVIDIA GPU and a build with CUDA";
    is_on_cuda() = true;
  }
  void TearDown() override {
    is_on_cuda() = false;
    OnTarget::TearDown();
  }
};

// A test of the GPU alone.
class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device().empty()) GTEST_SKIP() << "needs an NVIDIA GPU and a build with CUDA";
    is_on_cuda() = true;
  }
  void TearDown() override { is_on_cuda() = false; }
};

inline auto every_backend() {
  return ::testing::Values(std::string("SCALAR"), std::string("SSE4"), std::string("AVX2"),
                           std::string("AVX3"), std::string("CUDA"));
}

// Memory of the GPU. A build without CUDA has it too, and fails when it is asked for memory.
namespace gpu {
void* allocate(std::size_t bytes);
void free(void* memory);
void copy(void* to, const void* from, std::size_t bytes);  // any way, between all work of the GPU
std::size_t available();                                   // bytes that it has left
int compute_capability();                                  // 90 is 9.0
// Records what `record` puts into its stream into a graph, and launches it whenever asked to.
class Graph {
 public:
  template <class Record>
  explicit Graph(const Record& record) {
    begin();
    record(stream_);
    end();
  }
  Graph(const Graph&) = delete;
  ~Graph();
  void launch();

 private:
  void begin();
  void end();

  CUstream_st* stream_ = nullptr;
  void* graph_ = nullptr;
};
}  // namespace gpu

// Other values for an operand that lies on the GPU.
inline void upload(const View<const std::int32_t, 1>& view,
                   const std::vector<std::int32_t>& values) {
  gpu::copy(const_cast<std::int32_t*>(view.data()), values.data(), 4 * values.size());
}

// Copies of operands on the GPU, each between guards that no call may touch.
class GpuOperands {
 public:
  static constexpr std::size_t kGuard = 256;

  GpuOperands() = default;
  GpuOperands(const GpuOperands&) = delete;
  ~GpuOperands() { gpu::free(memory_); }

  // Lists a view; place() then makes it one of the GPU's memory. Equal addresses stay equal.
  template <class T, std::size_t Rank>
  void add(View<T, Rank>& view) {
    if (view.size() == 0) return;
    const std::int64_t elements = (view.extent(0) - 1) * view.row_stride() + view.row_size();
    auto* const host = const_cast<std::byte*>(reinterpret_cast<const std::byte*>(view.data()));
    const std::size_t range = range_of(host, static_cast<std::size_t>(elements) * sizeof(T));
    ranges_[range].is_written = ranges_[range].is_written || !std::is_const_v<T>;
    moves_.push_back([this, &view, range] {
      view = View<T, Rank>(reinterpret_cast<T*>(memory_ + ranges_[range].offset), view.extents(),
                           view.row_stride());
    });
  }
  template <class T, std::size_t Rank>
  void add(OptionalView<T, Rank>& view) {
    if (view) add(*view);
  }

  void place() {
    std::vector<std::byte> image(size_, kPattern);
    for (const Range& range : ranges_) {
      std::copy_n(range.host, range.bytes,
                  image.begin() + static_cast<std::ptrdiff_t>(range.offset));
    }
    memory_ = static_cast<std::byte*>(gpu::allocate(size_));
    gpu::copy(memory_, image.data(), size_);
    for (const auto& move : moves_) move();
  }

  // Copies back what may be written, between the launches of a graph whose other operands the test
  // changes.
  void take_back_written() {
    for (const Range& range : ranges_) {
      if (range.is_written) gpu::copy(range.host, memory_ + range.offset, range.bytes);
    }
  }

  // Copies back what may be written; a change of anything else is a failure.
  void take_back() {
    std::vector<std::byte> image(size_);
    gpu::copy(image.data(), memory_, size_);
    std::size_t guard = 0;
    for (const Range& range : ranges_) {
      expect_guard(image, guard, range.offset);
      guard = range.offset + range.bytes;
      if (range.is_written) {
        std::memcpy(range.host, image.data() + range.offset, range.bytes);
      } else if (std::memcmp(range.host, image.data() + range.offset, range.bytes) != 0) {
        ADD_FAILURE() << "wrote into an operand that is only read";
      }
    }
    expect_guard(image, guard, size_);
  }

 private:
  static constexpr std::byte kPattern{0xa5};
  struct Range {
    std::byte* host;
    std::size_t bytes, offset;
    bool is_written;
  };

  std::size_t range_of(std::byte* host, std::size_t bytes) {
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      if (ranges_[i].host == host && ranges_[i].bytes == bytes) return i;
    }
    // The distance to the last multiple of the guard stays: an unaligned operand is so there too.
    const std::size_t unaligned = reinterpret_cast<std::uintptr_t>(host) % kGuard;
    const std::size_t offset = (size_ + kGuard - 1) / kGuard * kGuard + unaligned;
    ranges_.push_back({host, bytes, offset, false});
    size_ = offset + bytes + kGuard;
    return ranges_.size() - 1;
  }
  static void expect_guard(const std::vector<std::byte>& image, std::size_t begin,
                           std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      if (image[i] == kPattern) continue;
      ADD_FAILURE() << "wrote outside an operand on the GPU";
      return;
    }
  }

  std::vector<Range> ranges_;
  std::vector<std::function<void()>> moves_;
  std::size_t size_ = kGuard;
  std::byte* memory_ = nullptr;
};

template <class T, class Body>
void for_each_view(VarlenCausalConvArgs<T>& args, const Body& body) {
  body(args.input), body(args.weight), body(args.cu_seqlens), body(args.initial_state);
  body(args.output), body(args.final_state), body(args.bias), body(args.slots_in);
  body(args.slots_out), body(args.fresh), body(args.capture_count), body(args.state_update);
  body(args.kernel_delta), body(args.previous_mask), body(args.prepared_weight);
}
template <class T, class Body>
void for_each_view(ReplayConvStateArgs<T>& args, const Body& body) {
  body(args.initial_state), body(args.state_update), body(args.count), body(args.final_state);
}
template <class Body>
void for_each_view(ReplayGatedDeltaStateArgs& args, const Body& body) {
  body(args.initial_state), body(args.state_update), body(args.count), body(args.final_state);
}

template <class T, class G, class Body>
void for_each_view(GatedDeltaNetArgs<T, G>& args, const Body& body) {
  body(args.query), body(args.key), body(args.value), body(args.cu_seqlens), body(args.output);
  body(args.final_state), body(args.initial_state), body(args.decay), body(args.decay_per_key);
  body(args.beta), body(args.a_log), body(args.dt_bias), body(args.dt_bias_per_key);
  body(args.slots_in), body(args.slots_out), body(args.fresh), body(args.capture_count);
  body(args.state_update);
}
template <class T, class Body>
void for_each_view(GatedDeltaRatesArgs<T>& args, const Body& body) {
  body(args.update_logits), body(args.decay_inputs), body(args.a_log), body(args.dt_bias);
  body(args.update_rates), body(args.decay_factors);
}
template <class T, class R, class Base, class Body>
void for_each_view(DFlash2DynamicConvArgs<T, R, Base>& args, const Body& body) {
  body(args.input), body(args.dynamic), body(args.base), body(args.output), body(args.residual);
}

// op(device, args) on the GPU, with a copy of every operand there; the CudaFault bits that it sets.
template <class Args, class Op>
std::int32_t run_on_gpu(Args args, const Op& op) {
  std::int32_t faults = 0;
  View<std::int32_t, 1> faults_view(&faults, {1});
  GpuOperands operands;
  for_each_view(args, [&](auto& view) { operands.add(view); });
  operands.add(faults_view);
  operands.place();
  op(Cuda{.faults = faults_view.data()}, args);
  operands.take_back();
  return faults;
}

// op(device, args) on `cpu`, or on the GPU when that is what is tested.
template <class Args, class Op>
void run_on(const Cpu& cpu, const Args& args, const Op& op) {
  if (!is_on_cuda()) return op(cpu, args);
  EXPECT_EQ(run_on_gpu(args, op), 0);
}

}  // namespace deltaworks::testing

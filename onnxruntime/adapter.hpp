// What every operator's adapter shares: ONNX Runtime's C interface with exceptions, its nodes as
// descriptions, and a running node's tensors as views.
#pragma once

#include <onnxruntime_c_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "contract/tensor.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/error.hpp"
#include "deltaworks/view.hpp"
#include "node.hpp"

namespace deltaworks::ort {

// The interface of ONNX Runtime 1.23, the oldest version that the tests run on. Operators alone
// would do with an older one.
inline constexpr std::uint32_t kOldestApi = 23;

// Where a host has the inputs and outputs of a node, when it numbers them in its own way.
struct Order {
  static constexpr std::ptrdiff_t kLeftOut = -1;  // by the node
  static constexpr std::ptrdiff_t kDropped = -2;  // by the host, although the node names it
  std::vector<std::ptrdiff_t> inputs, outputs;
};

// A run of a node. Inputs that the node leaves out read as absent.
class Call {
 public:
  static constexpr std::size_t kMaxInputs = 17;

  Call(const OrtApi& api, OrtKernelContext& context, const Order* order = nullptr);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  bool has_input(std::size_t index) const { return inputs_[index].is_given; }
  bool knows_rank(std::size_t /*index*/) const { return true; }
  const contract::Tensor& shape(std::size_t index) const { return inputs_[index].tensor; }
  // As Node::input, with the type and shape of this run.
  contract::Operand input(std::size_t index, int /*rank*/) const {
    return has_input(index) ? contract::Operand(shape(index)) : std::nullopt;
  }
  template <class T>
  const T* data(std::size_t index) const {
    return static_cast<const T*>(inputs_[index].data);
  }
  // An input of this rank (the contract has checked it).
  template <class T, std::size_t Rank>
  View<const T, Rank> view(std::size_t index) const;
  template <class T, std::size_t Rank>
  OptionalView<const T, Rank> optional_view(std::size_t index) const {
    return has_input(index) ? OptionalView<const T, Rank>(view<T, Rank>(index)) : std::nullopt;
  }

  // Allocates an output; absent when the node leaves it out. One that the node names and the host
  // dropped, since nothing reads it, is scratch: what the node does must not depend on its readers.
  template <class T, std::size_t Rank>
  OptionalView<T, Rank> optional_output(std::size_t index,
                                        const std::array<std::int64_t, Rank>& extents);
  // The same, with memory that lasts as long as the call when the node does not ask for it.
  template <class T, std::size_t Rank>
  View<T, Rank> output(std::size_t index, const std::array<std::int64_t, Rank>& extents);
  // The same, with the shape of an input of any rank.
  template <class T>
  T* output_like(std::size_t index, std::size_t input);
  // Memory that lasts as long as the call.
  void* scratch(std::size_t bytes);
  void* scratch(const std::int64_t* dims, std::size_t rank, std::size_t element_bytes);

  // This processor, on the session's own threads.
  Cpu device() { return {{&Call::run, this}}; }
  // Throws what a run of the session's threads reported.
  void finish();

 private:
  struct Input {
    bool is_given = false;
    const void* data = nullptr;  // may be null in an empty tensor
    contract::Tensor tensor;
  };

  static void run(void* call, std::int64_t tasks, ParallelFor::Task task, void* task_data);
  std::optional<void*> allocate_output(std::size_t index, const std::int64_t* dims,
                                       std::size_t rank, std::size_t element_bytes);
  void read_input(std::size_t index, std::size_t place);

  const OrtApi& api_;
  OrtKernelContext& context_;
  const Order* order_;
  OrtAllocator* allocator_ = nullptr;  // the session's, once there is scratch
  std::array<Input, kMaxInputs> inputs_{};
  std::size_t output_count_ = 0;
  std::array<void*, 4> scratch_{};  // three outputs and offsets
  std::size_t scratch_count_ = 0;
  OrtStatus* thread_status_ = nullptr;
};

// The engine of a session: what its configuration entry deltaworks.engine says, or the environment where that leaves the
// choice to it; never kAuto. Throws InvalidArgument when there is no such engine: at once, not at the first run.
Engine engine_of(const OrtApi& api, const OrtSessionOptions& options);

// A node of the custom-operator interface; it may be read while `info` lives.
Node node_of(const OrtApi& api, const OrtKernelInfo& info);
// A node of the graph that an execution provider sees; it may be read while `node` lives.
Node node_of(const OrtApi& api, const OrtNode& node);

// An object of ONNX Runtime's, with the function of the interface that releases it.
template <class T, class Release>
std::unique_ptr<T, Release> owned(T* object, Release release) {
  return {object, release};
}

// A tensor's type, and its dims where they are known.
ONNXTensorElementDataType type_of(const OrtApi& api, const OrtTensorTypeAndShapeInfo& info);
contract::Tensor shape_of(const OrtApi& api, const OrtTensorTypeAndShapeInfo& info);

// Throws std::runtime_error with the status's message, if it has one.
void check(const OrtApi& api, OrtStatus* status);

template <class T, std::size_t Rank>
View<const T, Rank> Call::view(std::size_t index) const {
  std::array<std::int64_t, Rank> extents;
  for (std::size_t dim = 0; dim < Rank; ++dim) extents[dim] = shape(index).dims[dim];
  return {data<T>(index), extents};
}

template <class T, std::size_t Rank>
OptionalView<T, Rank> Call::optional_output(std::size_t index,
                                            const std::array<std::int64_t, Rank>& extents) {
  const std::optional<void*> data = allocate_output(index, extents.data(), Rank, sizeof(T));
  if (!data) return std::nullopt;
  return View<T, Rank>(static_cast<T*>(*data), extents);
}

template <class T, std::size_t Rank>
View<T, Rank> Call::output(std::size_t index, const std::array<std::int64_t, Rank>& extents) {
  if (const auto given = optional_output<T, Rank>(index, extents)) return *given;
  return {static_cast<T*>(scratch(extents.data(), Rank, sizeof(T))), extents};
}

template <class T>
T* Call::output_like(std::size_t index, std::size_t input) {
  const contract::Tensor& like = shape(input);
  const auto rank = static_cast<std::size_t>(like.rank);
  if (const auto given = allocate_output(index, like.dims.data(), rank, sizeof(T))) {
    return static_cast<T*>(*given);
  }
  return static_cast<T*>(scratch(like.dims.data(), rank, sizeof(T)));
}

}  // namespace deltaworks::ort

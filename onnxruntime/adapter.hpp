// What every operator's adapter shares: ONNX Runtime's C interface with exceptions, a node's
// attributes and shapes when its kernel is created, its tensors as views when it runs.
#pragma once

#include <onnxruntime_c_api.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "contract/tensor.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/error.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks::ort {

template <class T>
constexpr ONNXTensorElementDataType element_type() {
  if constexpr (std::is_same_v<T, std::int64_t>) {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
  } else {
    switch (dtype_of<T>()) {
      case DType::kFloat32: return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
      case DType::kFloat16: return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
      case DType::kBFloat16: return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
      case DType::kInt32: return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    }
  }
}

// A node while its session is created.
class Node {
 public:
  Node(const OrtApi& api, const OrtKernelInfo& info);

  bool has_input(std::size_t index) const { return inputs_ >> index & 1; }
  bool has_output(std::size_t index) const { return outputs_ >> index & 1; }
  bool is_constant(std::size_t index) const;
  // Whether the graph knows how many dims an input has.
  bool knows_rank(std::size_t index) const;
  // What the graph says about an input; an unknown rank reads as `rank` unknown dims.
  contract::Operand input(std::size_t index, int rank) const;

  std::int64_t attribute(const char* name, std::int64_t otherwise) const;
  float attribute(const char* name, float otherwise) const;
  std::string attribute(const char* name, const char* otherwise) const;
  std::int64_t required_attribute(const char* name) const;

 private:
  enum class Kind { kInt, kFloat, kString };
  contract::Operand described(std::size_t index) const;
  // Whether the attribute is there; complains when it is of another kind.
  bool finds(const char* name, Kind kind) const;
  bool reads(const char* name, Kind kind) const;

  const OrtApi& api_;
  const OrtKernelInfo& info_;
  std::uint64_t inputs_ = 0, outputs_ = 0;  // bit i: the node names input i
};

// A run of a node. Inputs that the node leaves out read as absent.
class Call {
 public:
  static constexpr std::size_t kMaxInputs = 17;

  Call(const OrtApi& api, OrtKernelContext& context, OrtAllocator& allocator);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  bool has_input(std::size_t index) const { return inputs_[index].is_given; }
  bool knows_rank(std::size_t /*index*/) const { return true; }
  const contract::Tensor& shape(std::size_t index) const { return inputs_[index].tensor; }
  // As Node::input, with the shape of this run.
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

  // Allocates an output; absent when the node does not ask for it.
  template <class T, std::size_t Rank>
  OptionalView<T, Rank> optional_output(std::size_t index,
                                        const std::array<std::int64_t, Rank>& extents);
  // The same, with memory that lasts as long as the call when the node does not ask for it.
  template <class T, std::size_t Rank>
  View<T, Rank> output(std::size_t index, const std::array<std::int64_t, Rank>& extents);
  // Memory that lasts as long as the call.
  void* scratch(std::size_t bytes);

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
                                       std::size_t rank);

  const OrtApi& api_;
  OrtKernelContext& context_;
  OrtAllocator& allocator_;
  std::array<Input, kMaxInputs> inputs_{};
  std::size_t output_count_ = 0;
  std::array<void*, 3> scratch_{};
  std::size_t scratch_count_ = 0;
  OrtStatus* thread_status_ = nullptr;
};

// The attribute of that name, which ONNX bounds to 8.
std::int64_t state_update_capacity(const Node& node);

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
  const std::optional<void*> data = allocate_output(index, extents.data(), Rank);
  if (!data) return std::nullopt;
  return View<T, Rank>(static_cast<T*>(*data), extents);
}

template <class T, std::size_t Rank>
View<T, Rank> Call::output(std::size_t index, const std::array<std::int64_t, Rank>& extents) {
  if (const auto given = optional_output<T, Rank>(index, extents)) return *given;
  const View<T, Rank> unnamed(nullptr, extents);
  return {static_cast<T*>(scratch(static_cast<std::size_t>(unnamed.size()) * sizeof(T))), extents};
}

}  // namespace deltaworks::ort

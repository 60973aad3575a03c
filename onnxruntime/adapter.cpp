#include "adapter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace deltaworks::ort {

namespace {

// ORT's two-step strings: the size first, with the final 0, then the characters.
template <class Read>
std::string read_string(const OrtApi& api, const Read& read) {
  std::size_t size = 0;
  check(api, read(nullptr, &size));
  std::string text(size, '\0');
  if (size == 0) return text;
  check(api, read(text.data(), &size));
  text.resize(size - 1);
  return text;
}

bool succeeds(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return true;
  api.ReleaseStatus(status);
  return false;
}

// An attribute's value, if ONNX Runtime reads it as one of this kind.
std::optional<Attribute> read_attribute(const OrtApi& api, const OrtKernelInfo& info,
                                        const char* name) {
  std::int64_t integer = 0;
  if (succeeds(api, api.KernelInfoGetAttribute_int64(&info, name, &integer))) return integer;
  float real = 0;
  if (succeeds(api, api.KernelInfoGetAttribute_float(&info, name, &real))) return real;
  std::size_t size = 0;
  if (!succeeds(api, api.KernelInfoGetAttribute_string(&info, name, nullptr, &size))) {
    return std::nullopt;
  }
  return read_string(api, [&](char* out, std::size_t* bytes) {
    return api.KernelInfoGetAttribute_string(&info, name, out, bytes);
  });
}

Node::Value input_of(const OrtApi& api, const OrtKernelInfo& info, std::size_t index) {
  Node::Value input;
  input.name = read_string(api, [&](char* out, std::size_t* size) {
    return api.KernelInfo_GetInputName(&info, index, out, size);
  });
  if (input.name.empty()) return input;
  OrtTypeInfo* type = nullptr;
  check(api, api.KernelInfo_GetInputTypeInfo(&info, index, &type));
  const auto released = owned(type, api.ReleaseTypeInfo);
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  check(api, api.CastTypeInfoToTensorInfo(type, &tensor));
  if (tensor != nullptr) {
    input.type = type_of(api, *tensor);
    input.tensor = shape_of(api, *tensor);
  }
  int constant = 0;
  const OrtValue* value = nullptr;
  check(api, api.KernelInfoGetConstantInput_tensor(&info, index, &constant, &value));
  input.is_constant = constant != 0;
  if (value != nullptr) {
    void* data = nullptr;  // the C interface has no reading form
    check(api, api.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    input.data = data;
  }
  return input;
}

}  // namespace

void check(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  throw std::runtime_error(message);
}

ONNXTensorElementDataType type_of(const OrtApi& api, const OrtTensorTypeAndShapeInfo& info) {
  ONNXTensorElementDataType type;
  check(api, api.GetTensorElementType(&info, &type));
  return type;
}

contract::Tensor shape_of(const OrtApi& api, const OrtTensorTypeAndShapeInfo& info) {
  contract::Tensor tensor;
  tensor.dtype = dtype_of_element(type_of(api, info));
  std::size_t rank = 0;
  check(api, api.GetDimensionsCount(&info, &rank));
  if (rank > contract::Tensor::kMaxRank) {
    throw InvalidArgument(fmt::format("an operand has rank {}, expected at most {}", rank,
                                      contract::Tensor::kMaxRank));
  }
  tensor.rank = static_cast<int>(rank);
  check(api, api.GetDimensions(&info, tensor.dims.data(), rank));
  return tensor;
}

Node node_of(const OrtApi& api, const OrtKernelInfo& info) {
  Node node;
  std::size_t count = 0;
  check(api, api.KernelInfo_GetInputCount(&info, &count));
  for (std::size_t i = 0; i < count; ++i) node.inputs.push_back(input_of(api, info, i));
  check(api, api.KernelInfo_GetOutputCount(&info, &count));
  for (std::size_t i = 0; i < count; ++i) {
    node.outputs.emplace_back().name = read_string(api, [&](char* out, std::size_t* size) {
      return api.KernelInfo_GetOutputName(&info, i, out, size);
    });
  }
  node.find_attribute = [&](const char* name) { return read_attribute(api, info, name); };
  return node;
}

Call::Call(const OrtApi& api, OrtKernelContext& context, OrtAllocator& allocator)
    : api_(api), context_(context), allocator_(allocator) {
  std::size_t count = 0;
  check(api, api.KernelContext_GetInputCount(&context, &count));
  for (std::size_t i = 0; i < std::min(count, kMaxInputs); ++i) {
    const OrtValue* value = nullptr;
    check(api, api.KernelContext_GetInput(&context, i, &value));
    if (value == nullptr) continue;
    OrtTensorTypeAndShapeInfo* info = nullptr;
    check(api, api.GetTensorTypeAndShape(value, &info));
    const auto released = owned(info, api.ReleaseTensorTypeAndShapeInfo);
    void* data = nullptr;  // the C interface has no reading form
    check(api, api.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    inputs_[i] = {true, data, shape_of(api, *info)};
  }
  check(api, api.KernelContext_GetOutputCount(&context, &output_count_));
}

Call::~Call() {
  for (std::size_t i = 0; i < scratch_count_; ++i) allocator_.Free(&allocator_, scratch_[i]);
  if (thread_status_ != nullptr) api_.ReleaseStatus(thread_status_);
}

std::optional<void*> Call::allocate_output(std::size_t index, const std::int64_t* dims,
                                           std::size_t rank) {
  if (index >= output_count_) return std::nullopt;
  OrtValue* value = nullptr;
  check(api_, api_.KernelContext_GetOutput(&context_, index, dims, rank, &value));
  if (value == nullptr) return std::nullopt;
  void* data = nullptr;
  check(api_, api_.GetTensorMutableData(value, &data));
  return data;
}

void* Call::scratch(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  void* const memory = allocator_.Alloc(&allocator_, bytes);
  if (memory == nullptr) throw std::runtime_error(fmt::format("no memory for {} bytes", bytes));
  return scratch_.at(scratch_count_++) = memory;
}

void Call::run(void* call, std::int64_t tasks, ParallelFor::Task task, void* task_data) {
  struct Job {
    ParallelFor::Task task;
    void* data;
  } job{task, task_data};
  auto& self = *static_cast<Call*>(call);
  const auto step = [](void* data, std::size_t index) {
    const Job& one = *static_cast<Job*>(data);
    one.task(one.data, static_cast<std::int64_t>(index));
  };
  OrtStatus* const status = self.api_.KernelContext_ParallelFor(
      &self.context_, step, static_cast<std::size_t>(tasks), 0, &job);
  if (status == nullptr) return;
  if (self.thread_status_ != nullptr) self.api_.ReleaseStatus(self.thread_status_);
  self.thread_status_ = status;
}

void Call::finish() { check(api_, std::exchange(thread_status_, nullptr)); }

}  // namespace deltaworks::ort

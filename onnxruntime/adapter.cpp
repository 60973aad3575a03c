#include "adapter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
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

// An object of ONNX Runtime's, with the function of the interface that releases it.
template <class T, class Release>
std::unique_ptr<T, Release> owned(T* object, Release release) {
  return {object, release};
}

bool succeeds(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return true;
  api.ReleaseStatus(status);
  return false;
}

DType dtype_of_element(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return DType::kFloat16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: return DType::kBFloat16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: return DType::kInt32;
    default: return DType::kFloat32;  // or int64 metadata, of which no contract asks the type
  }
}

contract::Tensor describe(const OrtApi& api, const OrtTensorTypeAndShapeInfo& info) {
  contract::Tensor tensor;
  ONNXTensorElementDataType type;
  check(api, api.GetTensorElementType(&info, &type));
  tensor.dtype = dtype_of_element(type);
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

}  // namespace

void check(const OrtApi& api, OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = api.GetErrorMessage(status);
  api.ReleaseStatus(status);
  throw std::runtime_error(message);
}

Node::Node(const OrtApi& api, const OrtKernelInfo& info) : api_(api), info_(info) {
  std::size_t count = 0;
  check(api, api.KernelInfo_GetInputCount(&info, &count));
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = read_string(api, [&](char* out, std::size_t* size) {
      return api.KernelInfo_GetInputName(&info, i, out, size);
    });
    if (!name.empty()) inputs_ |= std::uint64_t{1} << i;
  }
  check(api, api.KernelInfo_GetOutputCount(&info, &count));
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = read_string(api, [&](char* out, std::size_t* size) {
      return api.KernelInfo_GetOutputName(&info, i, out, size);
    });
    if (!name.empty()) outputs_ |= std::uint64_t{1} << i;
  }
}

bool Node::is_constant(std::size_t index) const {
  if (!has_input(index)) return false;
  int constant = 0;
  const OrtValue* value = nullptr;
  check(api_, api_.KernelInfoGetConstantInput_tensor(&info_, index, &constant, &value));
  return constant != 0;
}

// A rank of 0 stands for an unknown one: no operand is a scalar.
contract::Operand Node::described(std::size_t index) const {
  if (!has_input(index)) return std::nullopt;
  OrtTypeInfo* type = nullptr;
  check(api_, api_.KernelInfo_GetInputTypeInfo(&info_, index, &type));
  const auto released = owned(type, api_.ReleaseTypeInfo);
  const OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api_, api_.CastTypeInfoToTensorInfo(type, &info));
  return info == nullptr ? contract::Tensor{} : describe(api_, *info);
}

bool Node::knows_rank(std::size_t index) const {
  const contract::Operand operand = described(index);
  return operand && operand->rank > 0;
}

contract::Operand Node::input(std::size_t index, int rank) const {
  contract::Operand operand = described(index);
  if (operand && operand->rank == 0) {
    operand->rank = rank;
    operand->dims.fill(contract::kUnknown);
  }
  return operand;
}

bool Node::reads(const char* name, Kind kind) const {
  std::int64_t integer = 0;
  float real = 0;
  std::size_t size = 0;
  switch (kind) {
    case Kind::kInt:
      return succeeds(api_, api_.KernelInfoGetAttribute_int64(&info_, name, &integer));
    case Kind::kFloat:
      return succeeds(api_, api_.KernelInfoGetAttribute_float(&info_, name, &real));
    default:
      return succeeds(api_, api_.KernelInfoGetAttribute_string(&info_, name, nullptr, &size));
  }
}

bool Node::finds(const char* name, Kind kind) const {
  static constexpr const char* kNames[] = {"an integer", "a float", "a string"};
  if (reads(name, kind)) return true;
  for (const Kind other : {Kind::kInt, Kind::kFloat, Kind::kString}) {
    if (other == kind || !reads(name, other)) continue;
    throw InvalidArgument(fmt::format("attribute {} is {}, expected {}", name,
                                      kNames[static_cast<int>(other)],
                                      kNames[static_cast<int>(kind)]));
  }
  return false;
}

std::int64_t Node::attribute(const char* name, std::int64_t otherwise) const {
  if (!finds(name, Kind::kInt)) return otherwise;
  std::int64_t value = 0;
  check(api_, api_.KernelInfoGetAttribute_int64(&info_, name, &value));
  return value;
}

float Node::attribute(const char* name, float otherwise) const {
  if (!finds(name, Kind::kFloat)) return otherwise;
  float value = 0;
  check(api_, api_.KernelInfoGetAttribute_float(&info_, name, &value));
  return value;
}

std::string Node::attribute(const char* name, const char* otherwise) const {
  if (!finds(name, Kind::kString)) return otherwise;
  return read_string(api_, [&](char* out, std::size_t* size) {
    return api_.KernelInfoGetAttribute_string(&info_, name, out, size);
  });
}

std::int64_t Node::required_attribute(const char* name) const {
  if (!finds(name, Kind::kInt)) {
    throw InvalidArgument(fmt::format("attribute {} is missing, expected an integer", name));
  }
  return attribute(name, std::int64_t{0});
}

std::int64_t state_update_capacity(const Node& node) {
  const std::int64_t capacity = node.attribute("state_update_capacity", std::int64_t{0});
  if (capacity < 0 || capacity > 8) {
    throw InvalidArgument(fmt::format("state_update_capacity is {}, expected 0 to 8", capacity));
  }
  return capacity;
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
    inputs_[i] = {true, data, describe(api, *info)};
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

#include "adapter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "contract/engine.hpp"
#include "contract/values.hpp"

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

const void* data_of(const OrtApi& api, const OrtValue* value) {
  void* data = nullptr;  // the C interface has no reading form
  check(api, api.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  return data;
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
  if (value != nullptr) input.data = data_of(api, value);
  return input;
}

// A value of a graph; null stands for one that the node leaves out.
Node::Value value_of(const OrtApi& api, const OrtValueInfo* info) {
  Node::Value value;
  if (info == nullptr) return value;
  const char* name = nullptr;
  check(api, api.GetValueInfoName(info, &name));
  value.name = name;
  const OrtTypeInfo* type = nullptr;
  check(api, api.GetValueInfoTypeInfo(info, &type));
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  if (type != nullptr) check(api, api.CastTypeInfoToTensorInfo(type, &tensor));
  if (tensor != nullptr) {
    value.type = type_of(api, *tensor);
    value.tensor = shape_of(api, *tensor);
  }
  check(api, api.ValueInfo_IsConstantInitializer(info, &value.is_constant));
  if (!value.is_constant) return value;
  const OrtValue* constant = nullptr;
  check(api, api.ValueInfo_GetInitializerValue(info, &constant));
  if (constant != nullptr) value.data = data_of(api, constant);
  return value;
}

std::optional<Attribute> read_attribute(const OrtApi& api, const OrtNode& node, const char* name) {
  const OrtOpAttr* attribute = nullptr;
  if (!succeeds(api, api.Node_GetAttributeByName(&node, name, &attribute))) return std::nullopt;
  if (attribute == nullptr) return std::nullopt;
  OrtOpAttrType type = ORT_OP_ATTR_UNDEFINED;
  check(api, api.OpAttr_GetType(attribute, &type));
  std::size_t size = 0;
  const auto read = [&](auto value) -> Attribute {
    check(api, api.ReadOpAttr(attribute, type, &value, sizeof(value), &size));
    return value;
  };
  switch (type) {
    case ORT_OP_ATTR_INT: return read(std::int64_t{0});
    case ORT_OP_ATTR_FLOAT: return read(0.0f);
    case ORT_OP_ATTR_STRING: break;
    default: return Attribute();
  }
  std::string text(32, '\0');  // longer ones fail, and say how long they are
  if (!succeeds(api, api.ReadOpAttr(attribute, type, text.data(), text.size(), &size))) {
    text.resize(size);
    check(api, api.ReadOpAttr(attribute, type, text.data(), text.size(), &size));
  }
  text.resize(size);
  return text;
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

Engine engine_of(const OrtApi& api, const OrtSessionOptions& options) {
  constexpr const char *kLibrary = "deltaworks", *kEntry = "deltaworks.engine";
  int is_given = 0;
  check(api, api.HasSessionConfigEntry(&options, kEntry, &is_given));
  Engine engine = Engine::kAuto;
  if (is_given != 0) {
    const std::string text = read_string(api, [&](char* out, std::size_t* size) {
      return api.GetSessionConfigEntry(&options, kEntry, out, size);
    });
    engine = contract::value_or_throw(contract::parse_engine(kLibrary, kEntry, text));
  }
  return contract::chosen_engine(kLibrary, engine);
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

Node node_of(const OrtApi& api, const OrtNode& source) {
  Node node;
  const char *domain = nullptr, *type = nullptr, *name = nullptr;
  check(api, api.Node_GetDomain(&source, &domain));
  check(api, api.Node_GetOperatorType(&source, &type));
  check(api, api.Node_GetName(&source, &name));
  node.domain = domain;
  node.type = type;
  node.name = name;
  std::size_t count = 0;
  check(api, api.Node_GetNumInputs(&source, &count));
  std::vector<const OrtValueInfo*> values(count);
  if (count > 0) check(api, api.Node_GetInputs(&source, values.data(), count));
  for (const OrtValueInfo* value : values) node.inputs.push_back(value_of(api, value));
  check(api, api.Node_GetNumOutputs(&source, &count));
  values.resize(count);
  if (count > 0) check(api, api.Node_GetOutputs(&source, values.data(), count));
  for (const OrtValueInfo* value : values) node.outputs.push_back(value_of(api, value));
  node.find_attribute = [&](const char* wanted) { return read_attribute(api, source, wanted); };
  return node;
}

Call::Call(const OrtApi& api, OrtKernelContext& context, const Order* order)
    : api_(api), context_(context), order_(order) {
  std::size_t count = 0;
  check(api, api.KernelContext_GetInputCount(&context, &count));
  const std::size_t inputs = order == nullptr ? count : order->inputs.size();
  for (std::size_t i = 0; i < std::min(inputs, kMaxInputs); ++i) {
    const std::ptrdiff_t place =
        order == nullptr ? static_cast<std::ptrdiff_t>(i) : order->inputs[i];
    if (place >= 0) read_input(i, static_cast<std::size_t>(place));
  }
  check(api, api.KernelContext_GetOutputCount(&context, &output_count_));
}

void Call::read_input(std::size_t index, std::size_t place) {
  const OrtValue* value = nullptr;
  check(api_, api_.KernelContext_GetInput(&context_, place, &value));
  if (value == nullptr) return;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api_, api_.GetTensorTypeAndShape(value, &info));
  const auto released = owned(info, api_.ReleaseTensorTypeAndShapeInfo);
  inputs_[index] = {true, data_of(api_, value), shape_of(api_, *info)};
}

Call::~Call() {
  for (std::size_t i = 0; i < scratch_count_; ++i) allocator_->Free(allocator_, scratch_[i]);
  if (allocator_ != nullptr) api_.ReleaseAllocator(allocator_);
  if (thread_status_ != nullptr) api_.ReleaseStatus(thread_status_);
}

std::optional<void*> Call::allocate_output(std::size_t index, const std::int64_t* dims,
                                           std::size_t rank, std::size_t element_bytes) {
  if (order_ != nullptr) {
    if (index >= order_->outputs.size()) return std::nullopt;
    const std::ptrdiff_t place = order_->outputs[index];
    if (place == Order::kDropped) return scratch(dims, rank, element_bytes);
    if (place == Order::kLeftOut) return std::nullopt;
    index = static_cast<std::size_t>(place);
  }
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
  if (allocator_ == nullptr) {
    OrtMemoryInfo* memory_info = nullptr;
    check(api_, api_.CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory_info));
    const auto released = owned(memory_info, api_.ReleaseMemoryInfo);
    check(api_, api_.KernelContext_GetAllocator(&context_, memory_info, &allocator_));
  }
  void* const memory = allocator_->Alloc(allocator_, bytes);
  if (memory == nullptr) throw std::runtime_error(fmt::format("no memory for {} bytes", bytes));
  return scratch_.at(scratch_count_++) = memory;
}

void* Call::scratch(const std::int64_t* dims, std::size_t rank, std::size_t element_bytes) {
  std::size_t bytes = element_bytes;
  for (std::size_t dim = 0; dim < rank; ++dim) bytes *= static_cast<std::size_t>(dims[dim]);
  return scratch(bytes);
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

#include "node.hpp"

#include <fmt/format.h>

#include "deltaworks/error.hpp"

namespace deltaworks::ort {

namespace {

// The attribute, if the node has it; complains when it is of another kind.
template <class T>
std::optional<T> find(const Node& node, const char* name) {
  constexpr const char* kKinds[] = {"of another kind", "an integer", "a float", "a string"};
  const std::optional<Attribute> found = node.find_attribute(name);
  if (!found) return std::nullopt;
  if (const T* value = std::get_if<T>(&*found)) return *value;
  throw InvalidArgument(fmt::format("attribute {} is {}, expected {}", name, kKinds[found->index()],
                                    kKinds[Attribute(T{}).index()]));
}

}  // namespace

DType dtype_of_element(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return DType::kFloat16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: return DType::kBFloat16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: return DType::kInt32;
    default: return DType::kFloat32;
  }
}

std::string name_of_element(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return std::string(deltaworks::name(dtype_of_element(type)));
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return "int64";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8: return "int8";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8: return "uint8";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: return "float64";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL: return "bool";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16: return "int16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16: return "uint16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32: return "uint32";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64: return "uint64";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING: return "string";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED: return "unknown";
    default: return fmt::format("number {}", static_cast<int>(type));
  }
}

contract::Operand Node::input(std::size_t index, int rank) const {
  if (!has_input(index)) return std::nullopt;
  contract::Tensor tensor = inputs[index].tensor;
  tensor.dtype = dtype_of_element(inputs[index].type);
  if (tensor.rank == 0) {
    tensor.rank = rank;
    tensor.dims.fill(contract::kUnknown);
  }
  return tensor;
}

std::int64_t Node::attribute(const char* attribute, std::int64_t otherwise) const {
  return find<std::int64_t>(*this, attribute).value_or(otherwise);
}

float Node::attribute(const char* attribute, float otherwise) const {
  return find<float>(*this, attribute).value_or(otherwise);
}

std::string Node::attribute(const char* attribute, const char* otherwise) const {
  return find<std::string>(*this, attribute).value_or(otherwise);
}

std::int64_t Node::required_attribute(const char* attribute) const {
  if (const auto value = find<std::int64_t>(*this, attribute)) return *value;
  throw InvalidArgument(fmt::format("attribute {} is missing, expected an integer", attribute));
}

std::int64_t state_update_capacity(const Node& node) {
  const std::int64_t capacity = node.attribute("state_update_capacity", std::int64_t{0});
  if (capacity < 0 || capacity > 8) {
    throw InvalidArgument(fmt::format("state_update_capacity is {}, expected 0 to 8", capacity));
  }
  return capacity;
}

}  // namespace deltaworks::ort

#include "tensor.hpp"

#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>

namespace deltaworks::cli {

namespace {

std::size_t element_bytes(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return 8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: return 4;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: return 2;
    default: throw std::runtime_error("the graph has a tensor of a type that is not supported");
  }
}

std::size_t product(const std::vector<std::int64_t>& shape) {
  return static_cast<std::size_t>(
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

}  // namespace

Tensor::Tensor(ONNXTensorElementDataType type, std::vector<std::int64_t> shape)
    : type_(type),
      shape_(std::move(shape)),
      size_bytes_(product(shape_) * element_bytes(type)),
      bytes_(static_cast<std::byte*>(::operator new[](size_bytes_, kAlignment))) {
  clear();
}

void Tensor::clear() { std::memset(bytes_.get(), 0, size_bytes_); }

Ort::Value Tensor::value(const std::vector<std::int64_t>& shape) const {
  static const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  return Ort::Value::CreateTensor(memory, bytes_.get(), product(shape) * element_bytes(type_),
                                  shape.data(), shape.size(), type_);
}

}  // namespace deltaworks::cli

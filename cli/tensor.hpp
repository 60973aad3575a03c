// A tensor that this program owns and ONNX Runtime reads or writes in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "ort.hpp"

namespace deltaworks::cli {

class Tensor {
 public:
  // Zero-filled.
  Tensor(ONNXTensorElementDataType type, std::vector<std::int64_t> shape);

  template <class T>
  T* data() const {
    return reinterpret_cast<T*>(bytes_.get());
  }
  ONNXTensorElementDataType type() const { return type_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  void clear();

  // The whole tensor, or its first elements in another shape. This tensor must outlive it.
  Ort::Value value() const { return value(shape_); }
  Ort::Value value(const std::vector<std::int64_t>& shape) const;

 private:
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, kAlignment); }
  };
  static constexpr std::align_val_t kAlignment{64};  // ONNX Runtime's own

  ONNXTensorElementDataType type_;
  std::vector<std::int64_t> shape_;
  std::size_t size_bytes_;
  std::unique_ptr<std::byte[], Free> bytes_;
};

}  // namespace deltaworks::cli

// One node as an ONNX model, for sessions that run nothing else.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "deltaworks/dtype.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks::cli {

// An input or output of a node; without a name one that the node leaves out.
struct OnnxOperand {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
};

template <class T, std::size_t Rank>
OnnxOperand operand(std::string name, const View<T, Rank>& view) {
  const auto& extents = view.extents();
  return {std::move(name), dtype_of<T>(), {extents.begin(), extents.end()}, view.data()};
}

struct OnnxNode {
  using Attribute = std::variant<std::int64_t, float, std::string>;

  std::string op;
  std::string domain;
  std::vector<OnnxOperand> inputs, outputs;
  std::map<std::string, Attribute> attributes;
  std::shared_ptr<const void> memory;  // that the operands point into
};

// A serialised ModelProto whose graph is the node, with its operands' shapes.
std::string onnx_model(const OnnxNode& node);

}  // namespace deltaworks::cli

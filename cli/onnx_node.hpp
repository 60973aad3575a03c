// One node as an ONNX model, for sessions that run nothing else.
#pragma once

#include <cstddef>
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
  bool is_constant = false;  // of the graph, as weights are; not an input of each run

  std::size_t size() const;
  std::size_t bytes() const;
};

template <class T, std::size_t Rank>
OnnxOperand operand(std::string name, const View<T, Rank>& view) {
  const auto& extents = view.extents();
  return {std::move(name), dtype_of<T>(), {extents.begin(), extents.end()}, view.data()};
}

inline OnnxOperand constant(OnnxOperand operand) {
  operand.is_constant = true;
  return operand;
}

struct OnnxNode {
  using Attribute = std::variant<std::int64_t, float, std::string>;

  std::string op;
  std::string domain;
  std::vector<OnnxOperand> inputs, outputs;
  std::map<std::string, Attribute> attributes;
  std::shared_ptr<const void> memory;  // that the operands point into
};

// A serialised ModelProto whose graph is the node, with its operands' shapes and the constant ones' values.
std::string onnx_model(const OnnxNode& node);

}  // namespace deltaworks::cli

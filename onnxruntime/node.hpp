// What is known of a node before it runs: its attributes, the types and shapes of its inputs, its
// constants. ONNX Runtime's custom-operator interface, its execution providers and the command line
// each fill one; the operators read nothing else of a graph.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "contract/tensor.hpp"
#include "deltaworks/gated_delta_net.hpp"

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

// The contracts' name of an element type; of one that no contract asks about, float32.
DType dtype_of_element(ONNXTensorElementDataType type);

// "float16"; "number 17", as ONNX counts them, for a rare one.
std::string name_of_element(ONNXTensorElementDataType type);

// monostate: a kind that no operator here has, such as a list.
using Attribute = std::variant<std::monostate, std::int64_t, float, std::string>;

struct Node {
  struct Value {
    std::string name{};  // empty: the node leaves it out
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;  // when unknown
    // A rank of 0 stands for an unknown one: no operand is a scalar.
    contract::Tensor tensor{};
    bool is_constant = false;
    const void* data = nullptr;  // of a constant, where the source has it; valid like the node
  };

  std::string domain{}, type{}, name{};  // type: of operator
  std::vector<Value> inputs{}, outputs{};
  Engine engine = Engine::kAuto;  // that the session asks for
  // Asked while the node is being read, and only then. By name, since ONNX Runtime cannot list the
  // attributes of a custom operator.
  std::function<std::optional<Attribute>(const char* name)> find_attribute = [](const char*) {
    return std::nullopt;
  };

  bool has_input(std::size_t index) const {
    return index < inputs.size() && !inputs[index].name.empty();
  }
  bool has_output(std::size_t index) const {
    return index < outputs.size() && !outputs[index].name.empty();
  }
  bool is_constant(std::size_t index) const {
    return has_input(index) && inputs[index].is_constant;
  }
  bool knows_rank(std::size_t index) const {
    return has_input(index) && inputs[index].tensor.rank > 0;
  }
  // What the graph says about an input; an unknown rank reads as `rank` unknown dims.
  contract::Operand input(std::size_t index, int rank) const;

  std::int64_t attribute(const char* attribute, std::int64_t otherwise) const;
  float attribute(const char* attribute, float otherwise) const;
  std::string attribute(const char* attribute, const char* otherwise) const;
  std::int64_t required_attribute(const char* attribute) const;
};

// The attribute of that name, which ONNX bounds to 8.
std::int64_t state_update_capacity(const Node& node);

}  // namespace deltaworks::ort

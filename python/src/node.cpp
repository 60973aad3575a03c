// A node of an ONNX graph, of which deltaworks.retarget asks whether this library serves it.
#include "node.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "module.hpp"
#include "operator.hpp"

namespace deltaworks::python {

namespace {

// ONNX's number of the element type, and the extents where the graph tells them: -1 for open ones.
using Value = std::pair<int, std::optional<std::vector<std::int64_t>>>;

ort::Node::Value value_of(const std::optional<Value>& known, std::size_t index) {
  if (!known) return {};
  ort::Node::Value value{.name = std::to_string(index),
                         .type = static_cast<ONNXTensorElementDataType>(known->first)};
  const auto& dims = known->second;
  if (dims && dims->size() <= contract::Tensor::kMaxRank) {
    value.tensor.rank = static_cast<int>(dims->size());
    std::copy(dims->begin(), dims->end(), value.tensor.dims.begin());
  }
  return value;
}

// The contract's reason why the library does not serve the node; empty when it does.
std::string why_not(const std::string& domain, const std::string& type,
                    const std::vector<std::optional<Value>>& inputs,
                    const std::vector<bool>& outputs,
                    const std::map<std::string, ort::Attribute>& attributes) {
  ort::Node node{.domain = domain, .type = type};
  for (const auto& input : inputs) node.inputs.push_back(value_of(input, node.inputs.size()));
  for (const bool is_there : outputs) {
    node.outputs.push_back({.name = is_there ? std::to_string(node.outputs.size()) : ""});
  }
  node.find_attribute = [&](const char* name) -> std::optional<ort::Attribute> {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return std::nullopt;
    return found->second;
  };
  const auto outcome = ort::describe(node);
  const auto* reason = std::get_if<std::string>(&outcome);
  return reason == nullptr ? "" : *reason;
}

}  // namespace

void define_node(nanobind::module_& module) {
  module.def("is_operator", [](const std::string& domain, const std::string& type) {
    return ort::is_ours(domain, type);
  });
  module.def("why_not", &why_not);
}

}  // namespace deltaworks::python

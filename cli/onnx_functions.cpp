#include "onnx_functions.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "names.hpp"

namespace deltaworks::cli {

namespace {

std::string id_of(const std::string& domain, const std::string& name) {
  return (domain == "ai.onnx" ? "" : domain) + "::" + name;
}

// Calls visit(node) for every node and for those of the graphs inside it. Protobuf reads no graphs
// that lie deeper than 100 messages.
template <class Nodes, class Visit>
void for_each_node(const Nodes& nodes, const Visit& visit) {
  for (const onnx::NodeProto& node : nodes) {
    visit(node);
    for (const onnx::AttributeProto& attribute : node.attribute()) {
      if (attribute.has_g()) for_each_node(attribute.g().node(), visit);
      for (const onnx::GraphProto& graph : attribute.graphs()) for_each_node(graph.node(), visit);
    }
  }
}

// What a function or a graph is when every call in it has been followed.
struct Body {
  std::int64_t nodes = 0;                     // its own
  std::map<std::string, std::int64_t> calls;  // of functions, and how often

  // With those of the functions, as far as all of them are known; at most `limit`.
  std::optional<std::int64_t> followed(const std::map<std::string, std::int64_t>& sizes,
                                       std::int64_t limit) const {
    std::int64_t sum = nodes;
    for (const auto& [id, times] : calls) {
      const auto size = sizes.find(id);
      if (size == sizes.end()) return std::nullopt;
      sum = std::min(limit, sum + times * size->second);  // a file of 2 GiB: no overflow
    }
    return sum;
  }
};

// The field attribute_proto, which ONNX has since 1.13: older headers read it as an unknown one.
template <class Function>
std::vector<onnx::AttributeProto> defaults_of(const Function& function) {
  std::vector<onnx::AttributeProto> defaults;
  if constexpr (requires { function.attribute_proto(); }) {
    defaults.assign(function.attribute_proto().begin(), function.attribute_proto().end());
  } else {
    constexpr int kField = 11;
    const auto& fields = function.unknown_fields();
    for (int i = 0; i < fields.field_count(); ++i) {
      const auto& field = fields.field(i);
      if (field.number() != kField || field.type() != field.TYPE_LENGTH_DELIMITED) continue;
      if (!defaults.emplace_back().ParseFromString(field.length_delimited())) defaults.pop_back();
    }
  }
  return defaults;
}

}  // namespace

OnnxAttributes attributes_of(const onnx::NodeProto& call, const onnx::FunctionProto& function) {
  OnnxAttributes attributes;
  for (const onnx::AttributeProto& each : call.attribute()) attributes[each.name()] = each;
  for (const onnx::AttributeProto& each : defaults_of(function)) {
    attributes.try_emplace(each.name(), each);
  }
  return attributes;
}

void resolve(const OnnxAttributes& attributes, onnx::NodeProto& node) {
  auto& list = *node.mutable_attribute();
  for (int i = list.size() - 1; i >= 0; --i) {
    if (list[i].ref_attr_name().empty()) continue;
    const auto found = attributes.find(list[i].ref_attr_name());
    if (found == attributes.end()) {
      list.DeleteSubrange(i, 1);
      continue;
    }
    const std::string name = list[i].name();
    list[i] = found->second;
    list[i].set_name(name);
  }
}

OnnxFunctions::OnnxFunctions(const onnx::ModelProto& model) {
  constexpr int kDeepest = 100;                  // functions that call functions
  constexpr std::int64_t kMostNodes = 10000000;  // when every call has been followed
  for (const onnx::FunctionProto& function : model.functions()) {
    functions_[id_of(function.domain(), function.name())] = &function;
  }
  const auto body_of = [&](const auto& nodes) {
    Body body;
    for_each_node(nodes, [&](const onnx::NodeProto& node) {
      ++body.nodes;
      if (find(node) != nullptr) ++body.calls[id_of(node.domain(), node.op_type())];
    });
    return body;
  };
  std::map<std::string, Body> open;
  for (const auto& [id, function] : functions_) open[id] = body_of(function->node());
  // Each turn settles the functions that call settled ones alone.
  std::map<std::string, std::int64_t> sizes;
  for (int depth = 0; !open.empty() && depth < kDeepest; ++depth) {
    std::map<std::string, std::int64_t> settled;
    for (const auto& [id, body] : open) {
      if (const auto size = body.followed(sizes, kMostNodes)) settled[id] = *size;
    }
    if (settled.empty()) break;
    for (const auto& [id, size] : settled) open.erase(id);
    sizes.merge(settled);
  }
  if (!open.empty()) {
    constexpr std::size_t kShown = 5;
    std::vector<std::string> names;
    for (const auto& [id, body] : open) {
      if (names.size() < kShown) names.push_back(printable(id));
    }
    throw std::runtime_error(fmt::format(
        "the model's functions are recursive, or call each other more than {} deep, which ONNX "
        "does not allow: {}{}",
        kDeepest, fmt::join(names, ", "), open.size() > kShown ? ", …" : ""));
  }
  if (body_of(model.graph().node()).followed(sizes, kMostNodes) == kMostNodes) {
    throw std::runtime_error(fmt::format(
        "the model's functions call each other so often that it has over {} nodes", kMostNodes));
  }
}

const onnx::FunctionProto* OnnxFunctions::find(const onnx::NodeProto& call) const {
  if (functions_.empty()) return nullptr;
  const auto found = functions_.find(id_of(call.domain(), call.op_type()));
  return found == functions_.end() ? nullptr : found->second;
}

}  // namespace deltaworks::cli

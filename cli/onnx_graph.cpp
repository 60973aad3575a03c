#include "onnx_graph.hpp"

#include <fmt/format.h>
#include <onnx/onnx_pb.h>
#include <onnx/shape_inference/implementation.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "names.hpp"
#include "onnx_functions.hpp"
#include "operator.hpp"

namespace deltaworks::cli {

namespace {

// ONNX numbers its element types as ONNX Runtime's C interface does.
static_assert(int{onnx::TensorProto::BFLOAT16} == int{ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16});

onnx::ModelProto read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(
        fmt::format("cannot read {}: {}", printable(path.string()), std::strerror(errno)));
  }
  if (std::filesystem::file_size(path) > std::numeric_limits<std::int32_t>::max()) {
    throw std::runtime_error(fmt::format(
        "{} is larger than 2 GiB, which no ONNX file may be: save its weights as external data",
        printable(path.string())));
  }
  onnx::ModelProto model;
  if (!model.ParseFromIstream(&file) || !model.has_graph()) {
    throw std::runtime_error(fmt::format(
        "{} is not an ONNX model: expected the .onnx file itself, not its weights, and not the "
        "text that stands in for it before `git lfs pull`",
        printable(path.string())));
  }
  return model;
}

// What the file says about one value.
struct Known {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  contract::Tensor tensor{};
  bool is_constant = false;
};

// Dims of a shape proto or a tensor; -1 where `dim` is no number.
template <class Dims, class Dim>
contract::Tensor tensor_of(const Dims& dims, const Dim& dim) {
  contract::Tensor tensor;
  if (dims.size() > contract::Tensor::kMaxRank) return tensor;
  tensor.rank = dims.size();
  for (int i = 0; i < dims.size(); ++i) tensor.dims[static_cast<std::size_t>(i)] = dim(dims[i]);
  return tensor;
}

Known known_of(const onnx::TypeProto& type) {
  Known known;
  if (!type.has_tensor_type()) return known;
  known.type = static_cast<ONNXTensorElementDataType>(type.tensor_type().elem_type());
  if (type.tensor_type().has_shape()) {
    known.tensor = tensor_of(type.tensor_type().shape().dim(), [](const auto& dim) {
      return dim.has_dim_value() && dim.dim_value() >= 0 ? dim.dim_value() : contract::kUnknown;
    });
  }
  return known;
}

// Names of a graph, and behind them those of the graphs around it.
class Scope {
 public:
  // Of a function's body: of its inputs what the call knows. It sees nothing else around.
  Scope(const onnx::FunctionProto& function, const onnx::NodeProto& call, const Scope& around) {
    for (int i = 0; i < std::min(function.input_size(), call.input_size()); ++i) {
      if (const Known* known = around.find(call.input(i))) values_[function.input(i)] = *known;
    }
  }
  Scope(const onnx::GraphProto& graph, const Scope* outer) : outer_(outer) {
    for (const auto* infos : {&graph.input(), &graph.output(), &graph.value_info()}) {
      for (const onnx::ValueInfoProto& info : *infos) values_[info.name()] = known_of(info.type());
    }
    for (const onnx::TensorProto& tensor : graph.initializer()) {
      values_[tensor.name()] = {static_cast<ONNXTensorElementDataType>(tensor.data_type()),
                                tensor_of(tensor.dims(), [](std::int64_t dim) { return dim; }),
                                true};
    }
  }

  const Known* find(const std::string& name) const {
    if (const auto found = values_.find(name); found != values_.end()) return &found->second;
    return outer_ != nullptr ? outer_->find(name) : nullptr;
  }

 private:
  const Scope* outer_ = nullptr;
  std::map<std::string, Known> values_;
};

std::optional<ort::Attribute> attribute_of(const onnx::NodeProto& node, const char* name) {
  for (const onnx::AttributeProto& attribute : node.attribute()) {
    if (attribute.name() != name) continue;
    switch (attribute.type()) {
      case onnx::AttributeProto::INT: return attribute.i();
      case onnx::AttributeProto::FLOAT: return attribute.f();
      case onnx::AttributeProto::STRING: return attribute.s();
      default: return std::monostate();
    }
  }
  return std::nullopt;
}

ort::Node::Value value_of(const std::string& name, const Scope& scope) {
  ort::Node::Value value{.name = name};
  if (const Known* known = name.empty() ? nullptr : scope.find(name)) {
    value.type = known->type;
    value.tensor = known->tensor;
    value.is_constant = known->is_constant;
  }
  return value;
}

ort::Node node_of(const onnx::NodeProto& proto, const Scope& scope) {
  ort::Node node{.domain = proto.domain(), .type = proto.op_type(), .name = proto.name()};
  if (node.name.empty() && proto.output_size() > 0) node.name = proto.output(0);
  for (const std::string& name : proto.input()) node.inputs.push_back(value_of(name, scope));
  for (const std::string& name : proto.output()) node.outputs.push_back(value_of(name, scope));
  node.find_attribute = [proto](const char* name) { return attribute_of(proto, name); };
  return node;
}

// The input whose shape an operator's first output has.
constexpr std::pair<const char*, std::size_t> kShapedLike[] = {{"VarlenCausalConvWithState", 0},
                                                               {"CausalConvWithState", 0},
                                                               {"GatedDeltaNet", 2},
                                                               {"PagedAttention", 0},
                                                               {"GatedDeltaRates", 0},
                                                               {"DFlash2DynamicConv", 0}};

// Writes into the graph what a node of ours makes known about its outputs: types from the row that
// its inputs fit, shapes of those that are like an input. Whether anything was new.
bool add_outputs(const ort::Node& node, onnx::GraphProto& graph) {
  const auto outcome = ort::make(node);
  const auto* made = std::get_if<ort::Made>(&outcome);
  if (made == nullptr) return false;
  std::map<std::size_t, std::size_t> like;  // output: input
  for (const auto& [type, input] : kShapedLike) {
    if (node.type == type && node.has_input(input)) like[0] = input;
  }
  if (made->op->in_place != nullptr) {
    int *inputs = nullptr, *outputs = nullptr;
    const std::size_t pairs = made->op->in_place(&inputs, &outputs);
    for (std::size_t i = 0; i < pairs; ++i) {
      like[static_cast<std::size_t>(outputs[i])] = static_cast<std::size_t>(inputs[i]);
    }
  }
  bool is_new = false;
  for (const auto& [output, input] : like) {
    if (!node.has_output(output) || !node.knows_rank(input)) continue;
    if (node.outputs[output].tensor.rank > 0) continue;
    onnx::ValueInfoProto& info = *graph.add_value_info();
    info.set_name(node.outputs[output].name);
    onnx::TypeProto::Tensor& type = *info.mutable_type()->mutable_tensor_type();
    type.set_elem_type(made->op->outputs[output].type);
    const contract::Tensor& tensor = node.inputs[input].tensor;
    for (int i = 0; i < tensor.rank; ++i) {
      const std::int64_t dim = tensor.dims[static_cast<std::size_t>(i)];
      onnx::TensorShapeProto::Dimension& made_dim = *type.mutable_shape()->add_dim();
      if (dim != contract::kUnknown) made_dim.set_dim_value(dim);
    }
    is_new = true;
  }
  return is_new;
}

bool add_outputs(onnx::GraphProto& graph, const Scope* around) {
  bool is_new = false;
  const Scope scope(graph, around);
  for (onnx::NodeProto& node : *graph.mutable_node()) {
    if (ort::is_ours(node.domain(), node.op_type())) {
      is_new |= add_outputs(node_of(node, scope), graph);
    }
    for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
      if (attribute.has_g()) is_new |= add_outputs(*attribute.mutable_g(), &scope);
      for (onnx::GraphProto& inner : *attribute.mutable_graphs()) {
        is_new |= add_outputs(inner, &scope);
      }
    }
  }
  return is_new;
}

// ONNX's own inference ends at our operators, which it does not know, and ours knows nothing else:
// they take turns, at most so often.
void infer_shapes(onnx::ModelProto& model) {
  constexpr int kTurns = 100;
  bool is_new = true;
  for (int turn = 0; is_new && turn < kTurns; ++turn) {
    try {
      onnx::shape_inference::InferShapes(model);
    } catch (const std::exception&) {
      // It complains about a node that is newer than it is, and has gone on with the others.
    }
    is_new = add_outputs(*model.mutable_graph(), nullptr);
  }
}

// Fills a graph with the nodes of a model as a run meets them: a function's once for each call.
class Walk {
 public:
  Walk(const OnnxFunctions& functions, OnnxGraph& graph) : functions_(functions), graph_(graph) {}

  // `where` names the nodes around; `attributes` are those of the function around, if any.
  template <class Nodes>
  void nodes(const Nodes& nodes, const Scope& scope, const std::string& where,
             const OnnxAttributes& attributes) const {
    for (onnx::NodeProto node : nodes) {
      resolve(attributes, node);
      ++graph_.total;
      if (ort::is_ours(node.domain(), node.op_type())) {
        graph_.nodes.push_back(node_of(node, scope));
        graph_.nodes.back().name = where + graph_.nodes.back().name;
        continue;
      }
      if (!node.domain().empty() && node.domain() != "ai.onnx") {
        ++graph_.foreign[node.domain() + "::" + node.op_type()];
      }
      const std::string inside = node.name().empty() ? where : where + node.name() + " > ";
      if (const onnx::FunctionProto* function = functions_.find(node)) {
        this->nodes(function->node(), Scope(*function, node, scope),
                    inside + function->name() + "() > ", attributes_of(node, *function));
      }
      const auto inner = [&](const onnx::GraphProto& graph) {
        this->nodes(graph.node(), Scope(graph, &scope), inside, attributes);
      };
      for (const onnx::AttributeProto& attribute : node.attribute()) {
        if (attribute.has_g()) inner(attribute.g());
        for (const onnx::GraphProto& graph : attribute.graphs()) inner(graph);
      }
    }
  }

 private:
  const OnnxFunctions& functions_;
  OnnxGraph& graph_;
};

}  // namespace

OnnxGraph read_onnx_graph(const std::filesystem::path& path) {
  onnx::ModelProto model = read(path);
  const OnnxFunctions functions(model);
  infer_shapes(model);
  OnnxGraph graph;
  Walk(functions, graph).nodes(model.graph().node(), Scope(model.graph(), nullptr), "", {});
  return graph;
}

}  // namespace deltaworks::cli

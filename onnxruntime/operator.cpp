#include "operator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace deltaworks::ort {

namespace {

Domain domain(const char* name, std::initializer_list<std::vector<Operator>> groups) {
  Domain made{name, {}};
  for (const std::vector<Operator>& group : groups) {
    made.operators.insert(made.operators.end(), group.begin(), group.end());
  }
  return made;
}

std::vector<const Operator*> rows_of(std::string_view domain, std::string_view type) {
  std::vector<const Operator*> rows;
  for (const Domain& known : domains()) {
    if (known.name != domain) continue;
    for (const Operator& op : known.operators) {
      if (op.name == type) rows.push_back(&op);
    }
  }
  return rows;
}

bool takes(const Port& port, const Node::Value& value) {
  if (value.name.empty()) return port.is_optional;
  return value.type == port.type || value.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

bool takes(const std::vector<Port>& ports, const std::vector<Node::Value>& values) {
  if (values.size() > ports.size()) return false;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    if (!takes(ports[i], i < values.size() ? values[i] : Node::Value{})) return false;
  }
  return true;
}

bool takes(const Operator& op, const Node& node) {
  return takes(op.inputs, node.inputs) && takes(op.outputs, node.outputs);
}

// A row that takes the node, with the types that it leaves open.
contract::Outcome<Made> make(const Operator& row, Node node) {
  for (std::size_t i = 0; i < node.inputs.size(); ++i) node.inputs[i].type = row.inputs[i].type;
  try {
    return Made{&row, row.create(node)};
  } catch (const InvalidArgument& error) {
    return message_of(node.type, error.what());
  }
}

// Why no row takes the values, of which there are some that it does not take.
std::string complaint(const std::vector<const Operator*>& rows,
                      const std::vector<Port> Operator::*side, const char* what,
                      const std::vector<Node::Value>& values) {
  const std::vector<Port>& first = rows.front()->*side;
  if (values.size() > first.size()) {
    return fmt::format("node has {} {}s, expected at most {}", values.size(), what, first.size());
  }
  std::string types;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const Node::Value value = i < values.size() ? values[i] : Node::Value{};
    if (value.name.empty()) {
      if (!first[i].is_optional) return fmt::format("{} {} is missing, expected it", what, i);
      continue;
    }
    std::vector<std::string> expected;
    for (const Operator* row : rows) {
      const std::string name = name_of_element((row->*side)[i].type);
      if (std::find(expected.begin(), expected.end(), name) == expected.end())
        expected.push_back(name);
    }
    const std::string type = name_of_element(value.type);
    if (value.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED &&
        std::find(expected.begin(), expected.end(), type) == expected.end()) {
      return fmt::format("{} {} ({}) has type {}, expected {}", what, i, value.name, type,
                         fmt::join(expected, " or "));
    }
    types += fmt::format("{}{} {}", types.empty() ? "" : ", ", value.name, type);
  }
  return fmt::format("{}s have types that do not go together: {}", what, types);
}

std::string complaint(const std::vector<const Operator*>& rows, const Node& node) {
  for (const Operator* row : rows) {
    if (takes(row->inputs, node.inputs))
      return complaint(rows, &Operator::outputs, "output", node.outputs);
  }
  return complaint(rows, &Operator::inputs, "input", node.inputs);
}

}  // namespace

const std::vector<Domain>& domains() {
  static const auto& all = *new std::vector<Domain>{
      domain("com.microsoft", {varlen_causal_conv_operators(), gated_delta_net_operators(),
                               paged_attention_operators(), linear_attention_operators(),
                               causal_conv_with_state_operators(), state_replay_operators()}),
      domain("deltaworks", {replay_operators(), dflash2_dynamic_conv_operators(),
                            gated_delta_rates_operators()})};
  return all;
}

bool is_ours(std::string_view domain, std::string_view type) {
  return !rows_of(domain, type).empty();
}

contract::Outcome<Made> make(Node node) {
  const std::vector<const Operator*> rows = rows_of(node.domain, node.type);
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const Operator* op) { return takes(*op, node); });
  if (row == rows.end()) return message_of(node.type, complaint(rows, node));
  return make(**row, std::move(node));
}

contract::Outcome<Plan> describe(Node node) {
  for (Node::Value& input : node.inputs) input.data = nullptr;
  const contract::Outcome<Made> made = make(node);
  if (const auto* reason = std::get_if<std::string>(&made)) return *reason;
  Plan plan = std::get<Made>(made).kernel->plan();
  // Where the graph leaves a type open several rows fit, and their states need not be of one size.
  for (const Operator* row : rows_of(node.domain, node.type)) {
    if (row == std::get<Made>(made).op || !takes(*row, node)) continue;
    const contract::Outcome<Made> other = make(*row, node);
    if (!std::holds_alternative<Made>(other)) continue;
    if (std::get<Made>(other).kernel->plan().state_bytes != plan.state_bytes) {
      plan.state_bytes = contract::kUnknown;
    }
  }
  return plan;
}

std::int64_t bytes_of(std::initializer_list<std::int64_t> extents, std::size_t element_bytes) {
  auto bytes = static_cast<std::int64_t>(element_bytes);
  for (const std::int64_t extent : extents) {
    if (extent == contract::kUnknown || __builtin_mul_overflow(bytes, extent, &bytes)) {
      return contract::kUnknown;
    }
  }
  return bytes;
}

OrtStatus* status_of(const OrtApi& api, OrtErrorCode code, const char* op,
                     const char* what) noexcept {
  try {
    return api.CreateStatus(code, message_of(op, what).c_str());
  } catch (...) {
    return api.CreateStatus(code, op);
  }
}

std::string message_of(const std::string& op, std::string_view what) {
  for (const std::string_view known :
       {std::string_view(op), std::string_view("varlen_causal_conv"),
        std::string_view("replay_conv_state"), std::string_view("gated_delta_net"),
        std::string_view("replay_gated_delta_state"), std::string_view("paged_attention"),
        std::string_view("dflash2_dynamic_conv"), std::string_view("gated_delta_rates"),
        std::string_view("linear_attention"), std::string_view("causal_conv_with_state")}) {
    if (what.substr(0, known.size()) != known || what.substr(known.size(), 2) != ": ") continue;
    what.remove_prefix(known.size() + 2);
    break;
  }
  return op + ": " + std::string(what);
}

}  // namespace deltaworks::ort

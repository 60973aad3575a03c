// deltaworks explain: what this library would do with a model's nodes, without running it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "command.hpp"
#include "contract/engine.hpp"
#include "contract/values.hpp"
#include "names.hpp"
#include "onnx_graph.hpp"
#include "operator.hpp"
#include "report.hpp"

namespace deltaworks::cli {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

struct ExplainOptions {
  std::string model;
  std::optional<std::int64_t> tokens;
  std::string engine = "auto";
  bool json = false;
};

// A node with its plan, or the reason why there is none.
struct Explained {
  std::string node, op, type;
  std::optional<std::int64_t> tokens;  // of a sequence
  ort::Plan plan;
  std::string reason;

  bool served() const { return reason.empty(); }
  bool is_chunked() const {
    return plan.chunked_from > 0 && tokens && *tokens >= plan.chunked_from;
  }
  std::string engine() const { return is_chunked() ? "chunked" : plan.engine; }
  // What the graph tells about the geometry and what it leaves to each run.
  std::string geometry() const {
    std::vector<std::string> known, open;
    for (const ort::Extent& extent : plan.geometry) {
      if (extent.value == contract::kUnknown) {
        open.emplace_back(extent.name);
      } else {
        known.push_back(fmt::format("{} {}", extent.name, extent.value));
      }
    }
    std::vector<std::string> parts;
    if (!known.empty()) parts.push_back(fmt::format("{}", fmt::join(known, ", ")));
    if (!open.empty()) parts.push_back(fmt::format("open: {}", fmt::join(open, ", ")));
    if (plan.chunked_from > 0 && (!tokens || plan.may_capture)) {
      parts.push_back(fmt::format("chunked from {} tokens on{}", plan.chunked_from,
                                  plan.may_capture ? " where nothing is captured" : ""));
    }
    return fmt::format("{}", fmt::join(parts, "; "));
  }
  std::string state() const {
    if (*plan.state_of == '\0') return "none";
    if (plan.state_bytes == contract::kUnknown) return fmt::format("? a {}", plan.state_of);
    return fmt::format("{} a {}", bytes_text(plan.state_bytes), plan.state_of);
  }
};

// What all nodes keep together, by what each keeps it for.
struct Totals {
  std::int64_t served = 0;
  std::map<std::string, std::int64_t, std::greater<>> bytes;  // of each "sequence", "cached token"
  std::int64_t unknown = 0;  // nodes whose bytes the file does not tell
};

// The type is that of the first input that has one of a real number.
std::string type_of(const ort::Node& node) {
  if (node.inputs.empty()) return "?";
  const auto type = node.inputs[0].type;
  return type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED ? "?" : ort::name_of_element(type);
}

Explained explained(const ort::Node& node, const std::optional<std::int64_t>& tokens) {
  Explained result{node.name, node.domain + "::" + node.type, type_of(node), tokens, {}, {}};
  const auto outcome = ort::describe(node);
  if (const auto* reason = std::get_if<std::string>(&outcome)) {
    result.reason = *reason;
    return result;
  }
  result.plan = std::get<ort::Plan>(outcome);
  for (ort::Extent& extent : result.plan.geometry) {
    const std::string_view name = extent.name;  // of one sequence, where graphs are dense
    const bool is_given = tokens && (name == "tokens" || name == "length");
    if (is_given && extent.value == contract::kUnknown) extent.value = *tokens;
  }
  return result;
}

Totals totals_of(const std::vector<Explained>& nodes) {
  Totals totals;
  for (const Explained& node : nodes) {
    if (!node.served()) continue;
    ++totals.served;
    if (*node.plan.state_of == '\0') continue;
    if (node.plan.state_bytes == contract::kUnknown) {
      ++totals.unknown;
    } else {
      totals.bytes[node.plan.state_of] += node.plan.state_bytes;
    }
  }
  return totals;
}

// Nodes that differ in their names alone share an entry.
std::string table(const std::vector<Explained>& nodes) {
  std::vector<std::pair<const Explained*, std::vector<std::string>>> groups;
  std::map<std::string, std::size_t> known;
  for (const Explained& node : nodes) {
    const std::string key = fmt::format("{}\n{}\n{}\n{}\n{}", node.op, node.type, node.geometry(),
                                        node.state(), node.reason);
    const auto [found, is_new] = known.try_emplace(key, groups.size());
    if (is_new) groups.emplace_back(&node, std::vector<std::string>());
    groups[found->second].second.push_back(node.node);
  }
  std::string text =
      fmt::format("{:>5}  {:<44}{:<10}{:<12}{}\n", "nodes", "operator", "type", "engine", "state");
  for (const auto& [node, names] : groups) {
    text += fmt::format("{:>5}  {:<44}{:<10}", names.size(), node->op, node->type);
    if (node->served()) {
      text += fmt::format("{:<12}{}\n       {}\n", node->engine(), node->state(), node->geometry());
    } else {
      text += fmt::format("NOT SERVED\n       {}\n", printable(node->reason));
    }
    for (const std::string& name : merged(names)) {
      text += fmt::format("       {}\n", printable(name));
    }
  }
  return text;
}

std::string totals_text(const Totals& totals, const std::optional<std::int64_t>& tokens) {
  std::vector<std::string> parts;
  std::int64_t together = 0;
  for (const auto& [what, bytes] : totals.bytes) {
    parts.push_back(fmt::format("{} a {}", bytes_text(bytes), what));
    together += what == "cached token" ? bytes * tokens.value_or(0) : bytes;
  }
  std::string text = fmt::format("state: {}", parts.empty() ? "none" : "");
  text += fmt::format("{}", fmt::join(parts, ", "));
  if (tokens && !parts.empty()) {
    text += fmt::format("; {} for a sequence of {} token{}", bytes_text(together), *tokens,
                        *tokens == 1 ? "" : "s");
  }
  if (totals.unknown > 0) {
    text += fmt::format("; of {} node{} the file does not tell", totals.unknown,
                        totals.unknown == 1 ? "" : "s");
  }
  return text + "\n";
}

std::string to_text(const fs::path& path, const OnnxGraph& graph,
                    const std::vector<Explained>& nodes,
                    const std::optional<std::int64_t>& tokens) {
  const auto count = static_cast<std::int64_t>(nodes.size());
  const Totals totals = totals_of(nodes);
  std::string text = fmt::format("{}: {} nodes, {} of this library's operators",
                                 printable(path.string()), graph.total, count);
  if (count > 0) {
    text += totals.served == count
                ? "; it serves all of them\n\n"
                : fmt::format("; it does NOT serve {} of them\n\n", count - totals.served);
    text += table(nodes) + "\n" + totals_text(totals, tokens);
  } else {
    text += ": it would not use the library\n";
  }
  if (graph.foreign.empty()) return text;
  std::vector<std::string> others;
  for (const auto& [op, times] : graph.foreign) {
    others.push_back(fmt::format("{} {}", times, printable(op)));
  }
  return text + fmt::format(
                    "beside ONNX's own operators, for ONNX Runtime to run (not looked at):\n  {}\n",
                    fmt::join(others, "\n  "));
}

json to_json(const fs::path& path, const OnnxGraph& graph, const std::vector<Explained>& nodes) {
  json list = json::array();
  for (const Explained& node : nodes) {
    json entry = {
        {"name", node.node}, {"operator", node.op}, {"type", node.type}, {"served", node.served()}};
    if (node.served()) {
      entry["engine"] = node.engine();
      if (node.plan.chunked_from > 0) entry["chunked_from"] = node.plan.chunked_from;
      for (const ort::Extent& extent : node.plan.geometry) {
        entry["geometry"][extent.name] =
            extent.value == contract::kUnknown ? json() : json(extent.value);
      }
      if (*node.plan.state_of != '\0') {
        entry["state"] = {{"of_each", node.plan.state_of}};
        if (node.plan.state_bytes != contract::kUnknown) {
          entry["state"]["bytes"] = node.plan.state_bytes;
        }
      }
    } else {
      entry["reason"] = node.reason;
    }
    list.push_back(std::move(entry));
  }
  const Totals totals = totals_of(nodes);
  return {{"model", path.string()},
          {"nodes", list},
          {"all_nodes", graph.total},
          {"served", totals.served == static_cast<std::int64_t>(nodes.size())},
          {"state_bytes", totals.bytes},
          {"nodes_of_unknown_state", totals.unknown},
          {"other_operators", graph.foreign}};
}

// A pipe would wait, and a device has no end. What is not there is left to whoever opens it.
const fs::path& regular(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::status(path, error).type();
  if (!error && fs::exists(fs::file_status(type)) && type != fs::file_type::regular) {
    throw UsageError(fmt::format("{} is not a regular file: give the path of the .onnx file",
                                 printable(path.string())));
  }
  return path;
}

// A package's decoder, where a folder is given.
fs::path graph_file(const fs::path& given) {
  if (!fs::is_directory(given)) return regular(given);
  const fs::path config = regular(given / "genai_config.json");
  std::ifstream file(config);
  if (!file) {
    throw UsageError(
        fmt::format("{} is a folder without genai_config.json: give the path of the .onnx file",
                    given.string()));
  }
  try {
    return regular(given /
                   json::parse(file).at("model").at("decoder").at("filename").get<std::string>());
  } catch (const json::exception&) {
    throw UsageError(fmt::format(
        "{} names no model.decoder.filename: give the path of the .onnx file", config.string()));
  }
}

int explain(const ExplainOptions& options) {
  const fs::path path = graph_file(options.model);
  const OnnxGraph graph = read_onnx_graph(path);
  const Engine engine =
      contract::value_or_throw(contract::parse_engine("explain", "--engine", options.engine));
  std::vector<Explained> nodes;
  for (ort::Node node : graph.nodes) {
    node.engine = engine;
    nodes.push_back(explained(node, options.tokens));
  }
  if (options.json) {
    write_json(to_json(path, graph, nodes));
  } else {
    write_output(to_text(path, graph, nodes, options.tokens));
  }
  return 0;
}

}  // namespace

void add_explain(CLI::App& app, Action& chosen) {
  CLI::App* command = app.add_subcommand(
      "explain", "What this library would do with a model's nodes, or why it would not");
  const auto options = std::make_shared<ExplainOptions>();
  command->add_option("model", options->model, "An .onnx file, or a folder with genai_config.json")
      ->required();
  command->add_option("--tokens", options->tokens, "Of a call: fills in what the graph leaves open")
      ->transform(number<std::int64_t>(1, std::numeric_limits<std::int32_t>::max()));
  command
      ->add_option("--engine", options->engine,
                   "As the session's entry deltaworks.engine (default: DELTAWORKS_ENGINE decides)")
      ->check(CLI::IsMember({"auto", "recurrent", "chunked"}));
  command->add_flag("--json", options->json, "As one JSON object");
  command->callback([&chosen, options] { chosen = [options] { return explain(*options); }; });
}

}  // namespace deltaworks::cli

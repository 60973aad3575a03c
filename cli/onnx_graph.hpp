// An ONNX file as its graph: our operators' nodes with what the file tells about their inputs. No
// session is made, weights in other files are not read.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "node.hpp"

namespace deltaworks::cli {

struct OnnxGraph {
  std::vector<ort::Node> nodes;  // ours, in the file's order, those of inner graphs included
  std::int64_t total = 0;        // nodes of any operator
  // The others outside ONNX's own domain: "com.microsoft::GatedRMSNorm" and how many.
  std::map<std::string, std::int64_t> foreign;
};

// Throws std::runtime_error, which says what to do, when the file cannot be read or is no model.
OnnxGraph read_onnx_graph(const std::filesystem::path& path);

}  // namespace deltaworks::cli

// A session of ONNX Runtime on a package's graph, and what the graph says of its inputs and
// outputs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ort.hpp"
#include "tensor.hpp"

namespace deltaworks::cli {

struct GraphOptions {
  int threads = 1;
  std::string profile_prefix;  // not empty: profiles into a file whose name starts so
};

class Graph {
 public:
  // `custom_ops_library` is a name, beside the program or in the file's folder; empty: our own.
  Graph(const std::filesystem::path& file, const std::string& custom_ops_library,
        const GraphOptions& options);

  Ort::Session& session() { return session_; }
  bool has(const std::string& name) const { return tensors_.contains(name); }
  ONNXTensorElementDataType type(const std::string& name) const { return at(name).type; }
  // A zero tensor of the shape that the graph states, its leading dimensions being `leading`.
  Tensor make(const std::string& name, const std::vector<std::int64_t>& leading) const;
  std::vector<std::string> input_names() const;

  // Ends profiling and says where the profile is.
  std::filesystem::path end_profiling();

 private:
  struct Description {
    ONNXTensorElementDataType type;
    std::vector<std::int64_t> shape;
  };
  const Description& at(const std::string& name) const;
  void describe(const std::string& name, const Ort::TypeInfo& info);

  Ort::Env env_;
  Ort::Session session_{nullptr};
  std::map<std::string, Description> tensors_;
};

}  // namespace deltaworks::cli

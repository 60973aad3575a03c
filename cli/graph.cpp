#include "graph.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stdexcept>

#include "runtime.hpp"

namespace deltaworks::cli {

namespace {

Ort::Env make_environment() {
  load_runtime();
  return Ort::Env(ORT_LOGGING_LEVEL_ERROR, "deltaworks");
}

Ort::Session open_session(const Ort::Env& env, const std::filesystem::path& file,
                          const std::string& custom_ops_library, const GraphOptions& options) {
  Ort::SessionOptions session;
  session.SetIntraOpNumThreads(options.threads);
  if (!options.profile_prefix.empty()) session.EnableProfiling(options.profile_prefix.c_str());
  session.RegisterCustomOpsLibrary(find_operators(custom_ops_library, file.parent_path()).c_str());
  try {
    return Ort::Session(env, file.c_str(), session);
  } catch (const Ort::Exception& error) {
    if (std::string(error.what()).find("not a registered function/op") == std::string::npos) throw;
    const Runtime& runtime = load_runtime();
    throw std::runtime_error(
        fmt::format("{}\nThis is ONNX Runtime {} ({}); {} may need a newer one", error.what(),
                    runtime.version, runtime.path, file.string()));
  }
}

}  // namespace

Graph::Graph(const std::filesystem::path& file, const std::string& custom_ops_library,
             const GraphOptions& options)
    : env_(make_environment()), session_(open_session(env_, file, custom_ops_library, options)) {
  Ort::AllocatorWithDefaultOptions allocator;
  for (std::size_t i = 0; i < session_.GetInputCount(); ++i) {
    describe(session_.GetInputNameAllocated(i, allocator).get(), session_.GetInputTypeInfo(i));
  }
  for (std::size_t i = 0; i < session_.GetOutputCount(); ++i) {
    describe(session_.GetOutputNameAllocated(i, allocator).get(), session_.GetOutputTypeInfo(i));
  }
}

void Graph::describe(const std::string& name, const Ort::TypeInfo& info) {
  const auto tensor = info.GetTensorTypeAndShapeInfo();
  tensors_[name] = {tensor.GetElementType(), tensor.GetShape()};
}

const Graph::Description& Graph::at(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw std::runtime_error(
        fmt::format("genai_config.json names {}, which is no input or output of the graph", name));
  }
  return found->second;
}

Tensor Graph::make(const std::string& name, const std::vector<std::int64_t>& leading) const {
  const Description& stated = at(name);
  std::vector<std::int64_t> shape = stated.shape;
  bool fits = leading.size() <= shape.size();
  for (std::size_t dim = 0; fits && dim < shape.size(); ++dim) {
    if (dim < leading.size()) {
      fits = shape[dim] < 0 || shape[dim] == leading[dim];
      shape[dim] = leading[dim];
    } else {
      fits = shape[dim] >= 0;
    }
  }
  if (!fits) {
    throw std::runtime_error(fmt::format("{} has shape [{}] in the graph, expected [{}, …]", name,
                                         fmt::join(stated.shape, ", "), fmt::join(leading, ", ")));
  }
  return Tensor(stated.type, shape);
}

std::vector<std::string> Graph::input_names() const {
  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < session_.GetInputCount(); ++i) {
    names.emplace_back(session_.GetInputNameAllocated(i, allocator).get());
  }
  return names;
}

std::filesystem::path Graph::end_profiling() {
  Ort::AllocatorWithDefaultOptions allocator;
  return session_.EndProfilingAllocated(allocator).get();
}

}  // namespace deltaworks::cli

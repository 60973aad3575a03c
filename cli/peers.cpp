#include "peers.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "ort.hpp"
#include "runtime.hpp"
#include "tensor.hpp"

namespace deltaworks::cli {

struct Peers::Environment {
  Ort::Env env{ORT_LOGGING_LEVEL_FATAL, "deltaworks"};
};

namespace {

ONNXTensorElementDataType element_type(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    case DType::kBFloat16: return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
    case DType::kInt32: return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    case DType::kFloat32: break;
  }
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
}

// A session that runs one node on memory of its own.
class BoundNode {
 public:
  // Without a library of operators the node runs on ONNX Runtime's own kernel.
  BoundNode(const Ort::Env& env, const OnnxNode& node, int threads, const std::string& operators)
      : node_(node), session_(create(env, node, threads, operators)), binding_(session_) {
    for (const OnnxOperand& input : node.inputs) {
      if (input.name.empty() || input.is_constant) continue;
      const Tensor& tensor = tensors_.emplace_back(element_type(input.dtype), input.shape);
      if (input.bytes() > 0) std::memcpy(tensor.data<char>(), input.data, input.bytes());
      binding_.BindInput(input.name.c_str(), tensor.value());
    }
    first_output_ = tensors_.size();
    for (const OnnxOperand& output : node.outputs) {
      const Tensor& tensor = tensors_.emplace_back(element_type(output.dtype), output.shape);
      binding_.BindOutput(output.name.c_str(), tensor.value());
    }
  }

  void run() { session_.Run(Ort::RunOptions{nullptr}, binding_); }

  template <class Number>
  std::vector<Number> output(std::size_t index) const {
    const OnnxOperand& output = node_.outputs[index];
    std::vector<Number> values(output.size());
    visit_dtype(output.dtype, [&]<class T>(T) {
      const T* const data = tensors_[first_output_ + index].template data<T>();
      std::transform(data, data + values.size(), values.begin(), [](T x) { return to_float(x); });
    });
    return values;
  }

 private:
  static Ort::Session create(const Ort::Env& env, const OnnxNode& node, int threads,
                             const std::string& operators) {
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(threads);
    options.SetLogSeverityLevel(ORT_LOGGING_LEVEL_FATAL);  // what fails is said once, by us
    if (!operators.empty()) options.RegisterCustomOpsLibrary(operators.c_str());
    const std::string model = onnx_model(node);
    return {env, model.data(), model.size(), options};
  }

  OnnxNode node_;
  Ort::Session session_;
  Ort::IoBinding binding_;
  std::vector<Tensor> tensors_;
  std::size_t first_output_ = 0;
};

// Each kernel is allowed one rounding to the type; float32 results differ by the order of sums, over
// a few hundred tokens.
double allowed_difference(DType dtype) {
  double allowed = 1e-4;
  visit_dtype(dtype,
              [&]<class T>(T) { allowed = std::max(allowed, 4 * reference::tolerance<T>()); });
  return allowed;
}

double difference(const BoundNode& ours, const BoundNode& theirs, const PeerNodes& nodes) {
  double largest = 0;
  for (std::size_t i = 0; i < nodes.outputs.size(); ++i) {
    const std::size_t j = nodes.outputs[i];
    const double error = relative_error(ours.output<float>(i), theirs.output<double>(j));
    const double allowed = std::max(allowed_difference(nodes.ours.outputs[i].dtype),
                                    allowed_difference(nodes.theirs.outputs[j].dtype));
    largest = std::max(largest, error / allowed);
  }
  return largest;
}

}  // namespace

Peers::Peers(int threads) : threads_(threads) {
  const Runtime& runtime = load_runtime();
  name_ = "ONNX Runtime " + runtime.version;
  path_ = runtime.path;
  operators_ = find_operators("", "").string();
  environment_ = std::make_unique<Environment>();
}

Peers::~Peers() = default;

PeerFigures Peers::measure(const PeerNodes& nodes, double seconds) const {
  std::optional<BoundNode> theirs;
  try {
    theirs.emplace(environment_->env, nodes.theirs, threads_, "");
    theirs->run();
  } catch (const Ort::Exception& error) {
    return {.missing = error.what()};
  }
  BoundNode ours(environment_->env, nodes.ours, threads_, operators_);
  ours.run();
  PeerFigures figures;
  figures.difference = difference(ours, *theirs, nodes);
  if (!(figures.difference <= 1)) return figures;
  const auto timings =
      time_in_turns({[&] { ours.run(); }, [&] { theirs->run(); }}, threads_, seconds);
  figures.ours = timings[0];
  figures.theirs = timings[1];
  return figures;
}

}  // namespace deltaworks::cli

// One operator variant as ONNX Runtime sees it: a table of its inputs and outputs, and the C
// callbacks, the same for all, which turn exceptions into statuses.
#pragma once

#include <memory>
#include <vector>

#include "adapter.hpp"

namespace deltaworks::ort {

// A node of a session. Threads may run it at the same time.
class Kernel {
 public:
  Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  virtual ~Kernel() = default;
  virtual void compute(Call& call) const = 0;
};

struct Port {
  ONNXTensorElementDataType type;
  bool is_optional = false;
};

// Outputs that may take an input's memory.
using InPlace = std::size_t (*)(int** inputs, int** outputs);

template <int kInput, int kOutput, int kCount = 1>
std::size_t in_place(int** inputs, int** outputs) {
  static int from[kCount], to[kCount];
  for (int i = 0; i < kCount; ++i) {
    from[i] = kInput + i;
    to[i] = kOutput + i;
  }
  *inputs = from;
  *outputs = to;
  return kCount;
}

struct Operator {
  const char* name;
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  // Checks the node against the contract, as far as its shapes are known; throws InvalidArgument.
  std::unique_ptr<Kernel> (*create)(const Node& node);
  InPlace in_place = nullptr;
};

class CustomOp : public OrtCustomOp {
 public:
  explicit CustomOp(Operator op);
  const Operator& description() const { return op_; }

 private:
  Operator op_;
};

// Every typed variant on its own: ONNX Runtime matches a node's types against the rows.
std::vector<Operator> varlen_causal_conv_operators();
std::vector<Operator> gated_delta_net_operators();
std::vector<Operator> paged_attention_operators();
std::vector<Operator> state_replay_operators();  // com.microsoft: one sequence inside large buffers
std::vector<Operator> replay_operators();        // deltaworks: a batch
std::vector<Operator> dflash2_dynamic_conv_operators();  // deltaworks

}  // namespace deltaworks::ort

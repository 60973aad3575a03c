// An operator as every host sees it: the types of its inputs and outputs, and what makes a kernel
// from a node.
#pragma once

#include <array>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "adapter.hpp"
#include "node.hpp"

namespace deltaworks::ort {

struct Extent {
  const char* name;
  std::int64_t value;     // kUnknown: a run will tell
  std::int64_t most = 0;  // that this library serves; 0: any
};

// What a run of a node will be, as far as its graph tells.
struct Plan {
  std::vector<Extent> geometry{};
  const char* engine = "";
  std::int64_t state_bytes = contract::kUnknown;  // kept from run to run, for each …
  const char* state_of = "";                      // … sequence, say; empty: nothing is kept
  std::int64_t chunked_from = 0;  // tokens of a sequence that the chunked engine takes; 0: of none
  bool may_capture = false;       // a sequence that captures is none of the chunked engine's
};

// The bytes of elements of one size, or kUnknown.
std::int64_t bytes_of(std::initializer_list<std::int64_t> extents, std::size_t element_bytes);

// A node of a session. Threads may run it at the same time. Its constructor checks the node against
// the contract, as far as the shapes are known; throws InvalidArgument.
class Kernel {
 public:
  Kernel() = default;
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;
  virtual ~Kernel() = default;
  virtual void compute(Call& call) const = 0;
  virtual Plan plan() const = 0;
  // Memory for constants in a form that runs faster.
  virtual std::size_t prepared_bytes() const { return 0; }
};

struct Port {
  ONNXTensorElementDataType type;
  bool is_optional = false;
};

// Outputs that may take an input's memory.
using InPlace = std::size_t (*)(int** inputs, int** outputs);

template <int kFirst, int kCount>
inline std::array<int, kCount> consecutive = [] {
  std::array<int, kCount> indices;
  for (int i = 0; i < kCount; ++i) indices[i] = kFirst + i;
  return indices;
}();

template <int kInput, int kOutput, int kCount = 1>
std::size_t in_place(int** inputs, int** outputs) {
  *inputs = consecutive<kInput, kCount>.data();
  *outputs = consecutive<kOutput, kCount>.data();
  return kCount;
}

// One row of an operator's types.
struct Operator {
  const char* name;
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  std::unique_ptr<Kernel> (*create)(const Node& node);
  InPlace in_place = nullptr;
};

struct Domain {
  const char* name;
  std::vector<Operator> operators;
};

// Every operator, each of its rows on its own.
const std::vector<Domain>& domains();

bool is_ours(std::string_view domain, std::string_view type);

// The operator's row that the node's types fit, with a kernel for the node; or the reason why there
// is none, which starts with the operator's name. The node is one of ours.
struct Made {
  const Operator* op;
  std::unique_ptr<Kernel> kernel;
};
contract::Outcome<Made> make(Node node);

// What make() would make, without the work of preparing constants; the state's bytes only where
// every row that fits has the same.
contract::Outcome<Plan> describe(Node node);

// "gated_delta_net: query has …" of the library becomes "GatedDeltaNet: query has …": the operator
// as the model's author knows it.
std::string message_of(const std::string& op, std::string_view what);

// The status of an error; of one that memory does not suffice to tell, its operator alone.
OrtStatus* status_of(const OrtApi& api, OrtErrorCode code, const char* op,
                     const char* what) noexcept;

// Runs `body`; no exception crosses the C interface.
template <class Body>
OrtStatus* guarded(const OrtApi& api, const char* op, const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const InvalidArgument& error) {
    return status_of(api, ORT_INVALID_ARGUMENT, op, error.what());
  } catch (const std::exception& error) {
    return status_of(api, ORT_FAIL, op, error.what());
  } catch (...) {
    return api.CreateStatus(ORT_FAIL, op);
  }
}

std::vector<Operator> varlen_causal_conv_operators();
std::vector<Operator> gated_delta_net_operators();
std::vector<Operator> paged_attention_operators();
std::vector<Operator> linear_attention_operators();
std::vector<Operator> causal_conv_with_state_operators();
std::vector<Operator> state_replay_operators();  // com.microsoft: one sequence inside large buffers
std::vector<Operator> replay_operators();        // deltaworks: a batch
std::vector<Operator> dflash2_dynamic_conv_operators();  // deltaworks
std::vector<Operator> gated_delta_rates_operators();     // deltaworks

}  // namespace deltaworks::ort

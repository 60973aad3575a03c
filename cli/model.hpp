// A model package in ONNX Runtime, running one sequence.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "decode.hpp"
#include "graph.hpp"
#include "layer_state.hpp"
#include "package.hpp"
#include "tensor.hpp"

namespace deltaworks::cli {

// Memory is allocated once, for a sequence of max_tokens. Keeping every token of a call makes the
// bank that it wrote current; taking tokens back first replays the kept ones into that bank.
class Model final : public Sequence {
 public:
  // `tap`: the hidden rows that a drafter reads are kept for take_tapped().
  Model(const Package& package, const GraphOptions& options, std::int64_t max_tokens, bool tap);

  void reset() override;
  std::span<const float> advance(std::span<const std::int32_t> tokens) override;
  std::vector<std::span<const float>> verify(std::span<const std::int32_t> tokens) override;
  void keep(std::int64_t tokens) override;

  // [tokens, width]: rows of the tokens kept since the last call or reset().
  std::vector<float> take_tapped() { return std::exchange(kept_taps_, {}); }

  Graph& graph() { return graph_; }

 private:
  struct Cache {
    std::string past, present;
    Tensor tensor;
  };
  struct Argument {
    std::string name;
    Tensor tensor;
  };

  void create_arguments();
  void create_states();
  LayerState layer_state(const std::string& kind, const std::string& update_key, int layer,
                         const std::vector<std::int64_t>& update_shape) const;
  void check_capsule(const LayerState& state) const;
  void check_all_inputs_known() const;

  void run(std::span<const std::int32_t> tokens, bool capture);
  void write_arguments(std::span<const std::int32_t> tokens, bool capture);
  template <class T>
  void write(const std::string& key, const std::vector<T>& values);
  Ort::IoBinding& binding(std::int64_t tokens, bool capture);
  Ort::IoBinding bind(std::int64_t tokens, bool capture);
  std::vector<std::span<const float>> logits(std::int64_t first, std::int64_t end);
  void replay(std::int64_t tokens);
  void keep_taps(std::int64_t tokens);

  Package package_;
  Graph graph_;
  std::int64_t max_tokens_, blocks_;
  std::map<std::string, Argument> arguments_;  // by the package's keys; what the graph has of them
  std::optional<Tensor> logits_;
  std::vector<float> widened_logits_;  // of a 16-bit model
  std::optional<Tensor> taps_;         // of the last call
  std::vector<float> kept_taps_;
  std::vector<Cache> caches_;
  std::vector<LayerState> conv_states_, recurrent_states_;
  std::map<std::tuple<std::int64_t, bool, int>, Ort::IoBinding> bindings_;

  std::int64_t past_ = 0;       // tokens kept
  std::int64_t unsettled_ = 0;  // tokens of the verify() that keep() has yet to settle
  int bank_ = 0;
};

}  // namespace deltaworks::cli

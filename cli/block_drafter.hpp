// A package's DFlash2 drafter in ONNX Runtime, following one sequence of its target.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "decode.hpp"
#include "graph.hpp"
#include "package.hpp"
#include "tensor.hpp"

namespace deltaworks::cli {

class Model;

// One pass turns the target's hidden rows and its newest token into candidates for the slots behind
// that token. The hidden rows' keys and values stay in a cache; those of the block are overwritten by
// the next pass.
class BlockDrafter {
 public:
  // For a sequence of max_tokens. The package must have a drafter.
  BlockDrafter(const Package& package, const GraphOptions& options, std::int64_t max_tokens);

  // Drafts behind `history`, of which the target has run all but the newest token. `tapped` are the
  // hidden rows of the tokens that it has run since the last call; those of all of them begin a new
  // sequence. A temperature above 0 draws the drafts.
  Draft draft(std::span<const float> tapped, std::span<const std::int32_t> history,
              std::size_t limit, const Sampler& sampler);

  Graph& graph() { return graph_; }

 private:
  struct Argument {
    std::string name;
    Tensor tensor;
  };

  void add(const std::string& key, Tensor tensor);
  void check_all_inputs_known();
  void run(std::span<const float> tapped, std::int64_t past, std::int32_t anchor);
  void write_arguments(std::int64_t rows, std::int64_t past, std::int32_t anchor);
  Ort::IoBinding& binding(std::int64_t rows);
  Ort::IoBinding bind(std::int64_t rows);
  Draft walk(std::uint64_t position, std::size_t limit, const Sampler& sampler) const;

  DrafterPackage package_;
  Graph graph_;
  std::int64_t context_length_, max_tokens_, blocks_;
  std::map<std::string, Argument> arguments_;                     // by the package's keys
  std::vector<std::pair<std::string, std::string>> cache_names_;  // past and present
  std::vector<Tensor> caches_;
  Tensor candidate_ids_, scores_;
  std::map<std::int64_t, Ort::IoBinding> bindings_;  // by the hidden rows of a pass
};

// Drafts for generate_text() on a model that taps; all three must outlive it.
Drafter block_drafts(Model& target, BlockDrafter& drafter, const Sampler& sampler);

}  // namespace deltaworks::cli

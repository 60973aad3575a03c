#include "block_drafter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <stdexcept>

#include "deltaworks/dflash2_path.hpp"
#include "model.hpp"

namespace deltaworks::cli {

namespace {

constexpr auto kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
constexpr auto kInt32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
constexpr auto kInt64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;

Tensor make_output(const Graph& graph, const std::string& name, ONNXTensorElementDataType type,
                   const std::vector<std::int64_t>& shape) {
  Tensor tensor = graph.make(name, shape);
  if (tensor.type() != type || tensor.shape() != shape) {
    throw std::runtime_error(name + " has an unexpected type or rank in the drafter's graph");
  }
  return tensor;
}

}  // namespace

BlockDrafter::BlockDrafter(const Package& package, const GraphOptions& options,
                           std::int64_t max_tokens)
    : package_(*package.drafter),
      graph_(package.folder / package_.model_file, package_.custom_ops_library, options),
      context_length_(package.context_length),
      max_tokens_(max_tokens),
      blocks_((max_tokens + package_.block + package.block_size - 1) / package.block_size),
      candidate_ids_(make_output(graph_, package_.output("candidate_ids"), kInt32,
                                 {1, package_.block - 1, package_.candidates})),
      scores_(make_output(graph_, package_.output("scores"), kFloat,
                          {1, package_.block - 1, package_.candidates, package_.candidates})) {
  const std::int64_t rows = max_tokens + package_.block;
  add("aux_hidden_states", graph_.make(package_.input("aux_hidden_states"), {max_tokens}));
  add("input_ids", Tensor(kInt64, {package_.block}));
  for (const char* key : {"q_row_map", "qkv_row_map"}) {
    if (package_.inputs.contains(key)) add(key, Tensor(kInt32, {rows}));
  }
  add("block_row_index", Tensor(kInt32, {package_.block}));
  add("cumulative_sequence_lengths", Tensor(kInt32, {2}));
  add("past_sequence_lengths", Tensor(kInt32, {1}));
  add("block_table", Tensor(kInt32, {1, blocks_}));
  add("attention_metadata", Tensor(kInt32, {3}));
  auto* table = arguments_.at("block_table").tensor.data<std::int32_t>();
  std::iota(table, table + blocks_, 0);
  for (int layer = 0; layer < package_.layers; ++layer) {
    for (const std::string kind : {"key", "value"}) {
      const auto past = layer_name(package_.input("past_" + kind + "_names"), layer);
      const auto present = layer_name(package_.output("present_" + kind + "_names"), layer);
      cache_names_.emplace_back(past, present);
      caches_.push_back(graph_.make(past, {blocks_, package.block_size}));
    }
  }
  check_all_inputs_known();
}

void BlockDrafter::add(const std::string& key, Tensor tensor) {
  const std::string& name = package_.input(key);
  const auto type = key == "aux_hidden_states" ? kFloat : tensor.type();
  if (!graph_.has(name) || graph_.type(name) != type) {
    const char* expected = type == kFloat ? "float32" : type == kInt64 ? "int64" : "int32";
    throw std::runtime_error(
        fmt::format("{} is missing in the drafter's graph, or not of type {}", name, expected));
  }
  arguments_.emplace(key, Argument{name, std::move(tensor)});
}

void BlockDrafter::check_all_inputs_known() {
  std::set<std::string> known;
  for (const auto& [key, argument] : arguments_) known.insert(argument.name);
  for (const auto& [past, present] : cache_names_) known.insert(past);
  for (const std::string& name : graph_.input_names()) {
    if (known.contains(name)) continue;
    throw std::runtime_error(
        fmt::format("the drafter's graph has the input {}, which generate does not know", name));
  }
}

Draft BlockDrafter::draft(std::span<const float> tapped, std::span<const std::int32_t> history,
                          std::size_t limit, const Sampler& sampler) {
  const std::int64_t width = arguments_.at("aux_hidden_states").tensor.shape()[1];
  const auto rows = static_cast<std::int64_t>(tapped.size()) / width;
  const auto run_tokens = static_cast<std::int64_t>(history.size()) - 1;
  if (rows * width != static_cast<std::int64_t>(tapped.size()) || rows > run_tokens ||
      run_tokens > max_tokens_) {
    throw std::runtime_error(
        fmt::format("the drafter reads hidden rows of {} values: the target gave {} values for at "
                    "most {} tokens",
                    width, tapped.size(), run_tokens));
  }
  if (run_tokens + package_.block > context_length_) return {};
  run(tapped, run_tokens - rows, history.back());
  return walk(history.size(), std::min(limit, static_cast<std::size_t>(package_.block - 1)),
              sampler);
}

void BlockDrafter::run(std::span<const float> tapped, std::int64_t past, std::int32_t anchor) {
  const Tensor& hidden = arguments_.at("aux_hidden_states").tensor;
  const std::int64_t rows = static_cast<std::int64_t>(tapped.size()) / hidden.shape()[1];
  std::copy(tapped.begin(), tapped.end(), hidden.data<float>());
  write_arguments(rows, past, anchor);
  graph_.session().Run(Ort::RunOptions{nullptr}, binding(rows));
}

// The packed sequence is the hidden rows, then the block; the maps index the block, then the hidden
// rows. Queries of hidden rows are not wanted: where they have a map of their own it names row 0.
void BlockDrafter::write_arguments(std::int64_t rows, std::int64_t past, std::int32_t anchor) {
  const auto at = [&](const char* key) { return arguments_.at(key).tensor.data<std::int32_t>(); };
  auto* ids = arguments_.at("input_ids").tensor.data<std::int64_t>();
  std::fill(ids, ids + package_.block, package_.mask_token);
  ids[0] = anchor;
  const auto block = static_cast<std::int32_t>(package_.block);
  const auto hidden = static_cast<std::int32_t>(rows), before = static_cast<std::int32_t>(past);
  if (arguments_.contains("q_row_map")) {
    std::fill(at("q_row_map"), at("q_row_map") + hidden, 0);
    std::iota(at("q_row_map") + hidden, at("q_row_map") + hidden + block, 0);
  }
  if (arguments_.contains("qkv_row_map")) {
    std::iota(at("qkv_row_map"), at("qkv_row_map") + hidden, block);
    std::iota(at("qkv_row_map") + hidden, at("qkv_row_map") + hidden + block, 0);
  }
  std::iota(at("block_row_index"), at("block_row_index") + block, hidden);
  const std::int32_t queries = hidden + block, keys = before + queries;
  std::ranges::copy(std::array{0, queries}, at("cumulative_sequence_lengths"));
  at("past_sequence_lengths")[0] = before;
  std::ranges::copy(std::array{queries, keys, keys}, at("attention_metadata"));
}

Ort::IoBinding BlockDrafter::bind(std::int64_t rows) {
  Ort::IoBinding bound(graph_.session());
  for (const auto& [key, argument] : arguments_) {
    const Tensor& tensor = argument.tensor;
    const bool is_map = key == "q_row_map" || key == "qkv_row_map";
    const auto value = key == "aux_hidden_states" ? tensor.value({rows, tensor.shape()[1]})
                       : is_map                   ? tensor.value({rows + package_.block})
                                                  : tensor.value();
    bound.BindInput(argument.name.c_str(), value);
  }
  for (std::size_t i = 0; i < caches_.size(); ++i) {
    bound.BindInput(cache_names_[i].first.c_str(), caches_[i].value());
    bound.BindOutput(cache_names_[i].second.c_str(), caches_[i].value());
  }
  bound.BindOutput(package_.output("candidate_ids").c_str(), candidate_ids_.value());
  bound.BindOutput(package_.output("scores").c_str(), scores_.value());
  return bound;
}

Ort::IoBinding& BlockDrafter::binding(std::int64_t rows) {
  auto found = bindings_.find(rows);
  if (found == bindings_.end()) found = bindings_.emplace(rows, bind(rows)).first;
  return found->second;
}

Draft BlockDrafter::walk(std::uint64_t position, std::size_t limit, const Sampler& sampler) const {
  const auto slots = static_cast<std::int64_t>(limit);
  const std::int64_t candidates = package_.candidates;
  Draft draft;
  draft.tokens.resize(limit);
  DFlash2PathArgs args{.candidate_ids = {candidate_ids_.data<std::int32_t>(), {slots, candidates}},
                       .scores = {scores_.data<float>(), {slots, candidates, candidates}},
                       .tokens = {draft.tokens.data(), {slots}},
                       .temperature = sampler.temperature()};
  std::vector<double> uniforms(limit);
  if (sampler.temperature() > 0) {
    for (std::size_t slot = 0; slot < limit; ++slot) {
      uniforms[slot] = sampler.draft_uniform(position + slot);
    }
    const std::size_t size = limit * static_cast<std::size_t>(candidates);
    draft.probabilities.resize(size);
    draft.candidate_ids.assign(args.candidate_ids.data(), args.candidate_ids.data() + size);
    args.uniforms = {uniforms.data(), {slots}};
    args.probabilities = {draft.probabilities.data(), {slots, candidates}};
  }
  walk_dflash2_path(args);
  return draft;
}

Drafter block_drafts(Model& target, BlockDrafter& drafter, const Sampler& sampler) {
  return [&](std::span<const std::int32_t> history, std::size_t limit) {
    return drafter.draft(target.take_tapped(), history, limit, sampler);
  };
}

}  // namespace deltaworks::cli

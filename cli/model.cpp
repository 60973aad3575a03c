#include "model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "deltaworks/dtype.hpp"

namespace deltaworks::cli {

namespace {

constexpr auto kInt32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
constexpr auto kInt64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
constexpr auto kLongestCall = static_cast<std::int64_t>(Sequence::kMaxCall);

template <class T>
void widen(const T* from, std::int64_t size, std::vector<float>& to) {
  to.resize(static_cast<std::size_t>(size));
  std::transform(from, from + size, to.begin(), [](T x) { return to_float(x); });
}

}  // namespace

Model::Model(const Package& package, const GraphOptions& options, std::int64_t max_tokens, bool tap)
    : package_(package),
      graph_(package.folder / package.model_file, package.custom_ops_library, options),
      max_tokens_(max_tokens),
      blocks_((max_tokens + package.block_size - 1) / package.block_size) {
  create_arguments();
  create_states();
  check_all_inputs_known();
  logits_ = graph_.make(package_.output("logits"), {kLongestCall, package_.vocabulary});
  if (!tap) return;
  const std::string& name = package_.output("aux_hidden_states");
  taps_ = graph_.make(name, {kLongestCall});
  if (taps_->type() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
    throw std::runtime_error(name + " is not float32 in the graph");
  }
}

void Model::create_arguments() {
  const std::vector<std::tuple<const char*, ONNXTensorElementDataType, std::vector<std::int64_t>>>
      known{
          {"input_ids", kInt64, {kLongestCall}},       {"position_ids", kInt64, {3, kLongestCall}},
          {"block_table", kInt32, {1, blocks_}},       {"cumulative_sequence_lengths", kInt32, {2}},
          {"past_sequence_lengths", kInt32, {1}},      {"attention_metadata", kInt32, {3}},
          {"state_update_capture_count", kInt32, {1}}, {"state_update_active", kInt32, {1}}};
  for (const auto& [key, type, shape] : known) {
    const auto named = package_.inputs.find(key);
    if (named == package_.inputs.end() || !graph_.has(named->second)) continue;
    if (graph_.type(named->second) != type) {
      throw std::runtime_error(named->second + " has an unexpected type in the graph");
    }
    arguments_.emplace(key, Argument{named->second, Tensor(type, shape)});
  }
  std::vector<std::int32_t> table(static_cast<std::size_t>(blocks_));
  std::iota(table.begin(), table.end(), 0);
  write("block_table", table);
}

LayerState Model::layer_state(const std::string& kind, const std::string& update_key, int layer,
                              const std::vector<std::int64_t>& update_shape) const {
  const auto past = layer_name(package_.input("past_" + kind + "_names"), layer);
  LayerState state{past,
                   layer_name(package_.output("present_" + kind + "_names"), layer),
                   {},
                   {graph_.make(past, {1}), graph_.make(past, {1})},
                   {}};
  if (package_.capture_capacity > 0) {
    state.update_name = layer_name(package_.output(update_key), layer);
    state.update = graph_.make(state.update_name, update_shape);
  }
  return state;
}

void Model::create_states() {
  for (const int layer : package_.kv_layers) {
    for (const std::string kind : {"key", "value"}) {
      const auto past = layer_name(package_.input("past_" + kind + "_names"), layer);
      caches_.push_back({past, layer_name(package_.output("present_" + kind + "_names"), layer),
                         graph_.make(past, {blocks_, package_.block_size})});
    }
  }
  for (const int layer : package_.conv_layers) {
    conv_states_.push_back(layer_state("conv", "state_update_conv_value_names", layer,
                                       {1, package_.capture_capacity}));
  }
  for (const int layer : package_.recurrent_layers) {
    recurrent_states_.push_back(
        layer_state("recurrent", "state_update_recurrent_capsule_names", layer, {1}));
    if (package_.capture_capacity > 0) check_capsule(recurrent_states_.back());
  }
}

// The number of key heads is seen in the width alone.
void Model::check_capsule(const LayerState& state) const {
  const auto& shape = state.banks[0].shape();
  if (shape.size() != 4) {
    throw std::runtime_error(state.past + " has an unexpected rank in the graph, expected 4");
  }
  const std::int64_t value_heads = shape[1], value_dim = shape[2], key_dim = shape[3];
  const std::int64_t others = package_.key_heads * key_dim + value_heads * value_dim;
  const std::int64_t expected = package_.capture_capacity * (value_heads + others);
  const std::int64_t per_key = package_.capture_capacity * (value_heads * key_dim + others);
  const std::int64_t found = state.update->shape().back();
  if (found == expected || found == per_key) return;
  throw std::runtime_error(fmt::format(
      "genai_config.json states key_head_count {} and capacity {}, with which {} would have rows "
      "of {}; the graph has rows of {}",
      package_.key_heads, package_.capture_capacity, state.update_name, expected, found));
}

void Model::check_all_inputs_known() const {
  std::set<std::string> known;
  for (const auto& [key, argument] : arguments_) known.insert(argument.name);
  for (const Cache& cache : caches_) known.insert(cache.past);
  for (const auto* states : {&conv_states_, &recurrent_states_}) {
    for (const LayerState& state : *states) known.insert(state.past);
  }
  for (const std::string& name : graph_.input_names()) {
    if (!known.contains(name)) {
      throw std::runtime_error(
          fmt::format("the graph has the input {}, which generate does not know", name));
    }
  }
}

void Model::reset() {
  past_ = unsettled_ = 0;
  bank_ = 0;
  kept_taps_.clear();
  for (auto* states : {&conv_states_, &recurrent_states_}) {
    for (LayerState& state : *states) state.banks[0].clear();
  }
}

template <class T>
void Model::write(const std::string& key, const std::vector<T>& values) {
  const auto found = arguments_.find(key);
  if (found == arguments_.end()) return;
  std::copy(values.begin(), values.end(), found->second.tensor.template data<T>());
}

void Model::write_arguments(std::span<const std::int32_t> tokens, bool capture) {
  const auto size = static_cast<std::int32_t>(tokens.size());
  const auto past = static_cast<std::int32_t>(past_);
  std::vector<std::int64_t> ids(tokens.begin(), tokens.end());
  std::vector<std::int64_t> positions(3 * tokens.size());
  for (std::size_t i = 0; i < positions.size(); ++i) {
    positions[i] = past_ + static_cast<std::int64_t>(i % tokens.size());
  }
  write("input_ids", ids);
  write("position_ids", positions);
  write<std::int32_t>("cumulative_sequence_lengths", {0, size});
  write<std::int32_t>("past_sequence_lengths", {past});
  // The longest query, the longest cache, and a lower bound of the latter.
  write<std::int32_t>("attention_metadata", {size, past + size, past + size});
  // The last token's state is the final state: it needs no capture.
  write<std::int32_t>("state_update_capture_count", {capture ? size - 1 : 0});
  write<std::int32_t>("state_update_active", {capture ? 1 : 0});
}

Ort::IoBinding Model::bind(std::int64_t tokens, bool capture) {
  Ort::IoBinding bound(graph_.session());
  for (const auto& [key, argument] : arguments_) {
    const Tensor& tensor = argument.tensor;
    const auto value = key == "input_ids"      ? tensor.value({tokens})
                       : key == "position_ids" ? tensor.value({3, tokens})
                                               : tensor.value();
    bound.BindInput(argument.name.c_str(), value);
  }
  for (const Cache& cache : caches_) {
    bound.BindInput(cache.past.c_str(), cache.tensor.value());
    bound.BindOutput(cache.present.c_str(), cache.tensor.value());
  }
  for (const auto* states : {&conv_states_, &recurrent_states_}) {
    for (const LayerState& state : *states) {
      bound.BindInput(state.past.c_str(), state.banks[bank_].value());
      bound.BindOutput(state.present.c_str(), state.banks[1 - bank_].value());
      if (capture) bound.BindOutput(state.update_name.c_str(), state.update->value());
    }
  }
  bound.BindOutput(package_.output("logits").c_str(),
                   logits_->value({tokens, package_.vocabulary}));
  if (taps_) {
    bound.BindOutput(package_.output("aux_hidden_states").c_str(),
                     taps_->value({tokens, taps_->shape()[1]}));
  }
  return bound;
}

Ort::IoBinding& Model::binding(std::int64_t tokens, bool capture) {
  const std::tuple key{tokens, capture, bank_};
  auto found = bindings_.find(key);
  if (found == bindings_.end()) found = bindings_.emplace(key, bind(tokens, capture)).first;
  return found->second;
}

void Model::run(std::span<const std::int32_t> tokens, bool capture) {
  const auto size = static_cast<std::int64_t>(tokens.size());
  if (unsettled_ > 0 || size == 0 || size > kLongestCall || past_ + size > max_tokens_) {
    throw std::logic_error(
        fmt::format("a call of {} tokens after {} of {}", size, past_, max_tokens_));
  }
  write_arguments(tokens, capture);
  graph_.session().Run(Ort::RunOptions{nullptr}, binding(size, capture));
}

std::vector<std::span<const float>> Model::logits(std::int64_t first, std::int64_t end) {
  const std::int64_t width = package_.vocabulary, size = (end - first) * width;
  const float* data = nullptr;
  switch (logits_->type()) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: data = logits_->data<float>() + first * width; break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      widen(logits_->data<Float16>() + first * width, size, widened_logits_);
      data = widened_logits_.data();
      break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      widen(logits_->data<BFloat16>() + first * width, size, widened_logits_);
      data = widened_logits_.data();
      break;
    default: throw std::runtime_error("the logits are not float32, float16 or bfloat16");
  }
  std::vector<std::span<const float>> rows;
  for (std::int64_t row = 0; row < end - first; ++row) {
    rows.emplace_back(data + row * width, static_cast<std::size_t>(width));
  }
  return rows;
}

std::span<const float> Model::advance(std::span<const std::int32_t> tokens) {
  run(tokens, false);
  const auto size = static_cast<std::int64_t>(tokens.size());
  keep_taps(size);
  past_ += size;
  bank_ = 1 - bank_;
  return logits(size - 1, size).front();
}

std::vector<std::span<const float>> Model::verify(std::span<const std::int32_t> tokens) {
  run(tokens, true);
  unsettled_ = static_cast<std::int64_t>(tokens.size());
  return logits(0, unsettled_);
}

void Model::keep(std::int64_t tokens) {
  if (tokens < unsettled_) replay(tokens);
  keep_taps(tokens);
  past_ += tokens;
  bank_ = 1 - bank_;
  unsettled_ = 0;
}

void Model::keep_taps(std::int64_t tokens) {
  if (!taps_) return;
  const float* rows = taps_->data<float>();
  kept_taps_.insert(kept_taps_.end(), rows, rows + tokens * taps_->shape()[1]);
}

void Model::replay(std::int64_t tokens) {
  const auto count = static_cast<std::int32_t>(tokens);
  for (const LayerState& layer : conv_states_) replay_convolution(layer, bank_, count);
  for (const LayerState& layer : recurrent_states_) {
    replay_recurrence(layer, bank_, count, package_.key_heads, package_.capture_capacity);
  }
}

}  // namespace deltaworks::cli

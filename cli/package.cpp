#include "package.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace deltaworks::cli {

namespace {

using nlohmann::json;

[[noreturn]] void fail(const std::string& message) { throw std::runtime_error(message); }

// The node at a path such as "model.decoder.filename", or null.
const json* find(const json& config, const std::string& path) {
  const json* node = &config;
  for (std::size_t from = 0; from <= path.size();) {
    const std::size_t to = std::min(path.find('.', from), path.size());
    const std::string key = path.substr(from, to - from);
    if (!node->is_object() || !node->contains(key)) return nullptr;
    node = &node->at(key);
    from = to + 1;
  }
  return node;
}

template <class T>
T get(const json& config, const std::string& path) {
  const json* node = find(config, path);
  if (node == nullptr) fail(path + " is missing");
  try {
    return node->get<T>();
  } catch (const json::exception&) {
    fail(fmt::format("{} is {}, which is of the wrong type", path, node->dump()));
  }
}

template <class T>
T get_or(const json& config, const std::string& path, const T& otherwise) {
  return find(config, path) == nullptr ? otherwise : get<T>(config, path);
}

std::map<std::string, std::string> names(const json& config, const std::string& path) {
  std::map<std::string, std::string> found;
  for (const auto& [key, value] : get<json::object_t>(config, path)) {
    if (value.is_string()) found[key] = value.get<std::string>();
  }
  return found;
}

std::vector<std::int32_t> one_or_more(const json& config, const std::string& path) {
  if (get<json>(config, path).is_array()) return get<std::vector<std::int32_t>>(config, path);
  return {get<std::int32_t>(config, path)};
}

const char* const kPagedExport =
    "generate needs a paged export (model builder option use_paged_attention=true)";

void read_state_groups(const json& config, Package& package) {
  const std::string path = "model.decoder.state_groups";
  std::vector<std::int64_t> capacities;
  for (const json& group : get_or<std::vector<json>>(config, path, {})) {
    const auto kind = get<std::string>(group, "kind");
    const auto layers = get<std::vector<int>>(group, "layer_ids");
    if (kind == "paged_kv") {
      package.kv_layers = layers;
      continue;
    }
    if (kind == "fixed_conv") {
      package.conv_layers = layers;
    } else if (kind == "fixed_recurrent") {
      package.recurrent_layers = layers;
      package.key_heads = get_or<std::int64_t>(group, "state_update.key_head_count", 0);
    } else {
      fail(fmt::format("{} has kind \"{}\", expected paged_kv, fixed_conv or fixed_recurrent", path,
                       kind));
    }
    capacities.push_back(get_or<std::int64_t>(group, "state_update.capacity", 0));
  }
  if (package.kv_layers.empty()) fail(path + " names no paged_kv layers; " + kPagedExport);
  const bool capture = package.inputs.contains("state_update_capture_count");
  if (capture && !capacities.empty()) {
    package.capture_capacity = *std::min_element(capacities.begin(), capacities.end());
  }
  if (package.capture_capacity > 0 && package.key_heads < 1 && !package.recurrent_layers.empty()) {
    fail(path + " states no key_head_count for its fixed_recurrent state updates");
  }
}

std::optional<DrafterPackage> read_drafter(const json& config, const Package& package) {
  const std::string path = "model.dflash2";
  if (find(config, path) == nullptr) return std::nullopt;
  DrafterPackage drafter;
  drafter.model_file = get<std::string>(config, path + ".filename");
  drafter.custom_ops_library =
      get_or<std::string>(config, path + ".session_options.custom_ops_library", std::string());
  drafter.layers = get<int>(config, path + ".num_hidden_layers");
  drafter.block = get<std::int64_t>(config, path + ".block_size");
  drafter.candidates = get<std::int64_t>(config, path + ".selector_top_k");
  drafter.mask_token = get<std::int32_t>(config, path + ".mask_token_id");
  drafter.inputs = names(config, path + ".inputs");
  drafter.outputs = names(config, path + ".outputs");
  constexpr std::int64_t kLargestBlock = 64;  // published drafters have 8 and 16
  const auto check = [&](const char* key, std::int64_t value, std::int64_t low, std::int64_t high) {
    if (value >= low && value <= high) return;
    fail(fmt::format("{}.{} is {}, expected {} to {}", path, key, value, low, high));
  };
  check("num_hidden_layers", drafter.layers, 1, package.context_length);
  check("block_size", drafter.block, 2, kLargestBlock);
  check("selector_top_k", drafter.candidates, 1, package.vocabulary);
  check("mask_token_id", drafter.mask_token, 0, package.vocabulary - 1);
  return drafter;
}

const std::string& name_of(const std::map<std::string, std::string>& all, const std::string& path,
                           const std::string& key) {
  const auto found = all.find(key);
  if (found == all.end()) fail(fmt::format("model.{}.{} is missing", path, key));
  return found->second;
}

}  // namespace

const std::string& DrafterPackage::input(const std::string& key) const {
  return name_of(inputs, "dflash2.inputs", key);
}
const std::string& DrafterPackage::output(const std::string& key) const {
  return name_of(outputs, "dflash2.outputs", key);
}
const std::string& Package::input(const std::string& key) const {
  return name_of(inputs, "decoder.inputs", key);
}
const std::string& Package::output(const std::string& key) const {
  return name_of(outputs, "decoder.outputs", key);
}

std::string layer_name(const std::string& pattern, int layer) {
  const std::size_t at = pattern.find("%d");
  if (at == std::string::npos) fail("the name \"" + pattern + "\" has no %d for the layer");
  return std::string(pattern).replace(at, 2, std::to_string(layer));
}

Package parse_package(const json& config) {
  Package package;
  package.model_file = get<std::string>(config, "model.decoder.filename");
  package.custom_ops_library = get_or<std::string>(
      config, "model.decoder.session_options.custom_ops_library", std::string());
  package.context_length = get<std::int64_t>(config, "model.context_length");
  package.vocabulary = get<std::int64_t>(config, "model.vocab_size");
  // GenAI's own default.
  package.block_size = get_or<std::int64_t>(config, "engine.dynamic_batching.block_size", 256);
  package.end_tokens = one_or_more(config, "model.eos_token_id");
  package.first_token =
      get_or<std::int32_t>(config, "model.bos_token_id", package.end_tokens.front());
  package.inputs = names(config, "model.decoder.inputs");
  package.outputs = names(config, "model.decoder.outputs");
  read_state_groups(config, package);

  // A published model has a tokenizer and tens of thousands of tokens.
  if (package.vocabulary < 257 || package.vocabulary > 512) {
    fail(
        fmt::format("model.vocab_size is {}: generate runs byte-level models only, whose tokens "
                    "0 to 255 are the bytes; use ONNX Runtime GenAI for this one",
                    package.vocabulary));
  }
  for (const std::int32_t token : package.end_tokens) {
    if (token < 256 || token >= package.vocabulary) {
      fail(fmt::format("model.eos_token_id is {}, expected 256 to {}", token,
                       package.vocabulary - 1));
    }
  }
  if (package.first_token < 0 || package.first_token >= package.vocabulary) {
    fail(fmt::format("model.bos_token_id is {}, expected 0 to {}", package.first_token,
                     package.vocabulary - 1));
  }
  if (package.block_size < 1) fail("engine.dynamic_batching.block_size is not positive");
  package.drafter = read_drafter(config, package);
  return package;
}

Package read_package(const std::filesystem::path& folder) {
  const auto path = folder / "genai_config.json";
  std::ifstream file(path);
  if (!file)
    fail(fmt::format("cannot read {}: is {} a model package?", path.string(), folder.string()));
  try {
    Package package = parse_package(json::parse(file));
    package.folder = folder;
    return package;
  } catch (const std::exception& error) {
    fail(fmt::format("{}: {}", path.string(), error.what()));
  }
}

}  // namespace deltaworks::cli

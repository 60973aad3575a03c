// What a model package says about itself: genai_config.json of a paged hybrid export.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace deltaworks::cli {

// A DFlash2 block drafter beside the model.
struct DrafterPackage {
  std::string model_file;          // relative to the folder
  std::string custom_ops_library;  // empty: none is named
  int layers = 0;
  std::int64_t block = 0;       // rows of a pass: the newest token and the slots for drafts
  std::int64_t candidates = 0;  // of each slot
  std::int32_t mask_token = 0;  // stands in the slots
  // Names in the graph by their keys in the configuration, as in Package.
  std::map<std::string, std::string> inputs, outputs;

  const std::string& input(const std::string& key) const;
  const std::string& output(const std::string& key) const;
};

struct Package {
  std::filesystem::path folder;
  std::string model_file;          // relative to the folder
  std::string custom_ops_library;  // empty: none is named
  std::int64_t context_length = 0;
  std::int64_t vocabulary = 0;
  std::int64_t block_size = 0;  // tokens per block of the key and value cache
  std::int32_t first_token = 0;
  std::vector<std::int32_t> end_tokens;
  std::vector<int> kv_layers, conv_layers, recurrent_layers;
  std::int64_t capture_capacity = 0;  // drafts that one call can verify; 0: none
  std::int64_t key_heads = 0;         // of the capsules; with a capture capacity
  // Names in the graph by their keys in the configuration; "%d" stands for the layer.
  std::map<std::string, std::string> inputs, outputs;
  std::optional<DrafterPackage> drafter;

  const std::string& input(const std::string& key) const;
  const std::string& output(const std::string& key) const;
};

// "past.%d.conv", 3 -> "past.3.conv"
std::string layer_name(const std::string& pattern, int layer);

// Throws std::runtime_error naming what is missing or not supported.
Package read_package(const std::filesystem::path& folder);
Package parse_package(const nlohmann::json& config);

}  // namespace deltaworks::cli

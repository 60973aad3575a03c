#include "package.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace deltaworks::cli {
namespace {

using nlohmann::json;

json valid() {
  return json::parse(R"({
    "model": {
      "type": "qwen3_5_text", "bos_token_id": 256, "eos_token_id": 256,
      "context_length": 8192, "vocab_size": 264,
      "decoder": {
        "filename": "model.onnx",
        "session_options": {"custom_ops_library": "libours.so"},
        "inputs": {"input_ids": "ids", "past_conv_names": "past.%d.conv",
                   "state_update_capture_count": "count"},
        "outputs": {"logits": "logits"},
        "state_groups": [
          {"kind": "paged_kv", "layer_ids": [3]},
          {"kind": "fixed_conv", "layer_ids": [0, 1, 2], "state_update": {"capacity": 7}},
          {"kind": "fixed_recurrent", "layer_ids": [0, 1, 2],
           "state_update": {"capacity": 7, "key_head_count": 2}}]}},
    "engine": {"dynamic_batching": {"block_size": 32}}})");
}

std::string refusal(const json& config) {
  try {
    parse_package(config);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Package, ReadsWhatTheConfigurationStates) {
  const Package package = parse_package(valid());
  EXPECT_EQ(package.model_file, "model.onnx");
  EXPECT_EQ(package.custom_ops_library, "libours.so");
  EXPECT_EQ(package.context_length, 8192);
  EXPECT_EQ(package.vocabulary, 264);
  EXPECT_EQ(package.block_size, 32);
  EXPECT_EQ(package.first_token, 256);
  EXPECT_EQ(package.end_tokens, std::vector<std::int32_t>{256});
  EXPECT_EQ(package.kv_layers, std::vector<int>{3});
  EXPECT_EQ(package.conv_layers, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(package.recurrent_layers, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(package.capture_capacity, 7);
  EXPECT_EQ(package.key_heads, 2);
  EXPECT_EQ(package.input("input_ids"), "ids");
  EXPECT_THROW(package.input("block_table"), std::runtime_error);
  EXPECT_EQ(layer_name(package.input("past_conv_names"), 12), "past.12.conv");
}

TEST(Package, OptionalPartsHaveDefaults) {
  json config = valid();
  config.erase("engine");
  config["model"].erase("bos_token_id");
  config["model"]["eos_token_id"] = {257, 256};
  config["model"]["decoder"]["inputs"].erase("state_update_capture_count");
  const Package package = parse_package(config);
  EXPECT_EQ(package.block_size, 256);
  EXPECT_EQ(package.end_tokens, (std::vector<std::int32_t>{257, 256}));
  EXPECT_EQ(package.first_token, 257);
  EXPECT_EQ(package.capture_capacity, 0);  // without the input nothing captures
}

json with_drafter() {
  json config = valid();
  config["model"]["dflash2"] = json::parse(R"({
    "filename": "dflash2.onnx", "session_options": {"custom_ops_library": "libours.so"},
    "num_hidden_layers": 2, "block_size": 8, "selector_top_k": 16, "mask_token_id": 257,
    "inputs": {"input_ids": "ids"}, "outputs": {"scores": "draft_scores"}})");
  return config;
}

TEST(Package, ReadsItsDrafter) {
  EXPECT_FALSE(parse_package(valid()).drafter);
  const auto drafter = *parse_package(with_drafter()).drafter;
  EXPECT_EQ(drafter.model_file, "dflash2.onnx");
  EXPECT_EQ(drafter.custom_ops_library, "libours.so");
  EXPECT_EQ(drafter.layers, 2);
  EXPECT_EQ(drafter.block, 8);
  EXPECT_EQ(drafter.candidates, 16);
  EXPECT_EQ(drafter.mask_token, 257);
  EXPECT_EQ(drafter.input("input_ids"), "ids");
  EXPECT_EQ(drafter.output("scores"), "draft_scores");
  EXPECT_THROW(drafter.output("candidate_ids"), std::runtime_error);
}

TEST(Package, DrafterRefusalsNameTheKey) {
  const auto with = [](const char* key, const json& value) {
    json config = with_drafter();
    config["model"]["dflash2"][key] = value;
    return refusal(config);
  };
  EXPECT_EQ(with("block_size", 1), "model.dflash2.block_size is 1, expected 2 to 64");
  EXPECT_EQ(with("selector_top_k", 0), "model.dflash2.selector_top_k is 0, expected 1 to 264");
  EXPECT_EQ(with("mask_token_id", 264), "model.dflash2.mask_token_id is 264, expected 0 to 263");
  json missing = with_drafter();
  missing["model"]["dflash2"].erase("filename");
  EXPECT_EQ(refusal(missing), "model.dflash2.filename is missing");
}

TEST(Package, RefusalsNameTheKey) {
  const auto with = [](const char* pointer, const json& value) {
    json config = valid();
    config[json::json_pointer(pointer)] = value;
    return refusal(config);
  };
  json missing = valid();
  missing["model"]["decoder"].erase("filename");
  EXPECT_EQ(refusal(missing), "model.decoder.filename is missing");
  EXPECT_EQ(with("/model/context_length", "long"),
            "model.context_length is \"long\", which is of the wrong type");
  EXPECT_NE(with("/model/vocab_size", 248320).find("byte-level"), std::string::npos);
  EXPECT_EQ(with("/model/eos_token_id", 10), "model.eos_token_id is 10, expected 256 to 263");
  EXPECT_EQ(with("/model/bos_token_id", 264), "model.bos_token_id is 264, expected 0 to 263");
  EXPECT_NE(with("/model/decoder/state_groups", json::array()).find("use_paged_attention"),
            std::string::npos);
  EXPECT_NE(with("/model/decoder/state_groups/1/kind", "snapshot").find("\"snapshot\""),
            std::string::npos);
  EXPECT_NE(with("/engine/dynamic_batching/block_size", 0).find("block_size"), std::string::npos);
  EXPECT_EQ(refusal(json::array()), "model.decoder.filename is missing");
}

TEST(Package, AFolderWithoutConfigurationIsNamed) {
  try {
    read_package("/nonexistent");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("/nonexistent/genai_config.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace deltaworks::cli

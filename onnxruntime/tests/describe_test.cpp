// What operators say about nodes outside any session: geometry, engine and state, or why not.
#include <gtest/gtest.h>

#include <map>

#include "operator.hpp"

namespace deltaworks::ort {
namespace {

using Attributes = std::map<std::string, Attribute>;

constexpr auto kFloat = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
constexpr auto kHalf = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
constexpr auto kDouble = ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE;
constexpr auto kInt = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
constexpr auto kOpen = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
constexpr std::int64_t kUnknown = contract::kUnknown;

Node::Value value(const char* name, ONNXTensorElementDataType type,
                  std::initializer_list<std::int64_t> dims) {
  Node::Value made{.name = name, .type = type};
  made.tensor.rank = static_cast<int>(dims.size());
  std::copy(dims.begin(), dims.end(), made.tensor.dims.begin());
  return made;
}

Node node(const char* type, std::vector<Node::Value> inputs, Attributes attributes = {}) {
  Node made{.domain = "com.microsoft", .type = type, .inputs = std::move(inputs)};
  made.outputs = {value("output", kOpen, {})};
  made.find_attribute = [attributes](const char* name) -> std::optional<Attribute> {
    const auto found = attributes.find(name);
    return found == attributes.end() ? std::nullopt : std::optional(found->second);
  };
  return made;
}

Node convolution(ONNXTensorElementDataType type, std::int64_t tokens, Attributes attributes = {}) {
  return node("VarlenCausalConvWithState",
              {value("x", type, {tokens, 6}),
               value("w", type, {6, 1, 4}),
               value("o", kInt, {kUnknown}),
               {},
               value("s", type, {kUnknown, 6, 3})},
              std::move(attributes));
}

std::int64_t extent(const Plan& plan, std::string_view name) {
  for (const Extent& each : plan.geometry) {
    if (each.name == name) return each.value;
  }
  ADD_FAILURE() << "no extent " << name;
  return 0;
}

std::string reason(const Node& node) {
  const contract::Outcome<Plan> outcome = describe(node);
  const auto* reason = std::get_if<std::string>(&outcome);
  return reason ? *reason : "claimed";
}

TEST(Describe, NamesGeometryEngineAndState) {
  const auto plan = std::get<Plan>(describe(convolution(kHalf, 9)));
  EXPECT_EQ(extent(plan, "tokens"), 9);
  EXPECT_EQ(extent(plan, "channels"), 6);
  EXPECT_EQ(extent(plan, "sequences"), kUnknown);
  EXPECT_STREQ(plan.engine, "direct");
  EXPECT_EQ(plan.state_bytes, 6 * 3 * 2);
  EXPECT_STREQ(plan.state_of, "sequence");
}

TEST(Describe, TheDensePair) {
  Node attention =
      node("LinearAttention",
           {value("q", kHalf, {1, kUnknown, 128}), value("k", kHalf, {1, kUnknown, 128}),
            value("v", kHalf, {1, kUnknown, 256}), value("s", kFloat, {1, 4, 64, 64}),
            value("d", kHalf, {1, kUnknown, 4}), value("b", kHalf, {1, kUnknown, 4})},
           {{"q_num_heads", std::int64_t{2}}, {"kv_num_heads", std::int64_t{4}}});
  const auto plan = std::get<Plan>(describe(attention));
  EXPECT_EQ(extent(plan, "key_heads"), 2);
  EXPECT_EQ(extent(plan, "length"), kUnknown);
  EXPECT_STREQ(plan.engine, "recurrent");
  EXPECT_EQ(plan.state_bytes, 4 * 64 * 64 * 4);
  attention.inputs.resize(4);
  EXPECT_EQ(reason(attention),
            "LinearAttention: decay is missing, expected it: update_rule is gated_delta");
  Node conv = node("CausalConvWithState",
                   {value("x", kFloat, {1, 6, kUnknown}), value("w", kFloat, {6, 1, 4})});
  EXPECT_EQ(std::get<Plan>(describe(conv)).state_bytes, 6 * 3 * 4);
  conv = node("CausalConvWithState",
              {value("x", kFloat, {1, 6, kUnknown}), value("w", kFloat, {6, 1, 4})},
              {{"state_window", std::int64_t{2}}});
  EXPECT_EQ(reason(conv),
            "CausalConvWithState: state_window is 2, expected 0: other values are not available on "
            "the CPU");
}

TEST(Describe, WorksBeforeShapesAndTypesAreKnown) {
  Node open = convolution(kOpen, kUnknown);
  for (Node::Value& input : open.inputs) input.tensor.rank = 0;
  const auto plan = std::get<Plan>(describe(open));
  EXPECT_EQ(extent(plan, "channels"), kUnknown);
  EXPECT_EQ(plan.state_bytes, kUnknown);
}

TEST(Describe, SaysWhatOfANodeDoesNotFit) {
  EXPECT_EQ(reason(convolution(kDouble, 9)),
            "VarlenCausalConvWithState: input 0 (x) has type float64, expected float32 or float16 "
            "or bfloat16");
  EXPECT_EQ(reason(convolution(kFloat, 9, {{"activation", "relu"}})),
            "VarlenCausalConvWithState: activation is \"relu\", expected none, silu or swish");
  EXPECT_EQ(reason(convolution(kFloat, 9, {{"dilation", 2.0f}})),
            "VarlenCausalConvWithState: attribute dilation is a float, expected an integer");
  EXPECT_EQ(
      reason(convolution(kFloat, 9, {{"dilation", std::monostate()}})),
      "VarlenCausalConvWithState: attribute dilation is of another kind, expected an integer");
  Node mixed = convolution(kFloat, 9);
  mixed.inputs[1].type = kHalf;
  EXPECT_EQ(reason(mixed),
            "VarlenCausalConvWithState: inputs have types that do not go together: x float32, w "
            "float16, o int32, s float32");
  Node stateless = convolution(kFloat, 9);
  stateless.inputs.resize(3);
  EXPECT_EQ(reason(stateless), "VarlenCausalConvWithState: input 4 is missing, expected it");
  Node wide = convolution(kFloat, 9);
  wide.inputs[1].tensor.dims[0] = 7;
  EXPECT_EQ(reason(wide),
            "VarlenCausalConvWithState: weight has shape [7, 1, 4], expected [6, 1, 4]");
}

std::size_t prepared_bytes(const Node& node) {
  return std::get<Made>(make(node)).kernel->prepared_bytes();
}

TEST(Make, PreparesConstantWeights) {
  const std::vector<float> weight(6 * 4, 1.5f);
  Node constant = convolution(kFloat, 9);
  EXPECT_EQ(prepared_bytes(constant), 0U);
  constant.inputs[1].data = weight.data();
  EXPECT_EQ(prepared_bytes(constant), 0U) << "data alone does not make a constant";
  constant.inputs[1].is_constant = true;
  EXPECT_EQ(prepared_bytes(constant), weight.size() * sizeof(float));
  constant.inputs[1].data = nullptr;
  EXPECT_EQ(prepared_bytes(constant), 0U);
}

TEST(Describe, ReadsNoConstant) {
  Node constant = convolution(kFloat, 9);
  constant.inputs[1].is_constant = true;
  constant.inputs[1].data = reinterpret_cast<const void*>(1);  // reading there would end the test
  EXPECT_EQ(reason(constant), "claimed");
}

TEST(Describe, SaysHowMuchOfAnExtentIsServed) {
  const auto most = [](const Node& node, std::string_view name) {
    const auto plan = std::get<Plan>(describe(node));
    for (const Extent& extent : plan.geometry) {
      if (extent.name == name) return extent.most;
    }
    return kUnknown;
  };
  EXPECT_EQ(most(convolution(kFloat, 9), "channels"), 0);
  const auto delta = node(
      "GatedDeltaNet", {value("q", kFloat, {9, 2, kUnknown}), value("k", kFloat, {9, 2, kUnknown}),
                        value("v", kFloat, {9, 2, 5}), value("o", kInt, {3}),
                        value("d", kFloat, {9, 2}), value("b", kFloat, {9, 2})});
  EXPECT_EQ(extent(std::get<Plan>(describe(delta)), "key_dim"), kUnknown);
  EXPECT_EQ(most(delta, "key_dim"), 2048);
}

TEST(Describe, SaysWhichSequencesAreChunked) {
  const auto plan = [](std::int64_t key_dim, std::int64_t capacity) {
    Attributes attributes;
    if (capacity > 0) attributes["state_update_capacity"] = capacity;
    const auto none = value("", kOpen, {});
    auto delta =
        node("GatedDeltaNet",
             {value("q", kFloat, {9, 2, key_dim}), value("k", kFloat, {9, 2, key_dim}),
              value("v", kFloat, {9, 2, 5}), value("o", kInt, {3}), value("d", kFloat, {9, 2}),
              value("b", kFloat, {9, 2}), none, none, none, value("c", kInt, {2})},
             attributes);
    if (capacity == 0) delta.inputs.pop_back();
    delta.engine = Engine::kChunked;
    return std::get<Plan>(describe(delta));
  };
  EXPECT_EQ(plan(8, 0).chunked_from, 16);
  EXPECT_FALSE(plan(8, 0).may_capture);
  EXPECT_TRUE(plan(8, 3).may_capture);
  EXPECT_EQ(plan(264, 0).chunked_from, 0);
  EXPECT_EQ(plan(kUnknown, 0).chunked_from, 0);
}

TEST(Describe, KnowsItsOwnOperators) {
  for (const Domain& domain : domains()) {
    for (const Operator& op : domain.operators) EXPECT_TRUE(is_ours(domain.name, op.name));
  }
  EXPECT_FALSE(is_ours("", "Relu"));
  EXPECT_FALSE(is_ours("com.microsoft", "FusedMatMul"));
  EXPECT_FALSE(is_ours("deltaworks", "PagedAttention"));
}

}  // namespace
}  // namespace deltaworks::ort

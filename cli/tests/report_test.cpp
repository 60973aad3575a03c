#include "report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "prompts.hpp"

namespace deltaworks::cli {
namespace {

using nlohmann::json;

TEST(Prompts, LinesAreStringsOrObjects) {
  EXPECT_EQ(parse_prompt_lines("p", "\"one\"\n\n{\"prompt\": \"two\\n\"}\r\n\"\"\n"),
            (std::vector<std::string>{"one", "two\n", ""}));
}

TEST(Prompts, ABadLineIsNamed) {
  for (const std::string text : {"\"one\"\nno json", "\"one\"\n3", "\"one\"\n{\"text\": \"x\"}"}) {
    try {
      parse_prompt_lines("p.jsonl", text);
      ADD_FAILURE() << text;
    } catch (const std::runtime_error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("p.jsonl:2: ")) << error.what();
    }
  }
  EXPECT_THROW(parse_prompt_lines("p.jsonl", "\n"), std::runtime_error);
}

TEST(Prompts, BytesAreTokensBehindTheFirst) {
  EXPECT_EQ(byte_tokens("A\xff", 256), (std::vector<std::int32_t>{256, 65, 255}));
  EXPECT_EQ(byte_tokens("", 256), std::vector<std::int32_t>{256});
}

TEST(Profile, SumsKernelTimesByOperator) {
  const auto event = [](const char* name, const char* type, int us) {
    return json{{"cat", "Node"}, {"name", name}, {"dur", us}, {"args", {{"op_name", type}}}};
  };
  const auto times = operator_times(json{{{"cat", "Session"}, {"name", "model_run"}, {"dur", 99}},
                                         event("a_kernel_time", "MatMul", 10),
                                         event("b_fence_before", "MatMul", 50),
                                         event("c_kernel_time", "GatedDeltaNet", 25),
                                         event("d_kernel_time", "MatMul", 5)});
  ASSERT_EQ(times.size(), 2u);
  EXPECT_EQ(times[0].op_type, "GatedDeltaNet");
  EXPECT_EQ(times[1].calls, 2);
  EXPECT_DOUBLE_EQ(times[1].seconds, 15e-6);
}

TEST(Report, FindsTheFirstDifference) {
  EXPECT_EQ(first_difference("abc", "abd"), 2u);
  EXPECT_EQ(first_difference("abc", "ab"), 2u);
  EXPECT_EQ(first_difference("", ""), 0u);
}

TEST(Report, JsonKeepsEveryByte) {
  Outcome outcome;
  outcome.drafted.text = "a\xff";
  const json result = outcome_json(outcome, false);
  EXPECT_EQ(result.at("tokens"), (json{97, 255}));
  EXPECT_EQ(result.at("generated_tokens"), 2);
  EXPECT_FALSE(result.contains("verify"));
}

}  // namespace
}  // namespace deltaworks::cli

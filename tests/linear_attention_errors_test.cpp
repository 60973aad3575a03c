// Bad calls of linear_attention: each names operator, argument, what came and what was expected, and
// writes nothing.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "contract/linear_attention.hpp"
#include "support/compare.hpp"
#include "support/linear_attention_problem.hpp"
#include "support/refusal.hpp"

namespace deltaworks {
namespace {

using testing::Buffer;
using testing::LinearAttentionProblem;
using testing::message_of;
using testing::Random;
using testing::same_bits;

using Args = LinearAttentionArgs<float>;

struct BadCall {
  const char* name;
  std::function<void(Args&)> spoil;
  const char* message;
};

// A good call of 2 sequences of 5 tokens, 2 query, 4 state and 2 key heads, 8 x 6.
class Call {
 public:
  Call() {
    args.output = output.view<3>({2, 5, 24});
    args.present_state = state.view<4>({2, 4, 8, 6});
  }

  Random random{1};
  LinearAttentionProblem<float> problem{random,
                                        {.sequences = 2,
                                         .length = 5,
                                         .q_num_heads = 2,
                                         .kv_num_heads = 4,
                                         .key_heads = 2,
                                         .key_dim = 8,
                                         .value_dim = 6}};
  Buffer<float> output{2 * 5 * 24}, state{2 * 4 * 48};
  Args args = problem.args();
};

float scratch[4096];

View<const float, 3> rows(std::int64_t sequences, std::int64_t length, std::int64_t width) {
  return {scratch, {sequences, length, width}};
}

const BadCall kBadCalls[] = {
    {"NoQueryHeads", [](Args& a) { a.q_num_heads = 0; }, "q_num_heads is 0, expected 1 or more"},
    {"NoStateHeads", [](Args& a) { a.kv_num_heads = -1; },
     "kv_num_heads is -1, expected 1 or more"},
    {"OddHeads", [](Args& a) { a.q_num_heads = 3; },
     "q_num_heads is 3, expected a multiple or a divisor of kv_num_heads = 4"},
    {"NoSuchRule", [](Args& a) { a.update_rule = static_cast<UpdateRule>(9); },
     "update_rule is 9, expected 0 to 3"},
    {"Scale", [](Args& a) { a.scale = std::numeric_limits<float>::quiet_NaN(); },
     "scale is NaN, expected a number"},
    {"QueryRows", [](Args& a) { a.query = rows(2, 5, 15); },
     "query has rows of 15, expected a positive multiple of q_num_heads = 2"},
    {"QueryEmptyRows", [](Args& a) { a.query = rows(2, 5, 0); },
     "query has rows of 0, expected a positive multiple of q_num_heads = 2"},
    {"KeyLength", [](Args& a) { a.key = rows(2, 4, 16); },
     "key has shape [2, 4, 16], expected [2, 5, 16]"},
    {"KeyRows", [](Args& a) { a.key = rows(2, 5, 12); },
     "key has rows of 12, expected a positive multiple of key_dim = 8"},
    {"KeyHeads", [](Args& a) { a.key = rows(2, 5, 24); },
     "key has 3 heads of 8, expected a divisor of kv_num_heads = 4"},
    {"ValueSequences", [](Args& a) { a.value = rows(1, 5, 24); },
     "value has shape [1, 5, 24], expected [2, 5, 24]"},
    {"ValueRows", [](Args& a) { a.value = rows(2, 5, 22); },
     "value has rows of 22, expected a positive multiple of kv_num_heads = 4"},
    {"Negative", [](Args& a) { a.query = rows(-1, 5, 16); },
     "query has extent -1 in dimension 0, expected 0 or more"},
    {"PastState",
     [](Args& a) {
       a.past_state = View<const float, 4>{scratch, {2, 4, 6, 8}};
     },
     "past_state has shape [2, 4, 6, 8], expected [2, 4, 8, 6]"},
    {"PresentState",
     [](Args& a) {
       a.present_state = {scratch, {1, 4, 8, 6}};
     },
     "present_state has shape [1, 4, 8, 6], expected [2, 4, 8, 6]"},
    {"Output",
     [](Args& a) {
       a.output = {scratch, {2, 5, 12}};
     },
     "output has shape [2, 5, 12], expected [2, 5, 24]"},
    {"NoDecay", [](Args& a) { a.decay.reset(); },
     "decay is missing, expected it: update_rule is gated_delta"},
    {"NoDecayGated",
     [](Args& a) {
       a.decay.reset();
       a.update_rule = UpdateRule::kGated;
     },
     "decay is missing, expected it: update_rule is gated"},
    {"NoBeta", [](Args& a) { a.beta.reset(); },
     "beta is missing, expected it: update_rule is gated_delta"},
    {"NoBetaDelta",
     [](Args& a) {
       a.beta.reset();
       a.update_rule = UpdateRule::kDelta;
     },
     "beta is missing, expected it: update_rule is delta"},
    {"DecayRows", [](Args& a) { a.decay = rows(2, 5, 8); },
     "decay has rows of 8, expected kv_num_heads = 4, or 32 for one per key"},
    {"UnreadDecayRows",
     [](Args& a) {
       a.decay = rows(2, 5, 8);
       a.update_rule = UpdateRule::kDelta;
     },
     "decay has rows of 8, expected kv_num_heads = 4, or 32 for one per key"},
    {"BetaRows", [](Args& a) { a.beta = rows(2, 5, 2); },
     "beta has rows of 2, expected kv_num_heads = 4, or 1"},
    {"BetaLength", [](Args& a) { a.beta = rows(2, 1, 4); },
     "beta has shape [2, 1, 4], expected [2, 5, 4]"},
    {"NoMemory",
     [](Args& a) {
       a.value = {nullptr, {2, 5, 24}};
     },
     "value has no memory for 2 x 120 elements"},
    {"Pitch",
     [](Args& a) {
       a.query = {scratch, {2, 5, 16}, 79};
     },
     "query has row stride 79, expected at least the row size 80"},
    {"Huge",
     [](Args& a) {
       const std::int64_t huge = std::int64_t{1} << 59;
       a.value = {nullptr, {2, 5, 4 * huge}};
       a.past_state = View<const float, 4>{nullptr, {2, 4, 8, huge}};
       a.present_state = {nullptr, {2, 4, 8, huge}};
       a.output = {nullptr, {2, 5, 4 * huge}};
     },
     "expected less than 2^60 elements"},
    {"OutputOverInput",
     [](Args& a) {
       a.value = {a.output.data(), {2, 5, 24}};
     },
     "output overlaps value, expected separate memory"},
    {"OutputOverState",
     [](Args& a) {
       a.output = {a.present_state.data(), {2, 5, 24}};
     },
     "expected separate memory"},
    {"StateShifted",
     [](Args& a) {
       a.past_state = View<const float, 4>{a.present_state.data() + 1, {2, 4, 8, 6}};
     },
     "present_state overlaps past_state, expected separate memory"},
};

class LinearAttentionErrors : public ::testing::TestWithParam<BadCall> {};

TEST_P(LinearAttentionErrors, AreNamedAndWriteNothing) {
  Call call;
  const auto output = call.output.values(), state = call.state.values();
  GetParam().spoil(call.args);
  const std::string text = message_of([&] { linear_attention(Cpu{}, call.args); });
  EXPECT_EQ(text.rfind("linear_attention: ", 0), 0u) << text;
  EXPECT_NE(text.find(GetParam().message), std::string::npos) << text;
  EXPECT_TRUE(same_bits(call.output.values(), output));
  EXPECT_TRUE(same_bits(call.state.values(), state));
}

INSTANTIATE_TEST_SUITE_P(BadCalls, LinearAttentionErrors, ::testing::ValuesIn(kBadCalls),
                         [](const auto& bad) { return bad.param.name; });

TEST(LinearAttentionErrors, TheGoodCallIsGood) {
  Call call;
  EXPECT_NO_THROW(linear_attention(Cpu{}, call.args));
}

// A graph may leave dimensions open: the contract answers before they are known.
TEST(LinearAttentionContract, UnknownDimensionsFitAndKnownOnesAreBound) {
  constexpr std::int64_t u = contract::kUnknown;
  contract::LinearAttentionOperands operands{
      .query = {DType::kFloat16, 3, {u, u, 2 * 64}},
      .key = {DType::kFloat16, 3, {u, u, u}},
      .value = {DType::kFloat16, 3, {u, u, u}},
      .past_state = contract::Tensor{DType::kFloat32, 4, {u, 4, u, 32}},
      .decay = contract::Tensor{DType::kFloat16, 3, {u, u, 4 * 64}},
      .beta = contract::Tensor{DType::kFloat16, 3, {1, u, u}},
      .q_num_heads = 2,
      .kv_num_heads = 4};
  const auto outcome = contract::linear_attention("LinearAttention", operands);
  ASSERT_TRUE(std::holds_alternative<contract::LinearAttentionGeometry>(outcome))
      << std::get<std::string>(outcome);
  const auto& geometry = std::get<contract::LinearAttentionGeometry>(outcome);
  EXPECT_EQ(geometry.sequences, 1);
  EXPECT_EQ(geometry.length, u);
  EXPECT_EQ(geometry.key_dim, 64);
  EXPECT_EQ(geometry.output_width(), 4 * 32);
  EXPECT_TRUE(geometry.decay_per_key);
  const auto complaint = [&] {
    return std::get<std::string>(contract::linear_attention("LinearAttention", operands));
  };
  operands.past_state->dims[2] = 32;
  EXPECT_EQ(complaint(),
            "LinearAttention: past_state has shape [?, 4, 32, 32], expected [?, 4, 64, 32]");
  operands.past_state->dims[2] = u;
  operands.past_state->dtype = DType::kBFloat16;
  EXPECT_EQ(complaint(),
            "LinearAttention: past_state has type bfloat16, expected float32 or float16");
  operands.past_state->dtype = DType::kFloat16;
  operands.beta->dtype = DType::kFloat32;
  EXPECT_EQ(complaint(), "LinearAttention: beta has type float32, expected float16");
  for (contract::Tensor* tensor :
       {&operands.query, &operands.key, &operands.value, &*operands.decay}) {
    tensor->dtype = DType::kFloat32;
  }
  EXPECT_EQ(complaint(), "LinearAttention: past_state has type float16, expected float32");
}

}  // namespace
// Products of a file's numbers are made only when they have 63 bits, and a state of 2^62 floats is not served.
TEST(LinearAttentionContract, SizesBeyondCountingAreRefusedWhileOthersAreUnknown) {
  constexpr std::int64_t u = contract::kUnknown, heads = std::int64_t{1} << 61;
  for (const std::int64_t sequences : {u, std::int64_t{0}}) {
    contract::LinearAttentionOperands operands{
        .query = {DType::kFloat32, 3, {sequences, u, 2048}},
        .key = {DType::kFloat32, 3, {sequences, u, 2048}},
        .value = {DType::kFloat32, 3, {sequences, u, heads}},
        .decay = contract::Tensor{DType::kFloat32, 3, {sequences, u, heads}},
        .beta = contract::Tensor{DType::kFloat32, 3, {sequences, u, 1}},
        .q_num_heads = 1,
        .kv_num_heads = heads};
    EXPECT_EQ(std::get<std::string>(contract::linear_attention("LinearAttention", operands)),
              "LinearAttention: output has shape [" + std::string(sequences == u ? "?" : "0") +
                  ", ?, 2305843009213693952, 1], expected less than 2^60 elements");
  }
}

}  // namespace deltaworks

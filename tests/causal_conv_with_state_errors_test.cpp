// Bad calls of causal_conv_with_state: each names operator, argument, what came and what was
// expected, and writes nothing.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "contract/causal_conv_with_state.hpp"
#include "support/causal_conv_with_state_case.hpp"
#include "support/refusal.hpp"

namespace deltaworks {
namespace {

using testing::Buffer;
using testing::DenseConvCase;
using testing::message_of;
using testing::same_bits;

using Args = CausalConvWithStateArgs<float>;

struct BadCall {
  const char* name;
  std::function<void(Args&)> spoil;
  const char* message;
};

// A good call of 2 sequences of 5 tokens, 3 channels, width 4.
class Call {
 public:
  Call() {
    c.input.resize(30);
    c.weight.resize(12);
    c.bias.resize(3);
    c.past_state.resize(18);
    args = c.args(output.data(), state.data());
  }

  DenseConvCase<float> c{.sequences = 2, .channels = 3, .length = 5, .width = 4};
  Buffer<float> output{30}, state{18};
  Args args = c.args(nullptr, nullptr);
};

float scratch[4096];

const BadCall kBadCalls[] = {
    {"Activation", [](Args& a) { a.activation = static_cast<ConvActivation>(7); },
     "activation is 7, expected kNone or kSilu"},
    {"WeightChannels",
     [](Args& a) {
       a.weight = {scratch, {4, 1, 4}};
     },
     "weight has shape [4, 1, 4], expected [3, 1, 4]"},
    {"WeightMiddle",
     [](Args& a) {
       a.weight = {scratch, {3, 2, 4}};
     },
     "weight has shape [3, 2, 4], expected [3, 1, 4]"},
    {"NoWidth",
     [](Args& a) {
       a.weight = {scratch, {3, 1, 0}};
     },
     "weight has shape [3, 1, 0], expected a width of at least 1"},
    {"Dilation", [](Args& a) { a.dilation = 0; }, "dilation is 0, expected at least 1"},
    {"HugeDilation", [](Args& a) { a.dilation = std::int64_t{1} << 40; },
     "dilation is 1099511627776 with width 4, expected a history of less than 2^31"},
    {"DilatedState", [](Args& a) { a.dilation = 2; },
     "past_state has shape [2, 3, 3], expected [2, 3, 6]"},
    {"Layout", [](Args& a) { a.channels_last = true; },
     "weight has shape [3, 1, 4], expected [5, 1, 4]"},
    {"Bias",
     [](Args& a) {
       a.bias = View<const float, 1>{scratch, {2}};
     },
     "bias has shape [2], expected [3]"},
    {"PastState",
     [](Args& a) {
       a.past_state = View<const float, 3>{scratch, {1, 3, 3}};
     },
     "past_state has shape [1, 3, 3], expected [2, 3, 3]"},
    {"PresentState",
     [](Args& a) {
       a.present_state = {scratch, {2, 3, 4}};
     },
     "present_state has shape [2, 3, 4], expected [2, 3, 3]"},
    {"Output",
     [](Args& a) {
       a.output = {scratch, {2, 3, 4}};
     },
     "output has shape [2, 3, 4], expected [2, 3, 5]"},
    {"Negative",
     [](Args& a) {
       a.input = {scratch, {-1, 3, 5}};
     },
     "input has extent -1 in dimension 0, expected 0 or more"},
    {"NoMemory",
     [](Args& a) {
       a.input = {nullptr, {2, 3, 5}};
     },
     "input has no memory for 2 x 15 elements"},
    {"Pitch",
     [](Args& a) {
       a.input = {scratch, {2, 3, 5}, 14};
     },
     "input has row stride 14, expected at least the row size 15"},
    {"OutputOverInput",
     [](Args& a) {
       a.input = {a.output.data(), {2, 3, 5}};
     },
     "output overlaps input, expected separate memory"},
    {"StateShifted",
     [](Args& a) {
       a.past_state = View<const float, 3>{a.present_state.data() + 1, {2, 3, 3}};
     },
     "present_state overlaps past_state, expected separate memory"},
};

class CausalConvWithStateErrors : public ::testing::TestWithParam<BadCall> {};

TEST_P(CausalConvWithStateErrors, AreNamedAndWriteNothing) {
  Call call;
  const auto output = call.output.values(), state = call.state.values();
  GetParam().spoil(call.args);
  const std::string text = message_of([&] { causal_conv_with_state(Cpu{}, call.args); });
  EXPECT_EQ(text.rfind("causal_conv_with_state: ", 0), 0u) << text;
  EXPECT_NE(text.find(GetParam().message), std::string::npos) << text;
  EXPECT_TRUE(same_bits(call.output.values(), output));
  EXPECT_TRUE(same_bits(call.state.values(), state));
}

INSTANTIATE_TEST_SUITE_P(BadCalls, CausalConvWithStateErrors, ::testing::ValuesIn(kBadCalls),
                         [](const auto& bad) { return bad.param.name; });

TEST(CausalConvWithStateErrors, TheGoodCallIsGood) {
  Call call;
  EXPECT_NO_THROW(causal_conv_with_state(Cpu{}, call.args));
}

// A graph may leave dimensions open, and spread channels over several last ones.
TEST(CausalConvWithStateContract, UnknownDimensionsFitAndKnownOnesAreBound) {
  constexpr std::int64_t u = contract::kUnknown;
  contract::CausalConvWithStateOperands operands{
      .input = {DType::kFloat16, 4, {u, u, 2, 3}},
      .weight = {DType::kFloat16, 3, {u, 1, 4}},
      .past_state = contract::Tensor{DType::kFloat16, 4, {2, u, u, 3}},
      .channels_last = true};
  const auto outcome = contract::causal_conv_with_state("CausalConvWithState", operands);
  ASSERT_TRUE(std::holds_alternative<contract::CausalConvWithStateGeometry>(outcome))
      << std::get<std::string>(outcome);
  const auto& geometry = std::get<contract::CausalConvWithStateGeometry>(outcome);
  EXPECT_EQ(geometry.sequences, 2);
  EXPECT_EQ(geometry.length, u);
  EXPECT_EQ(geometry.channels, 6);
  EXPECT_EQ(geometry.history, 3);
  const auto complaint = [&] {
    return std::get<std::string>(contract::causal_conv_with_state("CausalConvWithState", operands));
  };
  operands.past_state->dims[2] = 3;
  EXPECT_EQ(complaint(), "CausalConvWithState: past_state has shape [2, ?, 9], expected [2, 3, 6]");
  operands.channels_last = false;
  EXPECT_EQ(complaint(),
            "CausalConvWithState: input has rank 4 (shape [?, ?, 2, 3]), expected rank 3");
  operands.weight.dtype = DType::kFloat32;
  EXPECT_EQ(complaint(), "CausalConvWithState: weight has type float32, expected float16");
}

}  // namespace
}  // namespace deltaworks

// Bad calls: each names operator, argument, what came and what was expected, and writes nothing.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "contract/varlen_causal_conv.hpp"
#include "support/refusal.hpp"
#include "support/varlen_causal_conv_case.hpp"

namespace deltaworks::testing {
namespace {

using Args = VarlenCausalConvArgs<float>;
using Replay = ReplayConvStateArgs<float>;

float scratch[4096];
constexpr std::int32_t kLate[] = {1, 2, 5}, kFalls[] = {0, 6, 5}, kShort[] = {0, 2, 4};
constexpr std::int32_t kSlots[] = {0, 1}, kFar[] = {0, 2}, kTwice[] = {1, 1}, kSwapped[] = {1, 0};

template <std::size_t N>
View<const std::int32_t, 1> ints_of(const std::int32_t (&values)[N]) {
  return {values, {N}};
}

// 5 tokens in 2 sequences of 3 channels, width 4, capture of 2.
struct Call {
  Call()
      : to(problem()),
        args(args_of(c, to.output.data(), to.final_state.data(), to.state_update.data())) {}
  const ConvCase<float>& problem() {
    Random random(1);
    c = random_case<float>(random, 3, 4, 1, {0, 2, 5});
    c.bias = random.normal<float>(3);
    c.capacity = 2;
    c.counts = {2, 2};
    return c;
  }

  ConvCase<float> c;
  ConvBuffers<float> to;
  Args args;
};

struct BadCall {
  const char* name;
  std::function<void(Args&)> spoil;
  const char* message;
};

const BadCall kBadCalls[] = {
    {"InputChannels",
     [](Args& a) {
       a.input = {scratch, {5, 4}};
     },
     "weight has shape [3, 1, 4], expected [4, 1, 4]"},
    {"InputTokens",
     [](Args& a) {
       a.input = {scratch, {6, 3}};
     },
     "output has shape [5, 3], expected [6, 3]"},
    {"NegativeTokens",
     [](Args& a) {
       a.input = {scratch, {-1, 3}};
     },
     "input has extent -1 in dimension 0, expected 0 or more"},
    {"VeryNegativeTokens",
     [](Args& a) {
       a.input = {scratch, {-7, 3}};
     },
     "input has shape [-7, 3], expected no negative extent"},
    {"InputMemory",
     [](Args& a) {
       a.input = {nullptr, {5, 3}};
     },
     "input has no memory for 5 x 3 elements"},
    {"InputPitch",
     [](Args& a) {
       a.input = {scratch, {5, 3}, 2};
     },
     "input has row stride 2, expected at least the row size 3"},
    {"WeightMiddle",
     [](Args& a) {
       a.weight = {scratch, {3, 2, 4}};
     },
     "weight has shape [3, 2, 4], expected [3, 1, 4]"},
    {"WeightWidth",
     [](Args& a) {
       a.weight = {scratch, {3, 1, 0}};
     },
     "weight has shape [3, 1, 0], expected a width of at least 1"},
    {"WeightWiderThanTheState",
     [](Args& a) {
       a.weight = {scratch, {3, 1, 5}};
     },
     "initial_state has shape [2, 3, 3], expected [2, 3, 4]"},
    {"Dilation", [](Args& a) { a.dilation = 0; }, "dilation is 0, expected at least 1"},
    {"DilatedHistory", [](Args& a) { a.dilation = 2; },
     "initial_state has shape [2, 3, 3], expected [2, 3, 6]"},
    {"HugeDilation", [](Args& a) { a.dilation = std::numeric_limits<std::int64_t>::max(); },
     "dilation is 9223372036854775807 with width 4, expected a history of less than 2^31"},
    {"NoOffsets",
     [](Args& a) {
       a.cu_seqlens = {kLate, {0}};
     },
     "cu_seqlens has shape [0], expected one offset more than there are sequences"},
    {"LateStart", [](Args& a) { a.cu_seqlens = ints_of(kLate); },
     "cu_seqlens starts at 1, expected 0"},
    {"FallingOffsets", [](Args& a) { a.cu_seqlens = ints_of(kFalls); },
     "cu_seqlens falls from 6 to 5 at sequence 1, expected offsets that never decrease"},
    {"EarlyEnd", [](Args& a) { a.cu_seqlens = ints_of(kShort); },
     "cu_seqlens ends at 4, expected 5, the number of tokens"},
    {"BiasLength", [](Args& a) { a.bias = View<const float, 1>(scratch, {4}); },
     "bias has shape [4], expected [3]"},
    {"StateSequences",
     [](Args& a) {
       a.initial_state = {scratch, {3, 3, 3}};
     },
     "initial_state has shape [3, 3, 3], expected [2, 3, 3]"},
    {"FinalState",
     [](Args& a) {
       a.final_state = {scratch, {2, 3, 2}};
     },
     "final_state has shape [2, 3, 2], expected [2, 3, 3]"},
    {"OutputMemory",
     [](Args& a) {
       a.output = {nullptr, {5, 3}};
     },
     "output has no memory for 5 x 3 elements"},
    {"SlotsOutAlone", [](Args& a) { a.slots_out = ints_of(kSlots); },
     "slots_out is given, expected none: slots_in is missing"},
    {"SlotsInAlone", [](Args& a) { a.slots_in = ints_of(kSlots); },
     "slots_out is missing, expected it: slots_in is given"},
    {"SlotOutsideThePool",
     [](Args& a) { a.slots_in = ints_of(kFar), a.slots_out = ints_of(kSlots); },
     "slots_in[1] is 2, expected less than 2, the pool's slots"},
    {"SlotWrittenTwice",
     [](Args& a) { a.slots_in = ints_of(kSlots), a.slots_out = ints_of(kTwice); },
     "slots_out[1] is 1, which sequence 0 writes"},
    {"SlotReadByAnotherInPlace",
     [](Args& a) {
       a.initial_state = a.final_state;
       a.slots_in = ints_of(kSlots), a.slots_out = ints_of(kSwapped);
     },
     "slots_in[0] is 0, which sequence 1 writes"},
    {"FreshLength", [](Args& a) { a.fresh = ints_of(kLate); }, "fresh has shape [3], expected [2]"},
    {"CountMissing", [](Args& a) { a.capture_count.reset(); },
     "capture_count is missing, expected it: state_update has room for 2 tokens"},
    {"CountLength", [](Args& a) { a.capture_count = ints_of(kLate); },
     "capture_count has shape [3], expected [2]"},
    {"UpdateMissing", [](Args& a) { a.state_update.reset(); },
     "state_update is missing, expected it: capture_count is given"},
    {"UpdateChannels",
     [](Args& a) {
       a.state_update = View<float, 3>(scratch, {2, 2, 4});
     },
     "state_update has shape [2, 2, 4], expected [2, 2, 3]"},
    {"Activation", [](Args& a) { a.activation = static_cast<ConvActivation>(7); },
     "activation is 7, expected kNone or kSilu"},
    {"OutputOverInput", [](Args& a) { a.input = a.output; },
     "output overlaps input, expected separate memory"},
    {"StatesOverlapPartly",
     [](Args& a) {
       a.initial_state = {a.final_state.data() + 1, {2, 3, 3}};
     },
     "final_state overlaps initial_state, expected separate memory"},
    {"UpdateOverOutput",
     [](Args& a) {
       a.state_update = View<float, 3>(a.output.data(), {2, 2, 3});
     },
     "output overlaps state_update, expected separate memory"},
};

TEST(VarlenCausalConvErrors, NameTheArgumentAndWriteNothing) {
  for (const BadCall& bad : kBadCalls) {
    SCOPED_TRACE(bad.name);
    Call call;
    bad.spoil(call.args);
    const std::string message = message_of([&] { varlen_causal_conv(Cpu{}, call.args); });
    EXPECT_EQ(message.rfind(std::string("varlen_causal_conv: ") + bad.message, 0), 0) << message;
    EXPECT_TRUE(same_bits(call.to.result(), ConvBuffers<float>(call.c).result()));
  }
}

TEST(VarlenCausalConvErrors, TheUnspoiledCallIsGood) {
  Call call;
  EXPECT_NO_THROW(varlen_causal_conv(Cpu{}, call.args));
}

TEST(ReplayConvStateErrors, NameTheArgumentAndWriteNothing) {
  constexpr std::int32_t kNegative[] = {0, -1}, kBeyond[] = {3, 0};
  const std::pair<std::function<void(Replay&)>, const char*> kBad[] = {
      {[&](Replay& a) { a.count = ints_of(kNegative); }, "count[1] is -1, expected 0 to 2"},
      {[&](Replay& a) { a.count = ints_of(kBeyond); }, "count[0] is 3, expected 0 to 2"},
      {[](Replay& a) { a.count = ints_of(kLate); }, "count has shape [3], expected [2]"},
      {[](Replay& a) {
         a.state_update = {scratch, {2, 2, 5}};
       },
       "state_update has shape [2, 2, 5], expected [2, 2, 4]"},
      {[](Replay& a) {
         a.final_state = {scratch, {2, 4, 2}};
       },
       "final_state has shape [2, 4, 2], expected [2, 4, 3]"},
      {[](Replay& a) {
         a.initial_state = {a.final_state.data() + 1, {2, 4, 3}};
       },
       "final_state overlaps initial_state, expected separate memory"},
      {[](Replay& a) {
         a.state_update = {nullptr, {2, 2, 4}};
       },
       "state_update has no memory for 2 x 8 elements"},
  };
  for (const auto& [spoil, expected] : kBad) {
    Buffer<float> to(24);
    Replay args{.initial_state = {scratch, {2, 4, 3}},
                .state_update = {scratch + 100, {2, 2, 4}},
                .count = ints_of(kSlots),
                .final_state = to.view<3>({2, 4, 3})};
    spoil(args);
    EXPECT_EQ(message_of([&] { replay_conv_state(Cpu{}, args); }),
              std::string("replay_conv_state: ") + expected);
    EXPECT_TRUE(same_bits(to.values(), Buffer<float>(24).values()));
  }
}

using contract::kUnknown;
using contract::Tensor;

contract::VarlenCausalConvOperands open_graph() {
  const DType t = DType::kFloat16;
  return {.input = {t, 2, {kUnknown, kUnknown}},
          .weight = {t, 3, {96, 1, 4}},
          .cu_seqlens = {DType::kInt32, 1, {kUnknown}},
          .initial_state = {t, 3, {kUnknown, kUnknown, kUnknown}}};
}

TEST(VarlenCausalConvContract, InfersWhatAGraphLeavesOpen) {
  auto operands = open_graph();
  operands.dilation = 2;
  operands.state_update_capacity = 3;
  operands.capture_count = Tensor{DType::kInt32, 1, {5}};
  const auto outcome = contract::varlen_causal_conv("op", operands);
  ASSERT_TRUE(std::holds_alternative<contract::VarlenCausalConvGeometry>(outcome))
      << std::get<std::string>(outcome);
  const auto& geometry = std::get<contract::VarlenCausalConvGeometry>(outcome);
  EXPECT_EQ(geometry.tokens, kUnknown);
  EXPECT_EQ(geometry.channels, 96);
  EXPECT_EQ(geometry.history, 6);
  EXPECT_EQ(geometry.sequences, 5);
  EXPECT_EQ(geometry.slots, 5);
  EXPECT_EQ(geometry.capacity, 3);
}

TEST(VarlenCausalConvContract, RefusesWhatAGraphStates) {
  const auto reason = [](const contract::VarlenCausalConvOperands& operands) {
    const auto outcome = contract::varlen_causal_conv("op", operands);
    const auto* text = std::get_if<std::string>(&outcome);
    return text != nullptr ? *text : "legal";
  };
  auto operands = open_graph();
  operands.weight.dtype = DType::kFloat32;
  EXPECT_EQ(reason(operands), "op: weight has type float32, expected float16");
  operands = open_graph();
  operands.input.dtype = DType::kInt32;
  EXPECT_EQ(reason(operands), "op: input has type int32, expected float32, float16 or bfloat16");
  operands = open_graph();
  operands.input.rank = 3;
  EXPECT_EQ(reason(operands).rfind("op: input has rank 3", 0), 0);
  operands = open_graph();
  operands.state_update_capacity = -2;
  EXPECT_EQ(reason(operands), "op: state_update_capacity is -2, expected at least 0");
  operands = open_graph();
  operands.capture_count = Tensor{DType::kInt32, 1, {kUnknown}};
  EXPECT_EQ(reason(operands),
            "op: capture_count is given, expected none: there is no state_update to fill");
  operands = open_graph();
  operands.input.dims = {std::int64_t{1} << 60, 96};
  EXPECT_EQ(reason(operands),
            "op: input has shape [1152921504606846976, 96], expected less than 2^60 elements");
  EXPECT_EQ(std::get<std::string>(contract::parse_conv_activation("op", "gelu")),
            "op: activation is \"gelu\", expected none, silu or swish");
  EXPECT_EQ(std::get<ConvActivation>(contract::parse_conv_activation("op", "swish")),
            ConvActivation::kSilu);
}

}  // namespace
}  // namespace deltaworks::testing

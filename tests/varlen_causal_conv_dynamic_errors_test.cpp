// Bad calls of varlen_causal_conv's dynamic mode.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "contract/varlen_causal_conv.hpp"
#include "support/refusal.hpp"
#include "support/varlen_causal_conv_case.hpp"

namespace deltaworks::testing {
namespace {

using Args = VarlenCausalConvArgs<float>;

float scratch[4096];

struct BadCall {
  const char* name;
  std::function<void(Args&)> spoil;
  const char* message;
};

// 5 tokens in 2 sequences of 6 channels in groups of 3, 4 projected taps.
struct Call {
  Call() : to(problem()), args(args_of(c, to.output.data(), to.final_state.data(), none)) {}
  const ConvCase<float>& problem() {
    Random random(2);
    c = random_case<float>(random, 6, 2, 1, {0, 2, 5});
    c.activation = ConvActivation::kNone;
    c.bias.clear();
    c.projected_taps = 4, c.group_size = 3, c.delta_offset = 2;
    c.kernel_delta = random.normal<float>(5 * 4 * 2);
    c.previous_mask = random.normal<float>(5);
    return c;
  }

  static constexpr float* none = nullptr;
  ConvCase<float> c;
  ConvBuffers<float> to;
  Args args;
};

const BadCall kBadCalls[] = {
    {"Mask", [](Args& a) { a.previous_mask.reset(); },
     "previous_mask is missing, expected it: kernel_delta is given"},
    {"Delta", [](Args& a) { a.kernel_delta.reset(); },
     "previous_mask is given, expected none: kernel_delta is missing"},
    {"GroupsAlone", [](Args& a) { a.kernel_delta.reset(), a.previous_mask.reset(); },
     "group_size is 3, expected 1: kernel_delta is missing"},
    {"OffsetAlone",
     [](Args& a) { a.kernel_delta.reset(), a.previous_mask.reset(), a.group_size = 1; },
     "delta_offset is 2, expected 0: kernel_delta is missing"},
    {"Bias", [](Args& a) { a.bias = View<const float, 1>(scratch, {6}); },
     "bias is given, expected none: kernel_delta is given"},
    {"Silu", [](Args& a) { a.activation = ConvActivation::kSilu; },
     "activation is silu, expected none: kernel_delta is given"},
    {"Prepared",
     [](Args& a) {
       a.prepared_weight = View<const float, 2>(scratch, {2, 6});
     },
     "prepared_weight is given, expected none: kernel_delta is given"},
    {"Dilation", [](Args& a) { a.dilation = 2; },
     "dilation is 2, expected 1: kernel_delta is given"},
    {"Width",
     [](Args& a) {
       a.weight = {scratch, {6, 1, 3}};
     },
     "weight has shape [6, 1, 3], expected a width of 2: kernel_delta is given"},
    {"NoGroup", [](Args& a) { a.group_size = 0; }, "group_size is 0, expected at least 1"},
    {"NegativeOffset", [](Args& a) { a.delta_offset = -1; },
     "delta_offset is -1, expected at least 0"},
    {"OddGroups", [](Args& a) { a.group_size = 4; },
     "group_size is 4, expected a divisor of 6, the number of channels"},
    {"HugeGroup", [](Args& a) { a.group_size = std::numeric_limits<std::int64_t>::max(); },
     "group_size is 9223372036854775807, expected a divisor of 6, the number of channels"},
    {"DeltaGroups", [](Args& a) { a.group_size = 2; },
     "kernel_delta has shape [5, 4, 2], expected [5, 4, 3]"},
    {"DeltaTokens",
     [](Args& a) {
       a.kernel_delta = View<const float, 3>(scratch, {4, 4, 2});
     },
     "kernel_delta has shape [4, 4, 2], expected [5, 4, 2]"},
    {"DeltaTaps", [](Args& a) { a.delta_offset = 3; },
     "kernel_delta has shape [5, 4, 2], expected 2 taps from delta_offset 3 on"},
    {"OneTap",
     [](Args& a) {
       a.kernel_delta = View<const float, 3>(scratch, {5, 1, 2});
       a.delta_offset = 0;
     },
     "kernel_delta has shape [5, 1, 2], expected 2 taps from delta_offset 0 on"},
    {"HugeOffset", [](Args& a) { a.delta_offset = std::numeric_limits<std::int64_t>::max(); },
     "kernel_delta has shape [5, 4, 2], expected 2 taps from delta_offset 9223372036854775807 on"},
    {"MaskShape",
     [](Args& a) {
       a.previous_mask = View<const float, 2>(scratch, {5, 2});
     },
     "previous_mask has shape [5, 2], expected [5, 1]"},
    {"MaskTokens",
     [](Args& a) {
       a.previous_mask = View<const float, 2>(scratch, {6, 1});
     },
     "previous_mask has shape [6, 1], expected [5, 1]"},
    {"DeltaMemory",
     [](Args& a) {
       a.kernel_delta = View<const float, 3>(nullptr, {5, 4, 2});
     },
     "kernel_delta has no memory for 5 x 8 elements"},
    {"MaskMemory",
     [](Args& a) {
       a.previous_mask = View<const float, 2>(nullptr, {5, 1});
     },
     "previous_mask has no memory for 5 x 1 elements"},
    {"OutputOverDelta",
     [](Args& a) {
       a.kernel_delta = View<const float, 3>(a.output.data() + 1, {5, 2, 2});
       a.delta_offset = 0;
     },
     "output overlaps kernel_delta, expected separate memory"},
    {"StateOverMask",
     [](Args& a) {
       a.previous_mask = View<const float, 2>(a.final_state.data() + 7, {5, 1});
     },
     "final_state overlaps previous_mask, expected separate memory"},
};

TEST(VarlenCausalConvDynamicErrors, NameTheArgumentAndWriteNothing) {
  for (const BadCall& bad : kBadCalls) {
    SCOPED_TRACE(bad.name);
    Call call;
    bad.spoil(call.args);
    EXPECT_EQ(message_of([&] { varlen_causal_conv(Cpu{}, call.args); }),
              std::string("varlen_causal_conv: ") + bad.message);
    EXPECT_TRUE(same_bits(call.to.result(), ConvBuffers<float>(call.c).result()));
  }
}

TEST(VarlenCausalConvDynamicErrors, TheUnspoiledCallIsGood) {
  Call call;
  EXPECT_NO_THROW(varlen_causal_conv(Cpu{}, call.args));
}

TEST(VarlenCausalConvDynamicErrors, RefuseWhatAGraphStates) {
  using contract::kUnknown;
  using contract::Tensor;
  const auto reason = [](const contract::VarlenCausalConvOperands& operands) {
    const auto outcome = contract::varlen_causal_conv("op", operands);
    const auto* text = std::get_if<std::string>(&outcome);
    return text != nullptr ? *text : "legal";
  };
  const DType t = DType::kFloat16;
  contract::VarlenCausalConvOperands operands{
      .input = {t, 2, {kUnknown, kUnknown}},
      .weight = {t, 3, {96, 1, 4}},
      .cu_seqlens = {DType::kInt32, 1, {kUnknown}},
      .initial_state = {t, 3, {kUnknown, kUnknown, kUnknown}}};
  operands.kernel_delta = Tensor{t, 3, {kUnknown, 4, kUnknown}};
  operands.previous_mask = Tensor{t, 2, {kUnknown, kUnknown}};
  EXPECT_EQ(reason(operands),
            "op: weight has shape [96, 1, 4], expected a width of 2: kernel_delta is given");
  operands.weight.dims[2] = 2;
  operands.group_size = 16;
  EXPECT_EQ(reason(operands), "legal");
  operands.kernel_delta->dtype = DType::kFloat32;
  EXPECT_EQ(reason(operands), "op: kernel_delta has type float32, expected float16");
  operands.kernel_delta = Tensor{t, 3, {kUnknown, 4, 7}};
  EXPECT_EQ(reason(operands), "op: kernel_delta has shape [?, 4, 7], expected [?, 4, 6]");
}

}  // namespace
}  // namespace deltaworks::testing

// Bad calls: each names operator, argument, what came and what was expected, and writes nothing.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "contract/dflash2_dynamic_conv.hpp"
#include "support/dflash2_dynamic_conv_case.hpp"
#include "support/refusal.hpp"

namespace deltaworks::testing {
namespace {

using Args = DFlash2DynamicConvArgs<float>;

float scratch[4096];

// 2 lanes of 3 rows, 2 taps, 6 channels in 3 groups, second stage.
struct Call {
  Call() : to(36), args((fill(), c.args(to.data()))) {}
  void fill() {
    Random random(1);
    c.lanes = 2, c.rows_per_lane = 3, c.groups = 3, c.group_size = 2;
    c.stage = DFlash2Stage::kResidual;
    c.fill(random);
  }

  DFlash2Case<float> c;
  Buffer<float> to;
  Args args;
};

template <std::size_t Rank>
void reshape(View<const float, Rank>& view, const std::array<std::int64_t, Rank>& extents) {
  view = View<const float, Rank>(scratch, extents);
}

struct BadCall {
  std::function<void(Args&)> spoil;
  const char* message;
};

const BadCall kBadCalls[] = {
    {[](Args& a) {
       reshape(a.input, {6, 7});
     },
     "base has shape [2, 2, 6], expected [2, 2, 7]"},
    {[](Args& a) {
       reshape(a.input, {5, 6});
     },
     "residual has shape [6, 6], expected [5, 6]"},
    {[](Args& a) {
       reshape(a.input, {-6, 6});
     },
     "input has shape [-6, 6], expected no negative extent"},
    {[](Args& a) {
       a.input = {nullptr, {6, 6}};
     },
     "input has no memory for 6 x 6 elements"},
    {[](Args& a) {
       a.input = {scratch, {6, 6}, 5};
     },
     "input has row stride 5, expected at least the row size 6"},
    {[](Args& a) {
       reshape(a.dynamic, {6, 11});
     },
     "dynamic has shape [6, 11], expected [6, 12]"},
    {[](Args& a) {
       reshape(a.dynamic, {5, 12});
     },
     "dynamic has shape [5, 12], expected [6, 12]"},
    {[](Args& a) {
       reshape(a.base, {1, 2, 6});
     },
     "base has shape [1, 2, 6], expected [2, 2, 6]"},
    {[](Args& a) {
       reshape(a.base, {2, 0, 6});
     },
     "base has shape [2, 0, 6], expected 1 to 4 taps"},
    {[](Args& a) {
       reshape(a.base, {2, 5, 6});
     },
     "base has shape [2, 5, 6], expected 1 to 4 taps"},
    {[](Args& a) {
       reshape(a.base, {2, 3, 6});
     },
     "dynamic has shape [6, 12], expected [6, 18]"},
    {[](Args& a) { a.residual.reset(); }, "residual is missing, expected it: stage is residual"},
    {[](Args& a) { a.stage = DFlash2Stage::kPrepare; },
     "residual is given, expected none: stage is prepare"},
    {[](Args& a) {
       reshape(*a.residual, {6, 5});
     },
     "residual has shape [6, 5], expected [6, 6]"},
    {[](Args& a) { a.stage = static_cast<DFlash2Stage>(2); },
     "stage is 2, expected kPrepare or kResidual"},
    {[](Args& a) { a.arithmetic = static_cast<DFlash2Arithmetic>(7); },
     "arithmetic is 7, expected kFloat32 or kActivation"},
    {[](Args& a) { a.rows_per_lane = 0; }, "rows_per_lane is 0, expected at least 1"},
    {[](Args& a) { a.rows_per_lane = 4; },
     "input has shape [6, 6], expected whole lanes of 4 rows"},
    {[](Args& a) { a.groups = 0; }, "groups is 0, expected at least 1"},
    {[](Args& a) { a.groups = std::int64_t{1} << 62; },
     "groups is 4611686018427387904, expected at most 6, one for each channel"},
    {[](Args& a) {
       a.groups = 4;
       reshape(a.dynamic, {6, 16});
     },
     "input has shape [6, 6], expected channels in 4 equal groups"},
    {[](Args& a) {
       a.output = {scratch, {6, 5}};
     },
     "output has shape [6, 5], expected [6, 6]"},
    {[](Args& a) {
       a.output = {nullptr, {6, 6}};
     },
     "output has no memory for 6 x 6 elements"},
    {[](Args& a) { a.input = a.output; }, "output overlaps input, expected separate memory"},
    {[](Args& a) { a.residual = a.output; }, "output overlaps residual, expected separate memory"},
    {[](Args& a) {
       a.dynamic = {a.output.data() + 35, {6, 12}};
     },
     "output overlaps dynamic, expected separate memory"},
    {[](Args& a) {
       a.base = {a.output.data() + 12, {2, 2, 6}};
     },
     "output overlaps base, expected separate memory"},
};

TEST(DFlash2DynamicConvErrors, NameTheArgumentAndWriteNothing) {
  for (const BadCall& bad : kBadCalls) {
    Call call;
    bad.spoil(call.args);
    EXPECT_EQ(message_of([&] { dflash2_dynamic_conv(Cpu{}, call.args); }),
              std::string("dflash2_dynamic_conv: ") + bad.message);
    EXPECT_TRUE(same_bits(call.to.values(), Buffer<float>(36).values())) << bad.message;
  }
}

TEST(DFlash2DynamicConvErrors, TheUnspoiledCallIsGood) {
  Call call;
  EXPECT_NO_THROW(dflash2_dynamic_conv(Cpu{}, call.args));
}

TEST(DFlash2DynamicConvErrors, EmptyCallsAreGood) {
  Args args{.input = {nullptr, {0, 6}},
            .dynamic = {nullptr, {0, 12}},
            .base = {scratch, {2, 2, 6}},
            .output = {nullptr, {0, 6}},
            .rows_per_lane = 8,
            .groups = 3};
  EXPECT_NO_THROW(dflash2_dynamic_conv(Cpu{}, args));
}

using contract::kUnknown;
using contract::Tensor;

contract::DFlash2DynamicConvOperands open_graph() {
  const DType t = DType::kFloat16;
  return {.input = {t, 2, {kUnknown, kUnknown}},
          .dynamic = {t, 2, {kUnknown, kUnknown}},
          .base = {DType::kBFloat16, 3, {kUnknown, kUnknown, kUnknown}},
          .rows_per_lane = 8,
          .groups = 6};
}

TEST(DFlash2DynamicConvContract, InfersWhatAGraphLeavesOpen) {
  auto operands = open_graph();
  EXPECT_TRUE(std::holds_alternative<contract::DFlash2DynamicConvGeometry>(
      contract::dflash2_dynamic_conv("op", operands)));
  operands.base.dims = {2, 2, 96};
  operands.dynamic.dims = {40, kUnknown};
  operands.residual = Tensor{DType::kFloat32, 2, {kUnknown, kUnknown}};
  operands.stage = DFlash2Stage::kResidual;
  const auto outcome = contract::dflash2_dynamic_conv("op", operands);
  ASSERT_TRUE(std::holds_alternative<contract::DFlash2DynamicConvGeometry>(outcome))
      << std::get<std::string>(outcome);
  const auto& geometry = std::get<contract::DFlash2DynamicConvGeometry>(outcome);
  EXPECT_EQ(geometry.rows, 40);
  EXPECT_EQ(geometry.channels, 96);
  EXPECT_EQ(geometry.taps, 2);
}

TEST(DFlash2DynamicConvContract, RefusesWhatAGraphStates) {
  const auto reason = [](const auto& spoil) {
    auto operands = open_graph();
    spoil(operands);
    const auto outcome = contract::dflash2_dynamic_conv("op", operands);
    const auto* text = std::get_if<std::string>(&outcome);
    return text != nullptr ? *text : "legal";
  };
  using Operands = contract::DFlash2DynamicConvOperands;
  EXPECT_EQ(reason([](Operands& o) { o.input.dtype = DType::kInt32; }),
            "op: input has type int32, expected float32, float16 or bfloat16");
  EXPECT_EQ(reason([](Operands& o) { o.dynamic.dtype = DType::kBFloat16; }),
            "op: dynamic has type bfloat16, expected float16");
  EXPECT_EQ(reason([](Operands& o) { o.base.dtype = DType::kFloat32; }),
            "op: base has type float32, expected float16 or bfloat16");
  EXPECT_EQ(reason([](Operands& o) {
              o.stage = DFlash2Stage::kResidual;
              o.residual = Tensor{DType::kBFloat16, 2, {kUnknown, kUnknown}};
            }),
            "op: residual has type bfloat16, expected float16 or float32");
  EXPECT_EQ(reason([](Operands& o) { o.input.rank = 3; }).rfind("op: input has rank 3", 0), 0);
  EXPECT_EQ(reason([](Operands& o) {
              o.dynamic.dims = {39, kUnknown};
            }),
            "op: dynamic has shape [39, ?], expected whole lanes of 8 rows");
  EXPECT_EQ(reason([](Operands& o) {
              o.base.dims = {kUnknown, kUnknown, 40};
            }),
            "op: base has shape [?, ?, 40], expected channels in 6 equal groups");
  EXPECT_EQ(reason([](Operands& o) {
              o.input.dims = {std::int64_t{1} << 60, 96};
            }),
            "op: input has shape [1152921504606846976, 96], expected less than 2^60 elements");
  EXPECT_EQ(std::get<std::string>(contract::parse_dflash2_stage("op", "finish")),
            "op: stage is \"finish\", expected prepare or residual");
  EXPECT_EQ(std::get<std::string>(contract::parse_dflash2_arithmetic("op", "bf16")),
            "op: arithmetic is \"bf16\", expected float32 or activation");
}

}  // namespace
}  // namespace deltaworks::testing

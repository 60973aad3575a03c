// Bad calls: each names operator, argument, what came and what was expected, and writes nothing.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "contract/gated_delta_rates.hpp"
#include "support/gated_delta_rates_case.hpp"
#include "support/refusal.hpp"

namespace deltaworks::testing {
namespace {

using Args = GatedDeltaRatesArgs<float>;

float scratch[64];

// 3 tokens of 4 heads.
struct Call {
  Call() : rates(12), factors(12), args((fill(), c.args(rates.data(), factors.data()))) {}
  void fill() {
    Random random(1);
    c.tokens = 3, c.heads = 4;
    c.fill(random);
  }

  RatesCase<float> c;
  Buffer<float> rates, factors;
  Args args;
};

struct BadCall {
  std::function<void(Args&)> spoil;
  const char* message;
};

const BadCall kBadCalls[] = {
    {[](Args& a) {
       a.update_logits = {scratch, {3, 5}};
     },
     "decay_inputs has shape [3, 4], expected [3, 5]"},
    {[](Args& a) {
       a.decay_inputs = {scratch, {2, 4}};
     },
     "decay_inputs has shape [2, 4], expected [3, 4]"},
    {[](Args& a) {
       a.update_logits = {scratch, {-3, 4}};
     },
     "update_logits has shape [-3, 4], expected no negative extent"},
    {[](Args& a) {
       a.update_logits = {nullptr, {3, 4}};
     },
     "update_logits has no memory for 3 x 4 elements"},
    {[](Args& a) {
       a.decay_inputs = {scratch, {3, 4}, 3};
     },
     "decay_inputs has row stride 3, expected at least the row size 4"},
    {[](Args& a) {
       a.a_log = {scratch, {3}};
     },
     "a_log has shape [3], expected [4]"},
    {[](Args& a) {
       a.a_log = {nullptr, {4}};
     },
     "a_log has no memory for 4 x 1 elements"},
    {[](Args& a) {
       a.dt_bias = {scratch, {5}};
     },
     "dt_bias has shape [5], expected [4]"},
    {[](Args& a) {
       a.update_rates = {scratch, {4, 4}};
     },
     "update_rates has shape [4, 4], expected [3, 4]"},
    {[](Args& a) {
       a.update_rates = {nullptr, {3, 4}};
     },
     "update_rates has no memory for 3 x 4 elements"},
    {[](Args& a) {
       a.decay_factors = {scratch, {3, 3}};
     },
     "decay_factors has shape [3, 3], expected [3, 4]"},
    {[](Args& a) {
       a.decay_factors = {scratch, {3, 4}, 2};
     },
     "decay_factors has row stride 2, expected at least the row size 4"},
    {[](Args& a) { a.arithmetic = static_cast<GatedDeltaRatesArithmetic>(3); },
     "arithmetic is 3, expected kFloat32 or kActivation"},
    {[](Args& a) { a.update_logits = a.update_rates; },
     "update_rates overlaps update_logits, expected separate memory"},
    {[](Args& a) { a.decay_inputs = a.update_rates; },
     "update_rates overlaps decay_inputs, expected separate memory"},
    {[](Args& a) {
       a.decay_inputs = {a.decay_factors.data() + 11, {3, 4}};
     },
     "decay_factors overlaps decay_inputs, expected separate memory"},
    {[](Args& a) {
       a.a_log = {a.decay_factors.data() + 4, {4}};
     },
     "decay_factors overlaps a_log, expected separate memory"},
    {[](Args& a) {
       a.dt_bias = {a.update_rates.data(), {4}};
     },
     "update_rates overlaps dt_bias, expected separate memory"},
    {[](Args& a) {
       a.update_rates = {a.decay_factors.data() + 11, {3, 4}};
     },
     "update_rates overlaps decay_factors, expected separate memory"},
};

TEST(GatedDeltaRatesErrors, NameTheArgumentAndWriteNothing) {
  for (const BadCall& bad : kBadCalls) {
    Call call;
    bad.spoil(call.args);
    EXPECT_EQ(message_of([&] { gated_delta_rates(Cpu{}, call.args); }),
              std::string("gated_delta_rates: ") + bad.message);
    EXPECT_TRUE(same_bits(call.rates.values(), Buffer<float>(12).values())) << bad.message;
    EXPECT_TRUE(same_bits(call.factors.values(), Buffer<float>(12).values())) << bad.message;
  }
}

TEST(GatedDeltaRatesErrors, TheUnspoiledCallIsGood) {
  Call call;
  EXPECT_NO_THROW(gated_delta_rates(Cpu{}, call.args));
}

TEST(GatedDeltaRatesErrors, EmptyCallsAreGood) {
  for (const auto& [tokens, heads] : {std::pair{0, 4}, std::pair{3, 0}, std::pair{0, 0}}) {
    EXPECT_NO_THROW(gated_delta_rates(Cpu{}, Args{.update_logits = {nullptr, {tokens, heads}},
                                                  .decay_inputs = {nullptr, {tokens, heads}},
                                                  .a_log = {scratch, {heads}},
                                                  .dt_bias = {scratch, {heads}},
                                                  .update_rates = {nullptr, {tokens, heads}},
                                                  .decay_factors = {nullptr, {tokens, heads}}}));
  }
}

using contract::kUnknown;
using contract::Tensor;

contract::GatedDeltaRatesOperands open_graph() {
  const DType t = DType::kFloat16;
  return {.update_logits = {t, 3, {kUnknown, kUnknown, kUnknown}},
          .decay_inputs = {t, 3, {kUnknown, kUnknown, kUnknown}},
          .a_log = {DType::kFloat32, 1, {kUnknown}},
          .dt_bias = {DType::kFloat32, 1, {kUnknown}}};
}

TEST(GatedDeltaRatesContract, InfersWhatAGraphLeavesOpen) {
  const auto geometry_of = [](const contract::GatedDeltaRatesOperands& operands) {
    const auto outcome = contract::gated_delta_rates("op", operands);
    if (const auto* reason = std::get_if<std::string>(&outcome)) ADD_FAILURE() << *reason;
    return std::get<contract::GatedDeltaRatesGeometry>(outcome);
  };
  auto operands = open_graph();
  EXPECT_EQ(geometry_of(operands).tokens, kUnknown);
  operands.dt_bias.dims = {48};
  operands.update_logits.dims = {2, kUnknown, kUnknown};
  EXPECT_EQ(geometry_of(operands).tokens, kUnknown);
  EXPECT_EQ(geometry_of(operands).value_heads, 48);
  operands.decay_inputs.dims = {kUnknown, 5, kUnknown};
  EXPECT_EQ(geometry_of(operands).tokens, 10);
  operands.update_logits.dims = {kUnknown, 0, kUnknown};
  operands.decay_inputs.dims = {kUnknown, 0, 48};
  EXPECT_EQ(geometry_of(operands).tokens, 0);
  operands.update_logits = operands.decay_inputs = {DType::kFloat16, 1, {48}};
  EXPECT_EQ(geometry_of(operands).tokens, 1);
}

TEST(GatedDeltaRatesContract, RefusesWhatAGraphStates) {
  const auto reason = [](const auto& spoil) {
    auto operands = open_graph();
    spoil(operands);
    const auto outcome = contract::gated_delta_rates("op", operands);
    const auto* text = std::get_if<std::string>(&outcome);
    return text != nullptr ? *text : "legal";
  };
  using Operands = contract::GatedDeltaRatesOperands;
  EXPECT_EQ(reason([](Operands& o) { o.update_logits.dtype = DType::kInt32; }),
            "op: update_logits has type int32, expected float32, float16 or bfloat16");
  EXPECT_EQ(reason([](Operands& o) { o.decay_inputs.dtype = DType::kBFloat16; }),
            "op: decay_inputs has type bfloat16, expected float16");
  EXPECT_EQ(reason([](Operands& o) { o.a_log.dtype = DType::kFloat16; }),
            "op: a_log has type float16, expected float32");
  EXPECT_EQ(reason([](Operands& o) { o.dt_bias.dtype = DType::kFloat16; }),
            "op: dt_bias has type float16, expected float32");
  EXPECT_EQ(reason([](Operands& o) { o.decay_factors = o.update_logits; }),
            "op: decay_factors has type float16, expected float32");
  EXPECT_EQ(reason([](Operands& o) { o.update_logits.rank = 0; }),
            "op: update_logits has rank 0 (shape []), expected at least 1");
  EXPECT_EQ(reason([](Operands& o) { o.decay_inputs.rank = 2; }),
            "op: decay_inputs has rank 2 (shape [?, ?]), expected rank 3");
  EXPECT_EQ(reason([](Operands& o) {
              o.update_logits.dims = {kUnknown, kUnknown, 48};
              o.a_log.dims = {32};
            }),
            "op: a_log has shape [32], expected [48]");
  EXPECT_EQ(reason([](Operands& o) {
              o.update_logits.dims = {std::int64_t{1} << 40, std::int64_t{1} << 20, 48};
            }),
            "op: update_logits has shape [1099511627776, 1048576, 48], expected less than 2^60 "
            "elements");
  EXPECT_EQ(std::get<std::string>(contract::parse_gated_delta_rates_arithmetic("op", "half")),
            "op: arithmetic is \"half\", expected float32 or activation");
}

}  // namespace
}  // namespace deltaworks::testing

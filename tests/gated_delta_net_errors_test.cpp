// Bad calls of gated_delta_net and its replay: each names operator, argument, what came and what was expected, and
// writes nothing.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "contract/engine.hpp"
#include "contract/gated_delta_net.hpp"
#include "support/compare.hpp"
#include "support/gated_delta_net_problem.hpp"
#include "support/refusal.hpp"

namespace deltaworks {
namespace {

using testing::Buffer;
using testing::GatedDeltaNetProblem;
using testing::message_of;
using testing::poison;
using testing::Random;
using testing::same_bits;
using testing::view_of;

using Args = GatedDeltaNetArgs<float>;

struct BadCall {
  const char* name;
  std::function<void(Args&)> spoil;
  const char* message;
};

// A good call of 5 tokens in 2 sequences, 2 key and 4 value heads, 8 x 6, with capture of 3.
class Call {
 public:
  Call() {
    args.output = output.view<3>({5, 4, 6});
    args.final_state = state.view<4>({2, 4, 6, 8});
    args.state_update = update.view<2>({2, problem.update_row()});
  }

  Random random{1};
  GatedDeltaNetProblem<float> problem{random,
                                      {.cu_seqlens = {0, 2, 5},
                                       .key_heads = 2,
                                       .heads_per_key = 2,
                                       .key_dim = 8,
                                       .value_dim = 6,
                                       .capacity = 3,
                                       .gate_activation = GateActivation::kSoftplus}};
  Buffer<float> output{5 * 24}, state{2 * 4 * 48}, update{2 * problem.update_row()};
  Args args = problem.args();
};

constexpr std::int32_t kFalls[] = {0, 4, 3}, kLate[] = {1, 2, 5}, kShort[] = {0, 2, 4};
constexpr std::int32_t kSlots[] = {0, 1}, kFar[] = {0, 2}, kTwice[] = {1, 1};
float scratch[4096];

template <std::size_t N>
View<const std::int32_t, 1> ints(const std::int32_t (&values)[N]) {
  return {values, {N}};
}

const BadCall kBadCalls[] = {
    {"QueryTokens",
     [](Args& a) {
       a.query = {scratch, {4, 2, 8}};
     },
     "key has shape [5, 2, 8], expected [4, 2, 8]"},
    {"NegativeTokens",
     [](Args& a) {
       a.query = {scratch, {-1, 2, 8}};
     },
     "query has extent -1 in dimension 0, expected 0 or more"},
    {"KeyHeads",
     [](Args& a) {
       a.key = {scratch, {5, 1, 8}};
     },
     "key has shape [5, 1, 8], expected [5, 2, 8]"},
    {"ValueHeads",
     [](Args& a) {
       a.value = {scratch, {5, 3, 6}};
     },
     "initial_state has shape [2, 4, 6, 8], expected [2, 3, 6, 8]"},
    {"Output",
     [](Args& a) {
       a.output = {scratch, {5, 4, 8}};
     },
     "output has shape [5, 4, 8], expected [5, 4, 6]"},
    {"FinalState",
     [](Args& a) {
       a.final_state = {scratch, {1, 4, 6, 8}};
     },
     "final_state has shape [1, 4, 6, 8], expected [2, 4, 6, 8]"},
    {"Decay",
     [](Args& a) {
       a.decay = View<const float, 2>{scratch, {5, 2}};
     },
     "decay has shape [5, 2], expected [5, 4]"},
    {"DecayTwice",
     [](Args& a) {
       a.decay_per_key = View<const float, 3>{scratch, {5, 4, 8}};
     },
     "decay is given per head and per key, expected one of them"},
    {"DecayForDelta", [](Args& a) { a.update_rule = UpdateRule::kDelta; },
     "decay is given, expected none: update_rule has no decay"},
    {"NoDecay", [](Args& a) { a.decay.reset(); },
     "decay is missing, expected it: gate_activation works on it"},
    {"Beta",
     [](Args& a) {
       a.beta = View<const float, 2>{scratch, {4, 4}};
     },
     "beta has shape [4, 4], expected [5, 4]"},
    {"NoALog", [](Args& a) { a.a_log.reset(); }, "a_log is missing, expected it"},
    {"NoDtBias", [](Args& a) { a.dt_bias.reset(); }, "dt_bias is missing, expected it"},
    {"ALogWithoutGate", [](Args& a) { a.gate_activation = GateActivation::kNone; },
     "a_log is given, expected none: gate_activation is none"},
    {"DtBias",
     [](Args& a) {
       a.dt_bias = View<const float, 1>{scratch, {2}};
     },
     "dt_bias has shape [2], expected [4]"},
    {"Scale", [](Args& a) { a.scale = std::numeric_limits<float>::quiet_NaN(); },
     "scale is NaN, expected a number"},
    {"LowerBound", [](Args& a) { a.gate_lower_bound = 1; },
     "gate_lower_bound is 1, expected a finite number of 0 or less"},
    {"InfiniteLowerBound",
     [](Args& a) { a.gate_lower_bound = -std::numeric_limits<float>::infinity(); },
     "gate_lower_bound is -inf, expected a finite number of 0 or less"},
    {"NoSuchRule", [](Args& a) { a.update_rule = static_cast<UpdateRule>(9); },
     "update_rule is 9, expected 0 to 3"},
    {"NoSuchGate", [](Args& a) { a.gate_activation = static_cast<GateActivation>(7); },
     "gate_activation is 7, expected 0 to 2"},
    {"NoSuchBetaActivation", [](Args& a) { a.beta_activation = static_cast<BetaActivation>(9); },
     "beta_activation is 9, expected 0 to 1"},
    {"HugeCapacity", [](Args& a) { a.state_update_capacity = (std::int64_t{1} << 62) + 1; },
     "state_update has shape [2, 4611686018427387905, 4, 14], expected less than 2^60 elements"},
    {"HugeExtent",
     [](Args& a) {
       a.value = {nullptr, {5, 4, std::int64_t{1} << 60}};
     },
     "initial_state has shape"},
    {"HugePitch",
     [](Args& a) {
       a.query = {scratch, {5, 2, 8}, std::numeric_limits<std::int64_t>::max()};
     },
     "query has row stride 9223372036854775807, expected less than 2^60"},
    {"OffsetsFall", [](Args& a) { a.cu_seqlens = ints(kFalls); },
     "cu_seqlens falls from 4 to 3 at sequence 1"},
    {"OffsetsStart", [](Args& a) { a.cu_seqlens = ints(kLate); },
     "cu_seqlens starts at 1, expected 0"},
    {"OffsetsEnd", [](Args& a) { a.cu_seqlens = ints(kShort); },
     "cu_seqlens ends at 4, expected 5, the number of tokens"},
    {"NoOffsets", [](Args& a) { a.cu_seqlens = {}; }, "cu_seqlens has shape [0], expected [3]"},
    {"Count", [](Args& a) { a.capture_count.reset(); }, "capture_count is missing, expected it"},
    {"CountWithoutCapacity", [](Args& a) { a.state_update_capacity = 0; },
     "capture_count is given, expected none"},
    {"NegativeCapacity", [](Args& a) { a.state_update_capacity = -1; },
     "state_update_capacity is -1, expected 0 or more"},
    {"StateUpdate",
     [](Args& a) {
       a.state_update = View<float, 2>{scratch, {2, 7}};
     },
     "state_update has shape [2, 7], expected [2, 132]"},
    {"NoStateUpdate", [](Args& a) { a.state_update.reset(); },
     "state_update is missing, expected it"},
    {"OneOfThePool", [](Args& a) { a.slots_in = ints(kSlots); },
     "slots_out is missing, expected it: a state pool needs slots_in and slots_out"},
    {"SlotTooFar", [](Args& a) { a.slots_in = ints(kSlots), a.slots_out = ints(kFar); },
     "slots_out[1] is 2, expected less than 2, the pool's slots"},
    {"SlotTwice", [](Args& a) { a.slots_in = ints(kSlots), a.slots_out = ints(kTwice); },
     "slots_out[1] is 1, which sequence 0 writes, expected a slot that no other sequence writes"},
    {"Pitch",
     [](Args& a) {
       a.query = {scratch, {5, 2, 8}, 15};
     },
     "query has row stride 15, expected at least the row size 16"},
    {"NoMemory",
     [](Args& a) {
       a.value = {nullptr, {5, 4, 6}};
     },
     "value has no memory for 5 x 24 elements"},
    {"OutputOverInput",
     [](Args& a) {
       a.value = {a.output.data(), {5, 4, 6}};
     },
     "output overlaps value, expected separate memory"},
    {"StateShifted",
     [](Args& a) {
       a.initial_state = View<const float, 4>{a.final_state.data() + 1, {2, 4, 6, 8}};
     },
     "final_state overlaps initial_state, expected separate memory"},
};

class GatedDeltaNetErrors : public ::testing::TestWithParam<BadCall> {};

TEST_P(GatedDeltaNetErrors, AreNamedAndWriteNothing) {
  Call call;
  const auto before = std::tuple{call.output.values(), call.state.values(), call.update.values()};
  GetParam().spoil(call.args);
  const std::string text = message_of([&] { gated_delta_net(Cpu{}, call.args); });
  EXPECT_EQ(text.rfind("gated_delta_net: ", 0), 0u) << text;
  EXPECT_NE(text.find(GetParam().message), std::string::npos) << text;
  EXPECT_TRUE(same_bits(call.output.values(), std::get<0>(before)));
  EXPECT_TRUE(same_bits(call.state.values(), std::get<1>(before)));
  EXPECT_TRUE(same_bits(call.update.values(), std::get<2>(before)));
}

INSTANTIATE_TEST_SUITE_P(BadCalls, GatedDeltaNetErrors, ::testing::ValuesIn(kBadCalls),
                         [](const auto& bad) { return bad.param.name; });

TEST(GatedDeltaNetErrors, TheGoodCallIsGood) {
  Call call;
  EXPECT_NO_THROW(gated_delta_net(Cpu{}, call.args));
}

void expect_replay_error(const std::vector<std::int32_t>& count, std::int64_t row,
                         const std::string& message) {
  const std::vector<float> state(2 * 48, 1.0f), update(static_cast<std::size_t>(2 * row));
  Buffer<float> result(2 * 48);
  const auto sequences = static_cast<std::int64_t>(count.size());
  const ReplayGatedDeltaStateArgs args{.initial_state = view_of<4>(state, {2, 1, 6, 8}),
                                       .state_update = view_of<2>(update, {2, row}),
                                       .count = view_of<1>(count, {sequences}),
                                       .final_state = result.view<4>({2, 1, 6, 8}),
                                       .key_heads = 1,
                                       .state_update_capacity = 3};
  EXPECT_EQ(message_of([&] { replay_gated_delta_state(Cpu{}, args); }),
            "replay_gated_delta_state: " + message);
  EXPECT_TRUE(same_bits(result.values(), std::vector<float>(2 * 48, poison<float>())));
}

TEST(ReplayGatedDeltaStateErrors, AreNamedAndWriteNothing) {
  constexpr std::int64_t kRow = 3 * (1 + 8 + 6);
  expect_replay_error({0, 4}, kRow, "count[1] is 4, expected 0 to 3");
  expect_replay_error({-1, 0}, kRow, "count[0] is -1, expected 0 to 3");
  expect_replay_error({0}, kRow, "count has shape [1], expected [2]");
  expect_replay_error({0, 0}, kRow + 1,
                      "state_update has rows of 46, expected 45, or 66 for per-key decay");
}

// Refused for the extents alone, in a build without CUDA too: nothing looks at the memory.
TEST(GatedDeltaNetErrors, CudaCountsIn32Bits) {
  constexpr std::int64_t kMany = std::int64_t{1} << 31;
  Call many;
  many.args.query = many.args.key = {scratch, {kMany, 2, 8}};
  many.args.value = {scratch, {kMany, 4, 6}};
  many.args.output = {scratch, {kMany, 4, 6}};
  many.args.decay = View<const float, 2>{scratch, {kMany, 4}};
  many.args.beta = View<const float, 2>{scratch, {kMany, 4}};
  EXPECT_EQ(message_of([&] { gated_delta_net(Cuda{}, many.args); }),
            "gated_delta_net: tokens is 2147483648, expected at most 2147483647 on Cuda");
  Call wide;
  wide.args.value = {scratch, {5, 4, kMany / 4}};
  wide.args.output = {scratch, {5, 4, kMany / 4}};
  wide.args.final_state = {scratch, {2, 4, kMany / 4, 8}};
  wide.args.initial_state = wide.args.final_state;
  wide.args.state_update = View<float, 2>{scratch, {2, 3 * (4 + 2 * 8 + kMany)}};
  EXPECT_EQ(message_of([&] { gated_delta_net(Cuda{}, wide.args); }),
            "gated_delta_net: value_heads · value_dim is 2147483648, expected at most 2147483647 "
            "on Cuda");
}

TEST(GatedDeltaNetErrors, CudaKnowsTheEngines) {
  Call call;
  call.args.engine = static_cast<Engine>(3);
  EXPECT_EQ(message_of([&] { gated_delta_net(Cuda{}, call.args); }),
            "gated_delta_net: engine is 3, expected 0 to 2");
}

// A graph may leave dimensions open: the contract answers before they are known.
TEST(GatedDeltaNetContract, UnknownDimensionsFitAndKnownOnesAreBound) {
  constexpr std::int64_t u = contract::kUnknown;
  contract::GatedDeltaNetOperands operands{
      .query = {DType::kFloat16, 2, {u, 2 * 2 * 64 + 4 * 64}},
      .cu_seqlens = contract::Tensor{DType::kInt32, 1, {u}},
      .decay = contract::Tensor{DType::kFloat32, 2, {u, 4}},
      .beta = contract::Tensor{DType::kFloat32, 2, {u, 4}},
      .initial_state = contract::Tensor{DType::kFloat32, 4, {u, 4, 64, 64}}};
  const auto outcome = contract::gated_delta_net("GatedDeltaNet", operands);
  ASSERT_TRUE(std::holds_alternative<contract::GatedDeltaNetGeometry>(outcome))
      << std::get<std::string>(outcome);
  const auto& geometry = std::get<contract::GatedDeltaNetGeometry>(outcome);
  EXPECT_EQ(geometry.key_heads, 2);
  EXPECT_EQ(geometry.tokens, u);
  EXPECT_EQ(contract::chunked_tokens(geometry, Engine::kChunked, 40, 0), 32);
  EXPECT_EQ(contract::chunked_tokens({}, Engine::kChunked, 40, 0), 0);  // no key_dim is known
  operands.query.dims[1] += 1;
  EXPECT_EQ(std::get<std::string>(contract::gated_delta_net("GatedDeltaNet", operands)),
            "GatedDeltaNet: query has rows of 513, expected 2 · key_heads · 64 + 4 · 64 as "
            "initial_state has it");
}

}  // namespace
}  // namespace deltaworks

// gated_delta_net and its memory: states in place and in pools, pitched rows, empty calls, inactive capture.
#include "deltaworks/gated_delta_net.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/compare.hpp"
#include "support/gated_delta_net_problem.hpp"
#include "support/targets.hpp"

namespace deltaworks {
namespace {

using testing::Buffer;
using testing::call_gated_delta_net;
using testing::GatedDeltaNetOptions;
using testing::GatedDeltaNetProblem;
using testing::Random;
using testing::same_bits;
using testing::view_of;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class GatedDeltaNetMemory : public testing::OnBackend {};

void expect_states_in_place_and_pools(std::int64_t key_dim, std::int64_t value_dim) {
  Random random(6000);
  GatedDeltaNetOptions options{.cu_seqlens = {0, 3, 5, 5, 9},
                               .key_heads = 1,
                               .heads_per_key = 2,
                               .key_dim = key_dim,
                               .value_dim = value_dim};
  GatedDeltaNetProblem<float> problem(random, options);
  const auto expected = problem.run();
  const std::int64_t size = problem.state_size(), heads = problem.value_heads();
  {
    Buffer<float> state(problem.initial_state), output(problem.tokens() * heads * value_dim);
    auto args = problem.args();
    args.output = output.view<3>({problem.tokens(), heads, value_dim});
    args.final_state = state.view<4>({4, heads, value_dim, key_dim});
    args.initial_state = args.final_state;
    call_gated_delta_net(Cpu{}, args);
    ASSERT_TRUE(same_bits(state.values(), expected.final_state));
  }
  // Sequence 1 is skipped; sequence 3 starts afresh although its slot holds NaN.
  const std::vector<std::int32_t> in{5, -1, 2, 0}, out{1, 3, 4, 6}, fresh{0, 0, 0, 1};
  std::vector<float> pool(7 * size, kNan);
  for (const auto& [b, slot] : {std::pair{0, 5}, std::pair{2, 2}}) {
    std::copy_n(problem.initial_state.begin() + b * size, size, pool.begin() + slot * size);
  }
  Buffer<float> written(7 * size), output(problem.tokens() * heads * value_dim);
  auto args = problem.args();
  args.output = output.view<3>({problem.tokens(), heads, value_dim});
  args.initial_state = view_of<4>(pool, {7, heads, value_dim, key_dim});
  args.final_state = written.view<4>({7, heads, value_dim, key_dim});
  args.slots_in = view_of<1>(in, {4});
  args.slots_out = view_of<1>(out, {4});
  args.fresh = view_of<1>(fresh, {4});
  call_gated_delta_net(Cpu{}, args);
  const auto slot = [&](std::int64_t i) {
    return std::vector<float>(written.data() + i * size, written.data() + (i + 1) * size);
  };
  const auto state = [&](std::int64_t b) {
    return std::vector<float>(expected.final_state.begin() + b * size,
                              expected.final_state.begin() + (b + 1) * size);
  };
  EXPECT_TRUE(same_bits(slot(1), state(0)));
  EXPECT_TRUE(same_bits(slot(4), state(2)));
  EXPECT_TRUE(
      same_bits(slot(6), problem.part(3, 0, 4, std::vector<float>(size)).run().final_state));
  for (const std::int64_t untouched : {0, 2, 3, 5})
    EXPECT_TRUE(std::isnan(slot(untouched)[0])) << untouched;
  for (std::int64_t i = 3 * heads * value_dim; i < 5 * heads * value_dim; ++i)
    EXPECT_EQ(output.data()[i], 0) << i;
}

TEST_P(GatedDeltaNetMemory, StateInPlaceAndPools) {
  expect_states_in_place_and_pools(12, 5);
  expect_states_in_place_and_pools(128, 64);
}

// The packed form and any pitched rows give the bits of dense ones.
TEST_P(GatedDeltaNetMemory, PackedQkvEqualsSeparate) {
  Random random(7000);
  GatedDeltaNetOptions options{
      .cu_seqlens = {0, 6}, .key_heads = 2, .heads_per_key = 2, .key_dim = 10, .value_dim = 6};
  const GatedDeltaNetProblem<Float16> problem(random, options);
  const std::int64_t keys = 20, values = 24, row = 2 * keys + values, pitch = row + 3;
  std::vector<Float16> packed(6 * pitch, from_float<Float16>(kNan));
  for (std::int64_t t = 0; t < 6; ++t) {
    std::copy_n(problem.query.begin() + t * keys, keys, packed.begin() + t * pitch);
    std::copy_n(problem.key.begin() + t * keys, keys, packed.begin() + t * pitch + keys);
    std::copy_n(problem.value.begin() + t * values, values, packed.begin() + t * pitch + 2 * keys);
  }
  Buffer<Float16> output(6 * values);
  Buffer<float> state(problem.state_size());
  auto args = problem.args();
  const auto qkv = split_qkv<const Float16>({packed.data(), {6, row}, pitch}, 2, 10, 4, 6);
  args.query = qkv.query;
  args.key = qkv.key;
  args.value = qkv.value;
  args.output = output.view<3>({6, 4, 6});
  args.final_state = state.view<4>({1, 4, 6, 10});
  call_gated_delta_net(Cpu{}, args);
  const auto separate = problem.run();
  EXPECT_TRUE(same_bits(output.values(), separate.output));
  EXPECT_TRUE(same_bits(state.values(), separate.final_state));
}

TEST_P(GatedDeltaNetMemory, EmptyCallsHandTheStateOn) {
  Random random(8000);
  GatedDeltaNetProblem<float> problem(random, {.cu_seqlens = {0, 0, 0}, .capacity = 2});
  EXPECT_TRUE(same_bits(problem.run().final_state, problem.initial_state));
  EXPECT_EQ(problem.run().state_update, std::vector<float>(2 * problem.update_row()));
  problem.o.initial_state = false;
  EXPECT_EQ(problem.run().final_state, std::vector<float>(2 * problem.state_size()));
  GatedDeltaNetProblem<float> none(random, {.cu_seqlens = {0}});
  EXPECT_TRUE(none.run().output.empty());
}

TEST_P(GatedDeltaNetMemory, InactiveCaptureIsAllZeros) {
  Random random(8100);
  const GatedDeltaNetProblem<float> problem(random, {.cu_seqlens = {0, 5}, .capacity = 3});
  Buffer<float> output(5 * 8), state(64), update(problem.update_row());
  auto args = problem.args();
  args.output = output.view<3>({5, 1, 8});
  args.final_state = state.view<4>({1, 1, 8, 8});
  args.state_update = update.view<2>({1, problem.update_row()});
  args.state_update_active = false;
  call_gated_delta_net(Cpu{}, args);
  EXPECT_EQ(update.values(), std::vector<float>(problem.update_row()));
  EXPECT_TRUE(same_bits(state.values(), problem.run().final_state));
}

INSTANTIATE_TEST_SUITE_P(Targets, GatedDeltaNetMemory, testing::every_backend(),
                         testing::target_name);

}  // namespace
}  // namespace deltaworks

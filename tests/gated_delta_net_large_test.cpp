// gated_delta_net and its replay over states, rows and capsules of more than 2^31 elements: each sequence comes
// out as alone.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "support/compare.hpp"
#include "support/large.hpp"

namespace deltaworks::testing {
namespace {

// A batch of gated_delta_net whose sequences have one length, and each of them as a call of its own.
class LargeDelta {
 public:
  using T = BFloat16;
  static constexpr std::int64_t kKeyHeads = 16, kHeads = 32, kDim = 128, kCapacity = 100;
  static constexpr std::int64_t kState = kHeads * kDim * kDim, kValues = kHeads * kDim,
                                kKeys = kKeyHeads * kDim,
                                kUpdate = kCapacity * (kHeads + kKeys + kValues);

  LargeDelta(Random& random, std::int64_t sequences, std::int64_t length, bool captures)
      : sequences_(sequences),
        length_(length),
        captures_(captures),
        offsets_(offsets(sequences, length)),
        counts_(std::vector<std::int32_t>(static_cast<std::size_t>(sequences), kCapacity - 10)),
        query_(sequences * length * kKeys, random_tile<T>(random)),
        key_(sequences * length * kKeys, random_tile<T>(random)),
        value_(sequences * length * kValues, random_tile<T>(random)),
        gates_(2 * sequences * length * kHeads, random_tile<float>(random)),
        parameters_(2 * kHeads, random_tile<float>(random, 0.5)),
        states_(sequences * kState, random_tile<float>(random, 0.2)),
        outputs_(sequences * length * kValues, poisoned_tile<T>()),
        updates_(captures ? sequences * kUpdate : 1, poisoned_tile<float>()) {}

  std::int64_t values() const { return sequences_ * length_ * kValues; }
  std::int64_t states() const { return sequences_ * kState; }
  std::int64_t updates() const { return captures_ ? sequences_ * kUpdate : 0; }

  // The batch, in place; then that these sequences came out as alone, and that their replay does.
  void expect_equal_alone(const std::vector<std::int64_t>& sequences) {
    std::vector<std::vector<float>> initial;
    for (const std::int64_t b : sequences) initial.push_back(states_.values(b * kState, kState));
    call(0, sequences_, states_.at(0), outputs_.at(0), updates_.at(0));
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const std::int64_t b = sequences[i];
      const OnGpu<float> state(initial[i]), update(kUpdate, poisoned_tile<float>());
      const OnGpu<T> output(length_ * kValues, poisoned_tile<T>());
      call(b, 1, state.at(0), output.at(0), update.at(0));
      EXPECT_TRUE(same_bits(outputs_.values(b * length_ * kValues, length_ * kValues),
                            output.values(0, length_ * kValues)))
          << b;
      EXPECT_TRUE(same_bits(states_.values(b * kState, kState), state.values(0, kState))) << b;
      if (captures_) {
        EXPECT_TRUE(same_bits(updates_.values(b * kUpdate, kUpdate), update.values(0, kUpdate)))
            << b;
      }
    }
  }
  void expect_equal_replays(const std::vector<std::int64_t>& sequences) {
    std::vector<std::vector<float>> initial;
    for (const std::int64_t b : sequences) initial.push_back(states_.values(b * kState, kState));
    replay(0, sequences_, states_.at(0));
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const OnGpu<float> state(initial[i]);
      replay(sequences[i], 1, state.at(0));
      EXPECT_TRUE(same_bits(states_.values(sequences[i] * kState, kState), state.values(0, kState)))
          << sequences[i];
    }
  }

 private:
  static std::vector<std::int32_t> offsets(std::int64_t sequences, std::int64_t length) {
    std::vector<std::int32_t> offsets;
    for (std::int64_t b = 0; b <= sequences; ++b) {
      offsets.push_back(static_cast<std::int32_t>(b * length));
    }
    return offsets;
  }

  void call(std::int64_t first, std::int64_t count, float* states, T* output, float* update) const {
    const std::int64_t tokens = count * length_, at = first * length_;
    const View<float, 4> state(states, {count, kHeads, kDim, kDim});
    GatedDeltaNetArgs<T> args{.query = {query_.at(at * kKeys), {tokens, kKeyHeads, kDim}},
                              .key = {key_.at(at * kKeys), {tokens, kKeyHeads, kDim}},
                              .value = {value_.at(at * kValues), {tokens, kHeads, kDim}},
                              .cu_seqlens = {offsets_.at(0), {count + 1}},
                              .output = {output, {tokens, kHeads, kDim}},
                              .final_state = state,
                              .initial_state = state};
    const float* const beta = gates_.at(sequences_ * length_ * kHeads);
    args.decay = View<const float, 2>(gates_.at(at * kHeads), {tokens, kHeads});
    args.beta = View<const float, 2>(beta + at * kHeads, {tokens, kHeads});
    args.a_log = View<const float, 1>(parameters_.at(0), {kHeads});
    args.dt_bias = View<const float, 1>(parameters_.at(kHeads), {kHeads});
    args.gate_activation = GateActivation::kSoftplus;
    args.beta_activation = BetaActivation::kSigmoid;
    args.qk_l2_norm = true;
    if (captures_) {
      args.capture_count = View<const std::int32_t, 1>(counts_.at(0), {count});
      args.state_update = View<float, 2>(update, {count, kUpdate});
      args.state_update_capacity = kCapacity;
    }
    gated_delta_net(Cuda{}, args);
  }
  void replay(std::int64_t first, std::int64_t count, float* states) const {
    const View<float, 4> state(states, {count, kHeads, kDim, kDim});
    replay_gated_delta_state(Cuda{},
                             {.initial_state = state,
                              .state_update = {updates_.at(first * kUpdate), {count, kUpdate}},
                              .count = {counts_.at(0), {count}},
                              .final_state = state,
                              .key_heads = kKeyHeads,
                              .state_update_capacity = kCapacity});
  }

  std::int64_t sequences_, length_;
  bool captures_;
  OnGpu<std::int32_t> offsets_, counts_;
  OnGpu<T> query_, key_, value_;
  OnGpu<float> gates_, parameters_, states_;
  OnGpu<T> outputs_;
  OnGpu<float> updates_;
};

TEST_F(CudaLarge, DecodingWithStatesBeyondTheBoundary) {
  if (!has_gib(10)) GTEST_SKIP() << needs_gib(10);
  Random random(2);
  LargeDelta batch(random, 4100, 1, false);
  ASSERT_GT(batch.states(), kBoundary);
  batch.expect_equal_alone({0, 4095, 4096, 4099});
}

TEST_F(CudaLarge, VerifyingAndReplayingBeyondTheBoundary) {
  if (!has_gib(36)) GTEST_SKIP() << needs_gib(36);
  Random random(3);
  LargeDelta batch(random, 4100, 129, true);
  ASSERT_GT(batch.states(), kBoundary);
  ASSERT_GT(batch.values(), kBoundary);
  ASSERT_GT(batch.updates(), kBoundary);
  batch.expect_equal_alone({0, 4063, 4064, 4096, 4099});
  batch.expect_equal_replays({0, 4096, 4099});
}

}  // namespace
}  // namespace deltaworks::testing

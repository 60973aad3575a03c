// The bits of gated_delta_net on every instruction set with fma, and on every machine: against each other and against
// stored ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "deltaworks/gated_delta_net.hpp"
#include "support/compare.hpp"
#include "support/gated_delta_net_problem.hpp"
#include "support/targets.hpp"

namespace deltaworks {
namespace {

using testing::GatedDeltaNetProblem;
using testing::Random;
using testing::random_options;
using testing::same_bits;

constexpr int kRounds = 40;

// Multiples of 2^−15 in [−1, 1), which every element type rounds in the same way; the generator of Numerical Recipes.
class Sequence {
 public:
  template <class T>
  void fill(std::vector<T>& values, float scale, float offset) {
    for (T& value : values) {
      state_ = state_ * 1664525u + 1013904223u;
      const auto x = static_cast<float>(state_ >> 16) * 0x1p-15f - 1.0f;
      value = from_float<T>(x * scale + offset);
    }
  }

 private:
  std::uint32_t state_ = 1;
};

// FNV-1a.
class Hash {
 public:
  template <class T>
  void add(const std::vector<T>& values) {
    for (const T& value : values) {
      unsigned char bytes[sizeof(T)];
      std::memcpy(bytes, &value, sizeof(T));
      for (const unsigned char byte : bytes) value_ = (value_ ^ byte) * 0x100000001b3u;
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

// Every form in which tokens pass, whole and ragged shapes, decays per head and per key.
template <class T>
std::uint64_t hash_of_all() {
  Hash hash;
  for (const std::int32_t tokens : {1, 3, 40, 130}) {
    for (const std::int64_t key_dim : {20, 64, 128}) {
      for (const bool per_key : {false, true}) {
        Random random(0);  // for the sizes; the values are replaced
        GatedDeltaNetProblem<T> problem(random, {.cu_seqlens = {0, tokens},
                                                 .heads_per_key = 2,
                                                 .key_dim = key_dim,
                                                 .value_dim = key_dim == 20 ? 7 : 32,
                                                 .capacity = 4,
                                                 .gate_activation = GateActivation::kSoftplus,
                                                 .beta_activation = BetaActivation::kSigmoid,
                                                 .decay_per_key = per_key});
        Sequence sequence;
        sequence.fill(problem.query, 1.0f, 0.0f);
        sequence.fill(problem.key, 1.0f, 0.0f);
        sequence.fill(problem.value, 2.0f, 0.0f);
        sequence.fill(problem.decay, 2.0f, 0.0f);
        sequence.fill(problem.beta, 2.0f, 0.0f);
        sequence.fill(problem.initial_state, 0.25f, 0.0f);
        sequence.fill(problem.a_log, 0.5f, 0.0f);
        sequence.fill(problem.dt_bias, 0.5f, -1.0f);
        problem.capture_count = {4};
        const auto result = problem.run();
        hash.add(result.output);
        hash.add(result.final_state);
        hash.add(result.state_update);
      }
    }
  }
  return hash.value();
}

class GatedDeltaNetBits : public testing::OnTarget {};

// Stored on a Xeon with AVX-512. A change of these is a change of the contract.
TEST_P(GatedDeltaNetBits, AreThoseOfOtherMachines) {
  EXPECT_EQ(hash_of_all<float>(), 0x55ad5e91ac98e7fau);
  EXPECT_EQ(hash_of_all<Float16>(), 0xa4d55faf31e13b1fu);
  EXPECT_EQ(hash_of_all<BFloat16>(), 0x85d388e5a79486d5u);
}

// SSE4 and SCALAR have no fma.
INSTANTIATE_TEST_SUITE_P(Targets, GatedDeltaNetBits, ::testing::Values("AVX2", "AVX3"),
                         testing::target_name);

// Every target with fma gives the same bits.
TEST(GatedDeltaNetBitsOfTargets, Avx2EqualsAvx3) {
  if (!testing::has_target("AVX2") || !testing::has_target("AVX3")) {
    GTEST_SKIP() << "this processor or build lacks AVX2 or AVX3";
  }
  for (int round = 0; round < kRounds; ++round) {
    Random random(10000 + round);
    const GatedDeltaNetProblem<float> problem(random, random_options(random));
    set_cpu_target("AVX2");
    const auto avx2 = problem.run();
    set_cpu_target("AVX3");
    const auto avx3 = problem.run();
    set_cpu_target("");
    ASSERT_TRUE(same_bits(avx3.output, avx2.output)) << "round " << round;
    ASSERT_TRUE(same_bits(avx3.final_state, avx2.final_state));
    ASSERT_TRUE(same_bits(avx3.state_update, avx2.state_update));
  }
}

}  // namespace
}  // namespace deltaworks

// What holds on the GPU alone: values in device memory are never trusted, graphs replay with other
// values, batches may be short; and which bits are the CPU's.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/dflash2_dynamic_conv_case.hpp"
#include "support/gated_delta_rates_case.hpp"
#include "support/refusal.hpp"
#include "support/varlen_causal_conv_case.hpp"

namespace deltaworks::testing {
namespace {

class CudaTest : public OnCuda {};

// run() on the processor instead.
template <class T>
auto run_on_cpu(const ConvCase<T>& c) {
  is_on_cuda() = false;
  auto result = run(Cpu{}, c);
  is_on_cuda() = true;
  return result;
}

TEST(CudaDevice, IsRefusedWhereThereIsNone) {
  if (!cuda_device().empty()) GTEST_SKIP() << "this machine has an NVIDIA GPU";
  Random random(1);
  const auto c = random_case<float>(random, 3, 2, 1, {0, 4});
  ConvBuffers<float> to(c);
  const auto args = args_of(c, to.output.data(), to.final_state.data(), to.state_update.data());
  try {
    varlen_causal_conv(Cuda{}, args);
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "varlen_causal_conv: device is Cuda, expected Cpu: this build has no CUDA");
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("cuda"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(same_bits(to.output.values(), Buffer<float>(c.tokens() * 3).values()));
}

// Shapes are checked on the host, as ever.
TEST_F(CudaTest, BadShapesAreRefused) {
  Random random(2);
  const auto c = random_case<float>(random, 3, 2, 1, {0, 4});
  ConvBuffers<float> to(c);
  auto args = args_of(c, to.output.data(), to.final_state.data(), to.state_update.data());
  args.output = {to.output.data(), {5, 3}};
  EXPECT_EQ(message_of([&] { varlen_causal_conv(Cuda{}, args); }),
            "varlen_causal_conv: output has shape [5, 3], expected [4, 3]");
}

std::int32_t any_int(Random& random) {
  constexpr std::int32_t kEdges[] = {std::numeric_limits<std::int32_t>::min(), -1, 0, 1, 7, 1 << 20,
                                     std::numeric_limits<std::int32_t>::max()};
  return random.integer(0, 1) ? kEdges[random.integer(0, 6)]
                              : static_cast<std::int32_t>(random.integer(-3, 60));
}

// Guards around each operand show a write, compute-sanitizer a read, that leads outside.
TEST_F(CudaTest, NoValueLeadsOutsideTheOperandsOfAConvolution) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    constexpr std::int64_t kChannels[] = {5, 64, 136};
    const bool is_dynamic = round % 4 == 3;
    const auto offsets = random.cu_seqlens(random.integer(1, 5), 0, 12);
    auto c = is_dynamic ? random_dynamic_case<BFloat16>(random, offsets)
                        : random_case<BFloat16>(random, kChannels[round % 3], random.integer(1, 5),
                                                random.integer(1, 2), offsets);
    const std::int64_t tokens = c.tokens();
    for (std::int64_t b = 0; b < c.sequences(); ++b) {
      c.slots_in.push_back(any_int(random)), c.slots_out.push_back(any_int(random));
      c.counts.push_back(any_int(random)), c.fresh.push_back(any_int(random));
    }
    c.capacity = random.integer(0, 5);
    ConvBuffers<BFloat16> to(c);
    auto args = args_of(c, to.output.data(), to.final_state.data(), to.state_update.data());
    std::vector<std::int32_t> hostile;
    for (std::int64_t b = 0; b <= c.sequences(); ++b) hostile.push_back(any_int(random));
    args.cu_seqlens = view_of<1>(hostile, {c.sequences() + 1});
    args.input = view_of<2>(c.input, {tokens, c.channels});
    const auto faults = run_on_gpu(
        args, [](const Cuda& device, const auto& call) { varlen_causal_conv(device, call); });
    bool is_in_order = hostile.front() == 0 && hostile.back() <= tokens;
    for (std::size_t b = 1; b < hostile.size(); ++b) {
      is_in_order = is_in_order && hostile[b] >= hostile[b - 1];
    }
    EXPECT_EQ((faults & kCudaOffsets) == 0, is_in_order);
    bool is_pooled = true;
    for (const auto& slots : {c.slots_in, c.slots_out}) {
      for (const std::int32_t slot : slots) is_pooled = is_pooled && slot < c.slots;
    }
    EXPECT_EQ((faults & kCudaSlots) == 0, is_pooled);
  }
}

TEST_F(CudaTest, NoCountLeadsOutsideTheOperandsOfAReplay) {
  Random random(4);
  for (int round = 0; round < 60; ++round) {
    const std::int64_t sequences = random.integer(1, 4), channels = round % 2 ? 24 : 7;
    const std::int64_t capacity = random.integer(1, 6), history = random.integer(1, 5);
    const auto state = random.normal<Float16>(sequences * channels * history);
    const auto update = random.normal<Float16>(sequences * capacity * channels);
    std::vector<std::int32_t> counts, clamped;
    for (std::int64_t b = 0; b < sequences; ++b) {
      counts.push_back(any_int(random));
      clamped.push_back(std::clamp<std::int32_t>(counts.back(), 0, static_cast<int>(capacity)));
    }
    Buffer<Float16> to(std::ssize(state)), expected(std::ssize(state));
    ReplayConvStateArgs<Float16> args{
        .initial_state = view_of<3>(state, {sequences, channels, history}),
        .state_update = view_of<3>(update, {sequences, capacity, channels}),
        .count = view_of<1>(clamped, {sequences}),
        .final_state = expected.view<3>({sequences, channels, history})};
    replay_conv_state(Cpu{}, args);
    args.count = view_of<1>(counts, {sequences});
    args.final_state = to.view<3>({sequences, channels, history});
    const auto faults = run_on_gpu(
        args, [](const Cuda& device, const auto& call) { replay_conv_state(device, call); });
    EXPECT_TRUE(same_bits(to.values(), expected.values()));
    EXPECT_EQ(faults, counts == clamped ? 0 : kCudaCounts);
  }
}

// Per head and per key, wide loads and narrow ones, against the definition.
TEST_F(CudaTest, ReplayOfAStateIsAChainOfMultiplyAdds) {
  Random random(5);
  for (int round = 0; round < 60; ++round) {
    const std::int64_t sequences = random.integer(1, 3), key_heads = random.integer(1, 2);
    const std::int64_t heads = key_heads * random.integer(1, 3), capacity = random.integer(1, 8);
    constexpr std::int64_t kDims[] = {1, 3, 8, 20, 128};
    const std::int64_t key_dim = kDims[random.integer(0, 4)],
                       value_dim = kDims[random.integer(0, 4)];
    const bool per_key = key_dim > 1 && random.integer(0, 1) != 0;
    const std::int64_t decays = heads * (per_key ? key_dim : 1);
    const std::int64_t row = capacity * (decays + key_heads * key_dim + heads * value_dim);
    const std::int64_t state_size = heads * value_dim * key_dim;
    auto expected = random.normal<float>(sequences * state_size);
    const auto update = random.normal<float>(sequences * row, 0.7);
    std::vector<std::int32_t> counts;
    for (std::int64_t b = 0; b < sequences; ++b) {
      counts.push_back(static_cast<std::int32_t>(random.integer(-1, capacity + 1)));
    }
    Buffer<float> state(expected);
    const auto view = state.view<4>({sequences, heads, value_dim, key_dim});
    ReplayGatedDeltaStateArgs args{.initial_state = view,
                                   .state_update = view_of<2>(update, {sequences, row}),
                                   .count = view_of<1>(counts, {sequences}),
                                   .final_state = view,
                                   .key_heads = key_heads,
                                   .state_update_capacity = capacity};
    GpuOperands operands;
    for_each_view(args, [&](auto& operand) { operands.add(operand); });
    operands.place();
    replay_gated_delta_state(Cuda{}, args);
    operands.take_back();
    for (std::int64_t i = 0; i < std::ssize(expected); ++i) {
      const std::int64_t b = i / state_size, key = i % key_dim, value = i / key_dim % value_dim;
      const std::int64_t head = i / (key_dim * value_dim) % heads;
      const std::int64_t count = counts[static_cast<std::size_t>(b)];
      for (std::int64_t slot = 0; slot < std::min(capacity, count); ++slot) {
        const float* const decay = update.data() + b * row + slot * decays;
        const float* const keys = update.data() + b * row + capacity * decays +
                                  (slot * key_heads + head / (heads / key_heads)) * key_dim;
        const float* const deltas = update.data() + b * row +
                                    capacity * (decays + key_heads * key_dim) +
                                    (slot * heads + head) * value_dim;
        float& x = expected[static_cast<std::size_t>(i)];
        x = std::fma(keys[key], deltas[value], x * decay[per_key ? head * key_dim + key : head]);
      }
    }
    ASSERT_TRUE(same_bits(state.values(), expected))
        << key_dim << " " << value_dim << " " << per_key;
  }
}

// One graph serves batches of other lengths, fills and counts in the same memory; rows behind the last
// offset are left alone.
TEST_F(CudaTest, AGraphReplaysWithOtherValues) {
  Random random(6);
  constexpr std::int64_t kSequences = 4, kTokens = 70;
  auto c = random_case<BFloat16>(random, 48, 4, 1, {0, 20, 40, 60, 70});
  c.capacity = 3;
  c.counts = {0, 0, 0, 0};
  ConvBuffers<BFloat16> to(c);
  auto args = args_of(c, to.output.data(), to.final_state.data(), to.state_update.data());
  GpuOperands operands;
  for_each_view(args, [&](auto& view) { operands.add(view); });
  operands.place();
  gpu::Graph graph([&](CUstream_st* stream) { varlen_causal_conv(Cuda{stream}, args); });
  for (int round = 0; round < 20; ++round) {
    auto batch = c;
    batch.cu_seqlens = {0};
    for (std::int64_t b = 0; b < kSequences; ++b) {
      batch.cu_seqlens.push_back(static_cast<std::int32_t>(
          random.integer(batch.cu_seqlens.back(), b == 0 ? kTokens / 2 : kTokens)));
      batch.counts[static_cast<std::size_t>(b)] = static_cast<std::int32_t>(random.integer(-1, 4));
    }
    upload(args.cu_seqlens, batch.cu_seqlens), upload(*args.capture_count, batch.counts);
    const std::vector<BFloat16> poisoned(static_cast<std::size_t>(kTokens * 48),
                                         poison<BFloat16>());
    gpu::copy(args.output.data(), poisoned.data(), poisoned.size() * sizeof(BFloat16));
    graph.launch();
    operands.take_back_written();
    batch.input.resize(static_cast<std::size_t>(batch.tokens() * 48));
    auto expected = run(Cpu{}, batch);
    expected.output.resize(poisoned.size(), poison<BFloat16>());
    ASSERT_TRUE(same_bits(to.result(), expected)) << round;
  }
}

TEST_F(CudaTest, AGraphOfAReplayTakesOtherCounts) {
  Random random(10);
  constexpr std::int64_t kSequences = 3, kChannels = 24, kHistory = 3, kCapacity = 4;
  const auto state = random.normal<BFloat16>(kSequences * kChannels * kHistory);
  const auto update = random.normal<BFloat16>(kSequences * kCapacity * kChannels);
  std::vector<std::int32_t> counts(kSequences);
  Buffer<BFloat16> to(std::ssize(state)), expected(std::ssize(state));
  const ReplayConvStateArgs<BFloat16> on_cpu{
      .initial_state = view_of<3>(state, {kSequences, kChannels, kHistory}),
      .state_update = view_of<3>(update, {kSequences, kCapacity, kChannels}),
      .count = view_of<1>(counts, {kSequences}),
      .final_state = expected.view<3>({kSequences, kChannels, kHistory})};
  auto args = on_cpu;
  args.final_state = to.view<3>({kSequences, kChannels, kHistory});
  GpuOperands operands;
  for_each_view(args, [&](auto& view) { operands.add(view); });
  operands.place();
  gpu::Graph graph([&](CUstream_st* stream) { replay_conv_state(Cuda{stream}, args); });
  for (int round = 0; round < 10; ++round) {
    for (std::int32_t& count : counts)
      count = static_cast<std::int32_t>(random.integer(0, kCapacity));
    upload(args.count, counts);
    graph.launch();
    operands.take_back_written();
    replay_conv_state(Cpu{}, on_cpu);
    ASSERT_TRUE(same_bits(to.values(), expected.values())) << round;
  }
}

template <class T>
void expect_bits_of_the_cpu(Random& random, ConvActivation activation) {
  for (int round = 0; round < 20; ++round) {
    auto c = random_case<T>(random, round % 2 ? 40 : 64, random.integer(1, 5), random.integer(1, 2),
                            random.cu_seqlens(3, 0, 60));
    c.activation = activation;
    ASSERT_TRUE(same_bits(run(Cpu{}, c), run_on_cpu(c)));
  }
}

bool has_fma() { return cpu_target() == "AVX2" || cpu_target() == "AVX3"; }

// So many rows that blocks take more of them; sequences end anywhere, one is skipped.
TEST_F(CudaTest, LongConvolutionsHaveTheBitsOfTheCpu) {
  if (!has_fma()) GTEST_SKIP() << "this processor has no fma";
  Random random(9);
  for (const std::int64_t width : {2, 3, 4}) {
    auto c = random_case<float>(random, 64, width, 1, random.cu_seqlens(9, 3700, 9000));
    c.activation = ConvActivation::kSilu;
    c.slots_in = c.slots_out = {0, 1, -1, 3, 4, 5, 6, 7, 8};
    ASSERT_TRUE(same_bits(run(Cpu{}, c), run_on_cpu(c))) << width;
  }
}

TEST_F(CudaTest, ConvolutionsHaveTheBitsOfTheCpu) {
  if (!has_fma()) GTEST_SKIP() << "this processor has no fma";
  Random random(7);
  expect_bits_of_the_cpu<float>(random, ConvActivation::kSilu);
  expect_bits_of_the_cpu<float>(random, ConvActivation::kNone);
  expect_bits_of_the_cpu<Float16>(random, ConvActivation::kNone);
  expect_bits_of_the_cpu<BFloat16>(random, ConvActivation::kNone);
}

// Sixteen bits and silu: the neighbouring number at most, unless the result is no more than 2^-118.
template <class T>
void expect_neighbours_of_the_cpu(Random& random) {
  auto c = random_case<T>(random, 64, 4, 1, {0, 100, 300});
  c.activation = ConvActivation::kSilu;
  for (T& x : c.input) x = from_float<T>(to_float(x) * static_cast<float>(random.integer(1, 40)));
  const auto expected = run_on_cpu(c).output, actual = run(Cpu{}, c).output;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const float is = to_float(actual[i]), wanted = to_float(expected[i]);
    if (std::abs(wanted) <= 0x1p-118f && std::abs(is) <= 0x1p-118f) continue;
    ASSERT_LE(std::abs(actual[i].bits - expected[i].bits), 1) << is << ", expected " << wanted;
  }
}

TEST_F(CudaTest, SiluInSixteenBitsIsOneUnitAwayAtMost) {
  if (!has_fma()) GTEST_SKIP() << "this processor has no fma";
  Random random(8);
  expect_neighbours_of_the_cpu<Float16>(random);
  expect_neighbours_of_the_cpu<BFloat16>(random);
}

}  // namespace
}  // namespace deltaworks::testing

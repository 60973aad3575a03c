// The chunked engine of gated_delta_net on the GPU, for sequences of more than 16 tokens in 16-bit calls that do not
// capture: values against the float64 reference, its own laws of bits, what it leaves to the recurrent engine.
// Longer than 300 lines: every law of one engine, so that none is looked for elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "reference/gated_delta_net.hpp"
#include "support/compare.hpp"
#include "support/cuda.hpp"
#include "support/gated_delta_net_problem.hpp"

namespace deltaworks::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int32_t kChunk = 64, kLongestRecurrent = 16;

class CudaGatedDeltaNetChunked : public OnCuda {
 protected:
  void SetUp() override {
    OnCuda::SetUp();
    if (!IsSkipped() && gpu::compute_capability() != 90) {
      GTEST_SKIP() << "needs a GPU of compute capability 9.0";
    }
  }
};

using Offsets = std::vector<std::int32_t>;

GatedDeltaNetOptions chunked_options(const Offsets& cu_seqlens) {
  return {.cu_seqlens = cu_seqlens,
          .key_heads = 2,
          .heads_per_key = 2,
          .key_dim = 128,
          .value_dim = 128,
          .gate_activation = GateActivation::kSoftplus,
          .beta_activation = BetaActivation::kSigmoid,
          .engine = Engine::kAuto};
}

template <class T, class G>
std::int64_t row_of(const GatedDeltaNetProblem<T, G>& problem) {
  return problem.value_heads() * problem.o.value_dim;
}

template <class T>
std::vector<T> slice(const std::vector<T>& all, std::int64_t from, std::int64_t size) {
  return {all.begin() + from, all.begin() + from + size};
}

// Whether sequence b of a batch has the bits of `alone`.
template <class T>
void expect_sequence(const GatedDeltaNetProblem<T>& problem, const GatedDeltaNetOutputs<T>& batch,
                     std::int64_t b, const GatedDeltaNetOutputs<T>& alone) {
  const std::int64_t row = row_of(problem), size = problem.state_size();
  const std::int64_t start = problem.o.cu_seqlens[static_cast<std::size_t>(b)];
  ASSERT_TRUE(same_bits(slice(batch.output, start * row, std::ssize(alone.output)), alone.output))
      << "sequence " << b;
  ASSERT_TRUE(same_bits(slice(batch.final_state, b * size, size), alone.final_state))
      << "sequence " << b;
}

template <class T>
GatedDeltaNetOutputs<T> run_alone(const GatedDeltaNetProblem<T>& problem, std::int64_t b) {
  const auto i = static_cast<std::size_t>(b);
  const std::int32_t length = problem.o.cu_seqlens[i + 1] - problem.o.cu_seqlens[i];
  return problem.part(b, 0, length, problem.state_of(b)).run();
}

template <class X>
double relative_error(const X& actual, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = static_cast<double>(to_float(actual[i])) - expected[i];
    difference += error * error;
    norm += expected[i] * expected[i];
  }
  return std::sqrt(difference / norm);
}

// flash-linear-attention's chunked kernel, measured the same way in bfloat16: 4.5e-3 and 3.6e-3.
template <class T, class G>
void expect_exact_enough(const GatedDeltaNetProblem<T, G>& problem) {
  const double unit = std::is_same_v<T, BFloat16> ? 1 : 0.125;
  const auto expected = reference::gated_delta_net(problem.args());
  const auto actual = problem.run();
  ASSERT_LT(relative_error(actual.output, expected.output), 1.2 * 4.5e-3 * unit);
  ASSERT_LT(relative_error(actual.final_state, expected.final_state), 1.2 * 3.6e-3 * unit);
}

// Any rule, gates, norm and shape that the engine serves, with keys of a length near one.
template <class T, class G>
void expect_exact_enough(std::uint64_t stream, const Offsets& offsets) {
  Random random(stream);
  auto options = chunked_options(offsets);
  options.key_heads = offsets.back() > 500 ? 1 : random.integer(1, 2);
  options.heads_per_key = random.integer(1, 3);
  options.value_dim = kChunk * random.integer(1, 3);
  options.update_rule = static_cast<UpdateRule>(random.integer(0, 3));
  options.gate_activation = GateActivation::kNone;
  if (options.update_rule == UpdateRule::kGated || options.update_rule == UpdateRule::kGatedDelta) {
    options.gate_activation = static_cast<GateActivation>(random.integer(0, 2));
  }
  options.beta_activation = static_cast<BetaActivation>(random.integer(0, 1));
  options.qk_l2_norm = random.integer(0, 2) > 0;
  options.initial_state = random.integer(0, 1) == 0;
  options.scale = random.integer(0, 2) == 0 ? 0.37f : 0.0f;
  GatedDeltaNetProblem<T, G> problem(random, options);
  if (!options.qk_l2_norm) {
    problem.key = random.normal<T>(std::ssize(problem.key), std::sqrt(1 / 128.0));
  }
  SCOPED_TRACE(::testing::Message() << "rule " << static_cast<int>(options.update_rule) << ", gate "
                                    << static_cast<int>(options.gate_activation) << ", norm "
                                    << options.qk_l2_norm << ", " << offsets.back() << " tokens");
  expect_exact_enough(problem);
}

TEST_F(CudaGatedDeltaNetChunked, IsAsExactAsItsType) {
  const Offsets batches[] = {{0, 17},  {0, 63},   {0, 64},         {0, 65},
                             {0, 128}, {0, 1000}, {0, 63, 63, 80}, {0, 5, 200, 216, 300}};
  int round = 0;
  for (const Offsets& offsets : batches) {
    for (int i = 0; i < 3; ++i, ++round) {
      ASSERT_NO_FATAL_FAILURE((expect_exact_enough<BFloat16, float>(9000 + round, offsets)));
      ASSERT_NO_FATAL_FAILURE((expect_exact_enough<Float16, float>(9100 + round, offsets)));
    }
    ASSERT_NO_FATAL_FAILURE((expect_exact_enough<BFloat16, BFloat16>(9200 + round, offsets)));
    ASSERT_NO_FATAL_FAILURE((expect_exact_enough<Float16, Float16>(9300 + round, offsets)));
  }
}

// Decays from none to total, in any pattern.
TEST_F(CudaGatedDeltaNetChunked, SurvivesStrongDecays) {
  constexpr float kDecays[] = {0, -1e-3f, -0.3f, -5, -100, -1000, -3e38f, -kInfinity};
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(round);
    Random random(9400 + round);
    auto options = chunked_options({0, 150});
    options.gate_activation = GateActivation::kNone;
    GatedDeltaNetProblem<BFloat16> problem(random, options);
    const std::int64_t most = round % 2 == 0 ? 7 : 3;
    for (float& decay : problem.decay) decay = kDecays[random.integer(0, most)];
    ASSERT_NO_FATAL_FAILURE(expect_exact_enough(problem));
  }
}

// Gates at the ends of their range: numbers never give NaN.
TEST_F(CudaGatedDeltaNetChunked, ExtremeGatesGiveNoNan) {
  constexpr float kExtremes[] = {-kInfinity, -3e38f, -1000, -1e-40f, 0, 1e-40f, 1000, 3e38f};
  for (const auto gate : {GateActivation::kSoftplus, GateActivation::kSigmoid}) {
    Random random(9500);
    auto options = chunked_options({0, 80});
    options.gate_activation = gate;
    GatedDeltaNetProblem<BFloat16> problem(random, options);
    // Without an infinity, which the reference multiplies with the exp(a_log) that is 0.
    for (float& decay : problem.decay) decay = kExtremes[random.integer(1, 7)];
    for (float& beta : problem.beta) beta = kExtremes[random.integer(0, 7)];
    for (float& a_log : problem.a_log) a_log = kExtremes[random.integer(0, 7)];
    ASSERT_NO_FATAL_FAILURE(expect_exact_enough(problem));
  }
}

// With the norm, the length of a key or query matters little: rows whose squares leave the range of float, or of half.
template <class T>
void expect_norms_to_hold(float large, float small) {
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    Random random(9600 + round);
    GatedDeltaNetProblem<T> problem(random, chunked_options({0, 100}));
    const float factors[] = {1, large, small, 0};
    for (auto* rows : {&problem.key, &problem.query}) {
      for (std::size_t row = 0; row < rows->size(); row += 128) {
        const float factor = factors[random.integer(0, 3)];
        for (std::size_t i = row; i < row + 128; ++i) {
          (*rows)[i] = from_float<T>(to_float((*rows)[i]) * factor);
        }
      }
    }
    ASSERT_NO_FATAL_FAILURE(expect_exact_enough(problem));
  }
}

TEST_F(CudaGatedDeltaNetChunked, KeysOfAnyLengthAreNormalised) {
  expect_norms_to_hold<BFloat16>(1e20f, 1e-20f);
  expect_norms_to_hold<BFloat16>(1e30f, 1e-5f);
  expect_norms_to_hold<Float16>(26, 1e-4f);
  expect_norms_to_hold<Float16>(8000, 1e-7f);
}

// A split at a multiple of the chunk changes no bit, where both parts are long enough for the engine.
TEST_F(CudaGatedDeltaNetChunked, ChunksCountFromTheStartOfTheirSequence) {
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE(round);
    Random random(9700 + round);
    auto options = chunked_options({0, 30, 30});
    options.cu_seqlens[2] += static_cast<std::int32_t>(random.integer(81, 400));
    const GatedDeltaNetProblem<BFloat16> problem(random, options);
    const std::int64_t row = row_of(problem), length = problem.tokens() - 30;
    const auto whole = problem.run();
    auto state = problem.state_of(1);
    for (std::int64_t first = 0; first < length;) {
      std::int64_t count = kChunk * random.integer(1, 3);
      if (length - first - count <= kLongestRecurrent) count = length - first;
      const auto part = problem.part(1, first, count, state).run();
      ASSERT_TRUE(same_bits(part.output, slice(whole.output, (30 + first) * row, count * row)))
          << first;
      state = part.final_state;
      first += count;
    }
    const std::int64_t size = problem.state_size();
    ASSERT_TRUE(same_bits(state, slice(whole.final_state, size, size)));
  }
}

// Packed equals alone.
void expect_no_change_by_neighbours(Random& random, const Offsets& cu_seqlens) {
  auto options = chunked_options(cu_seqlens);
  options.key_heads = options.heads_per_key = 1;
  options.value_dim = kChunk;
  const GatedDeltaNetProblem<BFloat16> problem(random, options);
  const auto batch = problem.run();
  const std::int64_t sequences = problem.sequences(), step = sequences > 100 ? 7 : 1;
  for (std::int64_t b = (sequences - 1) % step; b < sequences; b += step) {
    ASSERT_NO_FATAL_FAILURE(expect_sequence(problem, batch, b, run_alone(problem, b)));
  }
  for (const BFloat16 x : batch.output) ASSERT_FALSE(std::isnan(to_float(x)));
  for (const float x : batch.final_state) ASSERT_FALSE(std::isnan(x));
}

// Whatever the number of sequences, and so the order that the kernel takes them in.
TEST_F(CudaGatedDeltaNetChunked, NeighboursChangeNoBit) {
  for (const std::int64_t sequences : {2, 31, 33, 257, 600}) {
    SCOPED_TRACE(sequences);
    Random random(9800 + sequences);
    expect_no_change_by_neighbours(random,
                                   random.cu_seqlens(sequences, 0, sequences > 100 ? 90 : 400));
  }
  // No more tokens than sequences, as in a step of one token each.
  Offsets offsets(20, 0);
  offsets.insert(offsets.end(), 20, 30);
  Random random(9890);
  expect_no_change_by_neighbours(random, offsets);
}

// Pools, in place: a long sequence without a slot leaves zeros, a fresh one does not read its slot, and both leave their
// neighbours their bits.
TEST_F(CudaGatedDeltaNetChunked, PoolsAndFreshSlots) {
  Random random(9900);
  GatedDeltaNetProblem<BFloat16> problem(random, chunked_options({0, 40, 90, 130, 180, 185}));
  const std::int64_t row = row_of(problem), size = problem.state_size();
  const std::vector<std::int32_t> slots{2, -1, 0, 5, 3}, fresh{0, 0, 1, 0, 0};
  Buffer<float> pool(6 * size);  // poisoned: slot 0, which a fresh sequence takes
  for (const std::int64_t b : {0, 3, 4}) {
    std::copy_n(problem.initial_state.begin() + b * size, size,
                pool.data() + slots[static_cast<std::size_t>(b)] * size);
  }
  Buffer<BFloat16> output(problem.tokens() * row);
  auto args = problem.args();
  args.output = output.view<3>({problem.tokens(), problem.value_heads(), 128});
  args.final_state = pool.view<4>({6, problem.value_heads(), 128, 128});
  args.initial_state = args.final_state;
  args.slots_in = view_of<1>(slots, {5});
  args.slots_out = view_of<1>(slots, {5});
  args.fresh = view_of<1>(fresh, {5});
  call_gated_delta_net(Cpu{}, args);
  std::fill_n(problem.initial_state.begin() + 2 * size, size, 0.0f);
  auto expected = problem.run();
  std::fill_n(expected.output.begin() + 40 * row, 50 * row, BFloat16{});
  EXPECT_TRUE(same_bits(output.values(), expected.output));
  const auto states = pool.values();
  for (const std::int64_t b : {0, 2, 3, 4}) {
    const std::int64_t slot = slots[static_cast<std::size_t>(b)];
    EXPECT_TRUE(
        same_bits(slice(states, slot * size, size), slice(expected.final_state, b * size, size)))
        << b;
  }
  for (const std::int64_t slot : {1, 4}) {
    for (const float x : slice(states, slot * size, size)) ASSERT_TRUE(std::isnan(x));
  }
}

// A token that is not finite changes no bit before it, in its own chunk either, nor of a neighbour; and reaches no more
// than the recurrence would let it.
template <class T>
void expect_causal(std::int64_t bad, float poison) {
  Random random(10000 + bad);
  const GatedDeltaNetProblem<T> clean(random, chunked_options({0, 20, 150, 190}));
  const auto expected = clean.run();
  const std::int64_t heads = clean.value_heads(), row = heads * 128, at = 20 + bad;
  const auto not_finite = [](const auto& values) {
    return std::count_if(values.begin(), values.end(),
                         [](auto x) { return !std::isfinite(to_float(x)); });
  };
  for (int which = 0; which < 5; ++which) {
    SCOPED_TRACE(which);
    if (which == 4 && poison < 0) continue;  // a total decay
    auto problem = clean;
    if (which == 0) problem.query[at * 256 + 5] = from_float<T>(poison);
    if (which == 1) problem.key[at * 256 + 5] = from_float<T>(poison);
    if (which == 2) problem.value[at * row + 5] = from_float<T>(poison);
    if (which > 2) (which == 3 ? problem.beta : problem.decay)[at * heads] = kNan;
    const auto actual = problem.run();
    ASSERT_TRUE(same_bits(slice(actual.output, 0, at * row), slice(expected.output, 0, at * row)));
    ASSERT_TRUE(same_bits(slice(actual.output, 150 * row, 40 * row),
                          slice(expected.output, 150 * row, 40 * row)));
    // The query of one key head: two heads' outputs; a key: from there on; a value: one row; a gate: one head.
    const std::int64_t late = 130 - bad;
    const std::int64_t outputs[] = {2 * 128, late * 2 * 128, late, late * 128, late * 128};
    const std::int64_t states[] = {0, 2 * 128 * 128, 128, 128 * 128, 128 * 128};
    EXPECT_EQ(not_finite(actual.output), outputs[which]);
    EXPECT_EQ(not_finite(actual.final_state), states[which]);
  }
}

TEST_F(CudaGatedDeltaNetChunked, IsCausalToTheBit) {
  for (const std::int64_t bad : {0, 1, 63, 70, 128, 129}) {
    SCOPED_TRACE(bad);
    for (const float poison : {kNan, kInfinity, -kInfinity}) {
      expect_causal<BFloat16>(bad, poison);
      expect_causal<Float16>(bad, poison);
    }
  }
}

// Rows as slices of a packed matrix of `pitch` spare columns, from element `offset` on.
void expect_no_change_by_place(std::int64_t pitch, std::int64_t offset) {
  SCOPED_TRACE(::testing::Message() << "pitch " << pitch << ", offset " << offset);
  Random random(10100);
  const GatedDeltaNetProblem<BFloat16> problem(random, chunked_options({0, 70, 75, 175}));
  const std::int64_t tokens = problem.tokens(), row = row_of(problem), keys = 2 * 128;
  const std::int64_t stride = 2 * keys + row + pitch;
  std::vector<BFloat16> packed(static_cast<std::size_t>(offset + tokens * stride),
                               from_float<BFloat16>(kNan));
  for (std::int64_t t = 0; t < tokens; ++t) {
    auto to = packed.begin() + offset + t * stride;
    to = std::copy_n(problem.query.begin() + t * keys, keys, to);
    to = std::copy_n(problem.key.begin() + t * keys, keys, to);
    std::copy_n(problem.value.begin() + t * row, row, to);
  }
  Buffer<BFloat16> output(offset + tokens * (row + pitch));
  Buffer<float> final_state(offset + 3 * problem.state_size());
  auto args = problem.args();
  const BFloat16* const first = packed.data() + offset;
  args.query = {first, args.query.extents(), stride};
  args.key = {first + keys, args.key.extents(), stride};
  args.value = {first + 2 * keys, args.value.extents(), stride};
  args.output = {output.data() + offset, args.value.extents(), row + pitch};
  args.final_state = {final_state.data() + offset, {3, problem.value_heads(), 128, 128}};
  call_gated_delta_net(Cpu{}, args);
  const auto expected = problem.run();
  for (std::int64_t t = 0; t < tokens; ++t) {
    ASSERT_TRUE(same_bits(slice(output.values(), offset + t * (row + pitch), row),
                          slice(expected.output, t * row, row)))
        << "token " << t;
  }
  const auto states = final_state.values();
  ASSERT_TRUE(same_bits(slice(states, offset, std::ssize(states) - offset), expected.final_state));
}

TEST_F(CudaGatedDeltaNetChunked, PlacesOfOperandsChangeNoBit) {
  for (const std::int64_t pitch : {0, 8, 1, 4}) {
    for (const std::int64_t offset : {0, 1, 4, 8}) expect_no_change_by_place(pitch, offset);
  }
}

// One graph serves batches whose sequences are long, short or empty.
TEST_F(CudaGatedDeltaNetChunked, AGraphReplaysWithOtherOffsets) {
  Random random(10200);
  GatedDeltaNetProblem<BFloat16> problem(random, chunked_options({0, 100, 200, 300}));
  Buffer<BFloat16> output(300 * row_of(problem));
  Buffer<float> state(3 * problem.state_size());
  auto args = problem.args();
  args.output = output.view<3>({300, problem.value_heads(), 128});
  args.final_state = state.view<4>({3, problem.value_heads(), 128, 128});
  GpuOperands operands;
  for_each_view(args, [&](auto& view) { operands.add(view); });
  operands.place();
  gpu::Graph graph([&](CUstream_st* stream) { gated_delta_net(Cuda{stream}, args); });
  for (const Offsets& offsets :
       {Offsets{0, 100, 200, 300}, {0, 16, 33, 300}, {0, 0, 300, 300}, {0, 284, 299, 300}}) {
    problem.o.cu_seqlens = offsets;
    upload(args.cu_seqlens, offsets);
    graph.launch();
    operands.take_back_written();
    const auto expected = problem.run();
    ASSERT_TRUE(same_bits(output.values(), expected.output)) << offsets[1];
    ASSERT_TRUE(same_bits(state.values(), expected.final_state)) << offsets[1];
  }
}

// Guards around each operand show a write, compute-sanitizer a read, that leads outside.
TEST_F(CudaGatedDeltaNetChunked, NoValueLeadsOutsideTheOperands) {
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min(),
                         kMost = std::numeric_limits<std::int32_t>::max();
  Random random(10300);
  const GatedDeltaNetProblem<BFloat16> problem(random, chunked_options({0, 60, 100}));
  for (const Offsets& offsets : {Offsets{0, 1 << 30, 100},
                                 {-5, 1, 100},
                                 {0, 100, 1},
                                 {kLeast, 1, kMost},
                                 {kMost, kLeast, 100}}) {
    for (const std::vector<std::int32_t>& slots :
         {std::vector<std::int32_t>{0, 1}, {0, 1 << 30}, {kLeast, 2}}) {
      Buffer<BFloat16> output(100 * row_of(problem));
      Buffer<float> state(problem.initial_state);
      auto args = problem.args();
      args.cu_seqlens = view_of<1>(offsets, {3});
      args.output = output.view<3>({100, problem.value_heads(), 128});
      args.final_state = state.view<4>({2, problem.value_heads(), 128, 128});
      args.initial_state = args.final_state;
      args.slots_in = view_of<1>(slots, {2});
      args.slots_out = view_of<1>(slots, {2});
      const auto faults = run_on_gpu(
          args, [](const Cuda& device, const auto& call) { gated_delta_net(device, call); });
      EXPECT_EQ(faults, kCudaOffsets | (slots[1] > 1 ? kCudaSlots : 0)) << offsets[1];
    }
  }
}

template <class T>
GatedDeltaNetOutputs<T> run_with(GatedDeltaNetProblem<T> problem, Engine engine) {
  problem.o.engine = engine;
  return problem.run();
}

TEST_F(CudaGatedDeltaNetChunked, TheCallerChooses) {
  Random random(10400);
  const GatedDeltaNetProblem<BFloat16> problem(random, chunked_options({0, 100}));
  const auto chunked = run_with(problem, Engine::kChunked);
  const auto recurrent = run_with(problem, Engine::kRecurrent);
  EXPECT_EQ(run_with(problem, Engine::kAuto), chunked);
  EXPECT_NE(chunked, recurrent) << "this build has no code for sm_90a";
  auto state = problem.initial_state;
  for (std::int64_t t = 0; t < 100; t += 25) {  // long enough for the other engine
    state = run_with(problem.part(0, t, 25, state), Engine::kRecurrent).final_state;
  }
  EXPECT_TRUE(same_bits(state, recurrent.final_state));
}

// What the engine does not serve has the recurrent one's bits.
TEST_F(CudaGatedDeltaNetChunked, LeavesTheRestToTheRecurrentEngine) {
  const auto long_enough = chunked_options({0, 40, 100});
  auto captures = long_enough, per_key = long_enough, narrow = long_enough,
       short_keys = long_enough;
  captures.capacity = 2;
  per_key.decay_per_key = true;
  narrow.value_dim = 96;
  short_keys.key_dim = 64;
  const auto is_short = chunked_options({0, 16, 20, 36});
  int round = 0;
  for (const auto& options : {captures, per_key, narrow, short_keys, is_short}) {
    SCOPED_TRACE(round);
    Random random(10500 + round++);
    const GatedDeltaNetProblem<BFloat16> problem(random, options);
    EXPECT_EQ(run_with(problem, Engine::kChunked), run_with(problem, Engine::kRecurrent));
  }
  Random random(10600);
  const GatedDeltaNetProblem<float> wide(random, long_enough);
  EXPECT_EQ(run_with(wide, Engine::kChunked), run_with(wide, Engine::kRecurrent));
}

// A call that could capture and does not: long sequences are this engine's, capsules become zeros.
TEST_F(CudaGatedDeltaNetChunked, InactiveCapsulesBecomeZeros) {
  Random random(10700);
  GatedDeltaNetProblem<BFloat16> problem(random, chunked_options({0, 40, 45}));
  const auto expected = problem.run();
  problem.o.capacity = 3;
  problem.capture_count = {2, 3};
  Buffer<BFloat16> output(45 * row_of(problem));
  Buffer<float> state(2 * problem.state_size()), update(2 * problem.update_row());
  auto args = problem.args();
  args.output = output.view<3>({45, problem.value_heads(), 128});
  args.final_state = state.view<4>({2, problem.value_heads(), 128, 128});
  args.state_update = update.view<2>({2, problem.update_row()});
  args.state_update_active = false;
  call_gated_delta_net(Cpu{}, args);
  EXPECT_TRUE(same_bits(output.values(), expected.output));
  EXPECT_TRUE(same_bits(state.values(), expected.final_state));
  for (const float x : update.values()) ASSERT_EQ(x, 0);
}

}  // namespace
}  // namespace deltaworks::testing

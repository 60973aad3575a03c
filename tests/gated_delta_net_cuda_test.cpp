// What holds of gated_delta_net on the GPU alone: its kernels agree to the bit, values in device memory
// are never trusted, graphs replay with other values.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "support/compare.hpp"
#include "support/cuda.hpp"
#include "support/gated_delta_net_problem.hpp"

namespace deltaworks::testing {
namespace {

class CudaGatedDeltaNet : public OnCuda {};

// The geometry that has kernels with the state in registers.
GatedDeltaNetOptions register_options(Random& random) {
  auto o = random_options(random);
  o.key_dim = 128;
  o.value_dim = random.integer(0, 3) == 0 ? random.integer(1, 100) : 64 * random.integer(1, 2);
  return o;
}

template <class T>
std::vector<T> shifted(const std::vector<T>& values) {
  std::vector<T> copy(values.size() + 1);
  std::copy(values.begin(), values.end(), copy.begin() + 1);
  return copy;
}

// Unaligned operands, which the copies of the pipelined kernel and wide loads cannot take.
template <class T>
void expect_no_change_by_place(std::uint64_t stream) {
  Random random(stream);
  const GatedDeltaNetProblem<T> problem(random, register_options(random));
  const auto expected = problem.run();
  const auto query = shifted(problem.query), key = shifted(problem.key),
             value = shifted(problem.value);
  const auto state = shifted(problem.initial_state);
  auto args = problem.args();
  Buffer<T> output(problem.tokens() * problem.value_heads() * problem.o.value_dim + 1);
  Buffer<float> final_state(problem.sequences() * problem.state_size() + 1),
      update(problem.sequences() * problem.update_row());
  args.query = {query.data() + 1, args.query.extents()};
  args.key = {key.data() + 1, args.key.extents()};
  args.value = {value.data() + 1, args.value.extents()};
  if (args.initial_state) {
    args.initial_state = View<const float, 4>(state.data() + 1, args.initial_state->extents());
  }
  args.output = {output.data() + 1, args.value.extents()};
  args.final_state = {final_state.data() + 1,
                      {problem.sequences(), problem.value_heads(), problem.o.value_dim, 128}};
  if (problem.o.capacity > 0) {
    args.state_update = update.template view<2>({problem.sequences(), problem.update_row()});
  }
  call_gated_delta_net(Cpu{}, args);
  const auto tail = [](const auto& all) {
    return std::decay_t<decltype(all)>(all.begin() + 1, all.end());
  };
  ASSERT_TRUE(same_bits(tail(output.values()), expected.output));
  ASSERT_TRUE(same_bits(tail(final_state.values()), expected.final_state));
  ASSERT_TRUE(same_bits(update.values(), expected.state_update));
}

TEST_F(CudaGatedDeltaNet, PlacesOfOperandsChangeNoBit) {
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    ASSERT_NO_FATAL_FAILURE(expect_no_change_by_place<float>(100 + round));
    ASSERT_NO_FATAL_FAILURE(expect_no_change_by_place<Float16>(200 + round));
    ASSERT_NO_FATAL_FAILURE(expect_no_change_by_place<BFloat16>(300 + round));
  }
}

// Blocks of other shapes, and more heads than a block of the pipelined kernel knows in advance.
TEST_F(CudaGatedDeltaNet, ALargeBatchEqualsASmallOne) {
  for (const std::int64_t length : {1, 3}) {
    Random random(2500 + length);
    constexpr std::int64_t kCopies = 600;
    GatedDeltaNetProblem<BFloat16> one(random,
                                       {.cu_seqlens = {0, static_cast<std::int32_t>(length)},
                                        .key_heads = 8,
                                        .heads_per_key = 4,
                                        .key_dim = 128,
                                        .value_dim = 128,
                                        .capacity = 2,
                                        .gate_activation = GateActivation::kSoftplus,
                                        .beta_activation = BetaActivation::kSigmoid});
    one.capture_count = {2};
    one.initial_state.clear();
    one.o.initial_state = false;
    const auto expected = one.run();
    auto many = one;
    const auto repeat = [&](auto& values) {
      const auto once = values;
      for (std::int64_t i = 1; i < kCopies; ++i) {
        values.insert(values.end(), once.begin(), once.end());
      }
    };
    repeat(many.query), repeat(many.key), repeat(many.value), repeat(many.decay);
    repeat(many.beta), repeat(many.capture_count);
    for (std::int64_t b = 2; b <= kCopies; ++b) {
      many.o.cu_seqlens.push_back(static_cast<std::int32_t>(b * length));
    }
    const auto actual = many.run();
    const auto expect_copies = [](const auto& all, const auto& each) {
      for (std::int64_t b = 0; b < kCopies; ++b) {
        ASSERT_TRUE(std::equal(each.begin(), each.end(), all.begin() + b * std::ssize(each))) << b;
      }
    };
    ASSERT_NO_FATAL_FAILURE(expect_copies(actual.output, expected.output));
    ASSERT_NO_FATAL_FAILURE(expect_copies(actual.final_state, expected.final_state));
    ASSERT_NO_FATAL_FAILURE(expect_copies(actual.state_update, expected.state_update));
  }
}

// Which has no decay operand to tell the capsule's layout by.
TEST_F(CudaGatedDeltaNet, ACallWithoutTokensClearsItsCapsules) {
  Random random(9000);
  for (const std::int64_t key_dim : {20, 128}) {
    for (const bool per_key : {false, true}) {
      const GatedDeltaNetProblem<float> problem(random, {.cu_seqlens = {0, 0, 0},
                                                         .key_heads = 2,
                                                         .key_dim = key_dim,
                                                         .value_dim = 40,
                                                         .capacity = 3,
                                                         .decay_per_key = per_key});
      const auto update = problem.run().state_update;
      EXPECT_TRUE(same_bits(update, std::vector<float>(update.size()))) << key_dim << per_key;
    }
  }
}

// For each kernel, with room for a tile of rows or less. As many tokens as sequences are the decode kernel's.
struct Shape {
  std::int64_t key_dim, value_dim;
  std::int32_t tokens;
  bool decay_per_key;

  GatedDeltaNetOptions options(std::int32_t second, std::int64_t capacity) const {
    return {.cu_seqlens = {0, second, tokens},
            .key_dim = key_dim,
            .value_dim = value_dim,
            .capacity = capacity,
            .decay_per_key = decay_per_key};
  }
};
constexpr Shape kShapes[] = {{24, 64, 30, false}, {128, 64, 30, false}, {128, 24, 30, false},
                             {128, 64, 30, true}, {24, 24, 30, true},   {24, 64, 2, false},
                             {128, 64, 2, false}, {128, 24, 2, true}};

struct HostileOffsets {
  std::vector<std::int32_t> values;
  bool is_in_order;
};
std::vector<HostileOffsets> hostile_offsets(std::int32_t tokens) {
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min(),
                         kMost = std::numeric_limits<std::int32_t>::max();
  return {{{0, tokens / 2, tokens}, true}, {{0, tokens, tokens}, true}, {{0, 0, tokens}, true},
          {{0, 1 << 30, tokens}, false},   {{-5, 1, tokens}, false},    {{0, tokens, 1}, false},
          {{kLeast, 1, kMost}, false}};
}

// Guards around each operand show a write, compute-sanitizer a read, that leads outside.
void expect_nothing_outside(const Shape& shape, std::int64_t capacity) {
  constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min(),
                         kMost = std::numeric_limits<std::int32_t>::max();
  const std::vector<std::vector<std::int32_t>> slots{{0, 1}, {0, 1 << 30}, {kLeast, 2}, {2, 1}};
  Random random(7000 + shape.key_dim);
  GatedDeltaNetProblem<BFloat16> problem(random, shape.options(1, capacity));
  if (capacity > 0) problem.capture_count = {kMost, kLeast};
  const auto offsets = hostile_offsets(shape.tokens);
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    for (std::size_t j = 0; j < slots.size(); ++j) {
      Buffer<BFloat16> output(shape.tokens * shape.value_dim);
      Buffer<float> state(problem.initial_state), update(2 * problem.update_row());
      auto args = problem.args();
      args.cu_seqlens = view_of<1>(offsets[i].values, {3});
      args.output = output.view<3>({shape.tokens, 1, shape.value_dim});
      args.final_state = state.view<4>({2, 1, shape.value_dim, shape.key_dim});
      args.initial_state = args.final_state;
      if (capacity > 0) args.state_update = update.view<2>({2, problem.update_row()});
      args.slots_in = view_of<1>(slots[j], {2});
      args.slots_out = view_of<1>(slots[j], {2});
      const auto faults = run_on_gpu(
          args, [](const Cuda& device, const auto& call) { gated_delta_net(device, call); });
      EXPECT_EQ(faults, (offsets[i].is_in_order ? 0 : kCudaOffsets) | (j > 0 ? kCudaSlots : 0))
          << "offsets " << i << ", slots " << j << ", " << shape.tokens << " tokens, "
          << shape.key_dim << " x " << shape.value_dim << ", capacity " << capacity;
    }
  }
}

TEST_F(CudaGatedDeltaNet, NoValueLeadsOutsideTheOperands) {
  for (const Shape& shape : kShapes) {
    for (const std::int64_t capacity : {0, 2}) {
      ASSERT_NO_FATAL_FAILURE(expect_nothing_outside(shape, capacity));
    }
  }
}

// One graph serves batches of other lengths, fills and counts in the same memory.
void expect_replays_with_other_values(const Shape& shape, std::int64_t capacity) {
  Random random(8000 + shape.key_dim);
  auto options = shape.options(2, capacity);
  options.key_heads = options.heads_per_key = 2;
  GatedDeltaNetProblem<BFloat16> problem(random, options);
  if (capacity > 0) problem.capture_count = {1, 3};
  Buffer<BFloat16> output(shape.tokens * 4 * shape.value_dim);
  Buffer<float> state(2 * problem.state_size()), update(2 * problem.update_row());
  auto args = problem.args();
  args.output = output.view<3>({shape.tokens, 4, shape.value_dim});
  args.final_state = state.view<4>({2, 4, shape.value_dim, shape.key_dim});
  if (capacity > 0) args.state_update = update.view<2>({2, problem.update_row()});
  GpuOperands operands;
  for_each_view(args, [&](auto& view) { operands.add(view); });
  operands.place();
  gpu::Graph graph([&](CUstream_st* stream) { gated_delta_net(Cuda{stream}, args); });
  for (const std::int32_t end : {2, 0, shape.tokens - 1, shape.tokens}) {
    problem.o.cu_seqlens = {0, end, shape.tokens};
    upload(args.cu_seqlens, problem.o.cu_seqlens);
    if (capacity > 0) {
      problem.capture_count = {end % 4, 2};
      upload(*args.capture_count, problem.capture_count);
    }
    graph.launch();
    operands.take_back_written();
    const auto expected = problem.run();
    ASSERT_TRUE(same_bits(output.values(), expected.output)) << end;
    ASSERT_TRUE(same_bits(state.values(), expected.final_state)) << end;
    ASSERT_TRUE(same_bits(update.values(), expected.state_update)) << end;
  }
}

TEST_F(CudaGatedDeltaNet, AGraphReplaysWithOtherValues) {
  for (const Shape& shape : kShapes) {
    for (const std::int64_t capacity : {0, 3}) {
      SCOPED_TRACE(capacity);
      ASSERT_NO_FATAL_FAILURE(expect_replays_with_other_values(shape, capacity));
    }
  }
}

}  // namespace
}  // namespace deltaworks::testing

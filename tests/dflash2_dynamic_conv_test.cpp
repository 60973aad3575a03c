// Values and laws of dflash2_dynamic_conv on every backend and combination of types.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "support/dflash2_dynamic_conv_case.hpp"
#include "support/targets.hpp"

namespace deltaworks::testing {
namespace {

using DFlash2DynamicConv = OnBackend;
INSTANTIATE_TEST_SUITE_P(Targets, DFlash2DynamicConv, every_backend(), target_name);

constexpr DFlash2Arithmetic kModes[] = {DFlash2Arithmetic::kFloat32,
                                        DFlash2Arithmetic::kActivation};

// Plain steps, each a float32 operation and a rounding to E.
template <class E>
float rounded(float value) {
  return to_float(from_float<E>(value));
}

// What a composition of element-wise operators in type Step gives, one after another.
template <class Step, class Case>
std::vector<typename Case::R> step_by_step(const Case& c) {
  std::vector<typename Case::R> output;
  const auto at = [](const auto& values, std::int64_t index) {
    return to_float(values[static_cast<std::size_t>(index)]);
  };
  const std::int64_t channels = c.channels(), stage = c.stage_index();
  for (std::int64_t r = 0; r < c.rows(); ++r) {
    for (std::int64_t ch = 0; ch < channels; ++ch) {
      float sum = 0;
      for (std::int64_t tap = 0; tap < c.taps && tap <= r % c.rows_per_lane; ++tap) {
        const std::int64_t row_of_base = stage * c.taps + tap;
        const float delta =
            at(c.dynamic, r * c.dynamic_width() + row_of_base * c.groups + ch / c.group_size);
        const float weight = rounded<Step>(at(c.base, row_of_base * channels + ch) + delta);
        const float product = rounded<Step>(weight * at(c.input, (r - tap) * channels + ch));
        sum = tap == 0 ? product : rounded<Step>(sum + product);
      }
      if (stage == 1) sum = sum + at(c.residual, r * channels + ch);
      output.push_back(from_float<typename Case::R>(sum));
    }
  }
  return output;
}

TEST_P(DFlash2DynamicConv, KnownValues) {
  // Two lanes of two rows, two groups of one channel; base 1 for the row itself, 10 for the one
  // before; in the second stage 100 and 1000, and residuals.
  DFlash2Case<float> c{.lanes = 2, .rows_per_lane = 2, .taps = 2, .groups = 2, .group_size = 1};
  c.input = {1, 2, 3, 4, 5, 6, 7, 8};
  c.base = {1, 1, 10, 10, 100, 100, 1000, 1000};
  c.dynamic = {0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0,
               0, 0, 9, 9, 0, 0, 0, 0, 1, 0, 5, 0, 7, 0, 0, 3};
  c.residual = {0.5, 0, 0, 0, 0, 0, 0, 0.25};
  EXPECT_EQ(c.run(Cpu{}), (std::vector<float>{1, 4, 13, 28, 5, 6, 89, 68}));
  c.stage = DFlash2Stage::kResidual;
  EXPECT_EQ(c.run(Cpu{}), (std::vector<float>{100.5, 200, 1300, 2400, 500, 600, 5749, 6818.25}));
}

TEST_P(DFlash2DynamicConv, MatchesTheReference) {
  Random random(1);
  for_each_dflash2_type([&](auto type) {
    for (int round = 0; round < 30; ++round) {
      const auto c = any_dflash2(random, type);
      ASSERT_TRUE(near(c.run(Cpu{}), c.reference()))
          << c.taps << " taps, groups of " << c.group_size;
    }
  });
}

// The contract names every rounding: plain code gives the bits, on every instruction set.
TEST_P(DFlash2DynamicConv, EveryStepRoundsAsTheContractSays) {
  Random random(2);
  for_each_dflash2_type([&](auto type) {
    for (int round = 0; round < 30; ++round) {
      auto c = any_dflash2(random, type);
      ASSERT_TRUE(same_bits(c.run(Cpu{}), step_by_step<float>(c)));
      c.arithmetic = DFlash2Arithmetic::kActivation;
      ASSERT_TRUE(same_bits(c.run(Cpu{}), step_by_step<typename decltype(c)::T>(c)));
    }
  });
}

// Values that overflow, vanish and cancel.
TEST_P(DFlash2DynamicConv, EveryStepRoundsAtTheEdges) {
  Random random(3);
  for_each_dflash2_type([&](auto type) {
    for (int round = 0; round < 10; ++round) {
      auto c = any_dflash2(random, type);
      using Case = decltype(c);
      constexpr float kEdges[] = {0.0f,     -0.0f,    1.0f,  -1.0f,      65504.0f, -60000.0f,
                                  0x1p-14f, 0x1p-24f, 3e38f, -0x1p-126f, 1e-3f};
      const auto edge = [&] { return kEdges[random.integer(0, std::ssize(kEdges) - 1)]; };
      for (auto& x : c.input) x = from_float<typename Case::T>(edge());
      for (auto& x : c.dynamic) x = from_float<typename Case::T>(edge());
      for (const DFlash2Arithmetic mode : kModes) {
        c.arithmetic = mode;
        const auto actual = c.run(Cpu{});
        const auto expected = mode == DFlash2Arithmetic::kFloat32
                                  ? step_by_step<float>(c)
                                  : step_by_step<typename Case::T>(c);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          const float is = to_float(actual[i]), wanted = to_float(expected[i]);
          if (wanted != wanted) {  // the sign and payload of inf − inf are the processor's
            ASSERT_TRUE(is != is) << i;
          } else {
            ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(actual[i])), 0)
                << is << ", expected " << wanted;
          }
        }
      }
    }
  });
}

// What a graph's Cast nodes make of a 16-bit stage `prepare` with float32 results, which an ONNX node
// cannot have: of the operands for float32 arithmetic, of the result for `activation`.
TEST_P(DFlash2DynamicConv, Float32ResultsEqualCasts) {
  Random random(9);
  const auto widened = [](const auto& values) {
    std::vector<float> wide;
    for (const auto value : values) wide.push_back(to_float(value));
    return wide;
  };
  const auto check = [&](auto to_wide, auto same) {
    for (int round = 0; round < 12; ++round) {
      auto c = any_dflash2(random, to_wide);
      c.stage = DFlash2Stage::kPrepare;
      DFlash2Case<float> wide{c.lanes, c.rows_per_lane, c.taps, c.groups, c.group_size};
      wide.input = widened(c.input), wide.dynamic = widened(c.dynamic), wide.base = widened(c.base);
      ASSERT_TRUE(same_bits(c.run(Cpu{}), wide.run(Cpu{})));
      c.arithmetic = DFlash2Arithmetic::kActivation;
      decltype(same) narrow{c.lanes, c.rows_per_lane, c.taps, c.groups, c.group_size};
      narrow.arithmetic = c.arithmetic;
      narrow.input = c.input, narrow.dynamic = c.dynamic, narrow.base = c.base;
      ASSERT_TRUE(same_bits(c.run(Cpu{}), widened(narrow.run(Cpu{}))));
    }
  };
  check(DFlash2Case<Float16, float>(), DFlash2Case<Float16>());
  check(DFlash2Case<BFloat16, float>(), DFlash2Case<BFloat16>());
}

TEST_P(DFlash2DynamicConv, LanesAreIndependentAndInAnyOrder) {
  Random random(4);
  for_each_dflash2_type([&](auto type) {
    for (int round = 0; round < 12; ++round) {
      auto c = any_dflash2(random, type);
      if (c.lanes == 0) continue;
      c.arithmetic = kModes[round % 2];
      const auto whole = c.run(Cpu{});
      std::vector<std::int64_t> order(static_cast<std::size_t>(c.lanes));
      std::iota(order.rbegin(), order.rend(), 0);
      ASSERT_TRUE(same_bits(c.picked(order).run(Cpu{}), c.lanes_of(whole, order)));
      for (const std::int64_t lane : order) {
        ASSERT_TRUE(same_bits(c.picked({lane}).run(Cpu{}), c.lanes_of(whole, {lane})));
      }
    }
  });
}

TEST_P(DFlash2DynamicConv, AnyThreadCountGivesTheSameBits) {
  Random random(5);
  Threads threads(4);
  for_each_dflash2_type([&](auto type) {
    auto c = type;
    c.lanes = 41, c.rows_per_lane = 5, c.taps = 3, c.groups = 100, c.group_size = 10;
    c.stage = DFlash2Stage::kResidual;
    c.fill(random);
    ASSERT_TRUE(same_bits(c.run(threads.cpu()), c.run(Cpu{})));
  });
}

TEST_P(DFlash2DynamicConv, ASmallCallIsOneTask) {
  if (is_on_cuda()) GTEST_SKIP() << "tasks are the CPU's";
  int calls = 0;
  const ParallelFor counting{
      .run =
          [](void* pool, std::int64_t tasks, ParallelFor::Task task, void* data) {
            ++*static_cast<int*>(pool);
            for (std::int64_t i = 0; i < tasks; ++i) task(data, i);
          },
      .pool = &calls};
  Random random(6);
  DFlash2Case<float> c{.rows_per_lane = 16, .groups = 320, .group_size = 16};
  c.fill(random);
  c.run(Cpu{counting});
  EXPECT_EQ(calls, 0);
  c.lanes = 4;
  c.fill(random);
  c.run(Cpu{counting});
  EXPECT_EQ(calls, 1);
}

TEST_P(DFlash2DynamicConv, NanStaysInItsLaneChannelAndWindow) {
  Random random(7);
  for_each_dflash2_type([&](auto type) {
    for (int round = 0; round < 12; ++round) {
      auto c = any_dflash2(random, type);
      using T = typename decltype(c)::T;
      c.lanes = 3, c.rows_per_lane = 6;
      c.fill(random);
      c.arithmetic = kModes[round % 2];
      const auto clean = c.run(Cpu{});
      // Lanes 0 and 2 whole, in lane 1 row 2 of one channel and its last row from another on.
      const std::int64_t channels = c.channels(), bad = random.integer(0, channels - 1);
      const auto is_bad = [&](std::int64_t r, std::int64_t ch) {
        return r < 6 || r >= 12 || (r == 8 && ch == bad) || (r == 11 && ch >= bad);
      };
      for (std::int64_t i = 0; i < std::ssize(c.input); ++i) {
        if (!is_bad(i / channels, i % channels)) continue;
        c.input[static_cast<std::size_t>(i)] = poison<T>();
      }
      for (std::int64_t i = 0; i < std::ssize(c.dynamic); ++i) {
        const std::int64_t r = i / c.dynamic_width();
        if (r < 6 || r >= 12) c.dynamic[static_cast<std::size_t>(i)] = poison<T>();
      }
      const auto dirty = c.run(Cpu{});
      for (std::int64_t i = 6 * channels; i < 12 * channels; ++i) {
        const std::int64_t r = i / channels, ch = i % channels;
        const bool sees_row_8 = ch == bad && r >= 8 && r < 8 + c.taps;
        const auto at = static_cast<std::size_t>(i);
        const float is = to_float(dirty[at]);
        if (is_bad(r, ch) || sees_row_8) {
          ASSERT_TRUE(is != is) << "row " << r << " channel " << ch;
        } else {
          ASSERT_EQ(std::memcmp(&dirty[at], &clean[at], sizeof(clean[at])), 0)
              << "row " << r << " channel " << ch;
        }
      }
    }
  });
}

// Rows may be further apart than they are long; what lies between is neither read nor written.
TEST_P(DFlash2DynamicConv, PitchedRowsGiveTheSameBits) {
  Random random(8);
  for_each_dflash2_type([&](auto type) {
    auto c = type;
    using Case = decltype(c);
    c.lanes = 2, c.rows_per_lane = 3, c.taps = 3, c.groups = 5, c.group_size = 7;
    c.stage = DFlash2Stage::kResidual;
    c.fill(random);
    const std::int64_t rows = c.rows(), channels = c.channels(), width = c.dynamic_width();
    const auto pitched = [&](const auto& values, std::int64_t count, std::int64_t gap) {
      auto wide = values;
      wide.assign(values.size() + static_cast<std::size_t>(count * gap),
                  poison<std::decay_t<decltype(values[0])>>());
      const std::int64_t size = std::ssize(values) / count;
      for (std::int64_t r = 0; r < count; ++r) {
        std::copy_n(values.begin() + r * size, size, wide.begin() + r * (size + gap));
      }
      return wide;
    };
    const auto input = pitched(c.input, rows, 3), dynamic = pitched(c.dynamic, rows, 1);
    const auto base = pitched(c.base, 2, 5);
    const auto residual = pitched(c.residual, rows, 2);
    Buffer<typename Case::R> output(rows * (channels + 4));
    auto args = c.args(nullptr);
    args.input = {input.data(), {rows, channels}, channels + 3};
    args.dynamic = {dynamic.data(), {rows, width}, width + 1};
    args.base = {base.data(), {2, c.taps, channels}, c.taps * channels + 5};
    args.residual =
        View<const typename Case::R, 2>(residual.data(), {rows, channels}, channels + 2);
    args.output = {output.data(), {rows, channels}, channels + 4};
    c.call(Cpu{}, args);
    EXPECT_TRUE(same_bits(output.values(), pitched(c.run(Cpu{}), rows, 4)));
  });
}

}  // namespace
}  // namespace deltaworks::testing

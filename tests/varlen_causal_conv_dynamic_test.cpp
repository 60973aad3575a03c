// Values and laws of varlen_causal_conv's dynamic mode on every backend and type.
#include <gtest/gtest.h>

#include "support/dflash2_dynamic_conv_case.hpp"
#include "support/targets.hpp"
#include "support/varlen_causal_conv_case.hpp"

namespace deltaworks::testing {
namespace {

using VarlenCausalConvDynamic = OnBackend;
INSTANTIATE_TEST_SUITE_P(Targets, VarlenCausalConvDynamic, every_backend(), target_name);

template <class Body>
void for_each_type(const Body& body) {
  const auto traced = [&](auto type) {
    SCOPED_TRACE(std::string(name(dtype_of<decltype(type)>())));
    body(type);
  };
  traced(float{}), traced(Float16{}), traced(BFloat16{});
}

TEST_P(VarlenCausalConvDynamic, KnownValues) {
  ConvCase<float> c{.channels = 2, .width = 2, .slots = 2};
  c.weight = {10, 1, 20, 2};
  c.cu_seqlens = {0, 2, 3};
  c.input = {1, 2, 3, 4, 100, 200};
  c.state = {5, 6, 7, 8};
  c.projected_taps = 3, c.group_size = 2, c.delta_offset = 1;
  c.kernel_delta = {-99, 0, 0, -99, 1, 2, -99, 3, 4};
  c.previous_mask = {1, 0.5, 0};
  const auto result = run(Cpu{}, c);
  EXPECT_EQ(result.output, (std::vector<float>{51, 124, 12, 34, 400, 1000}));
  EXPECT_EQ(result.final_state, (std::vector<float>{3, 4, 100, 200}));
}

// The reference rounds where the contract says so: its values are the bits.
template <class T>
void expect_reference(const ConvCase<T>& c) {
  ConvResult<T> expected;
  for (const double value : reference_of(c, expected)) {
    ASSERT_EQ(to_float(from_float<T>(static_cast<float>(value))), value);
  }
  const std::vector<double> output = reference_of(c, expected);
  std::transform(output.begin(), output.end(), expected.output.begin(),
                 [](double value) { return from_float<T>(static_cast<float>(value)); });
  ASSERT_TRUE(same_bits(run(Cpu{}, c), expected))
      << c.channels << " channels in groups of " << c.group_size;
}

TEST_P(VarlenCausalConvDynamic, EveryStepRoundsAsTheContractSays) {
  Random random(1);
  for_each_type([&]<class T>(T) {
    for (int round = 0; round < 40; ++round) {
      auto c = random_dynamic_case<T>(
          random, random.cu_seqlens(random.integer(0, 5), 0, random.integer(0, 5) ? 12 : 150));
      if (random.integer(0, 1)) {
        c.capacity = random.integer(0, 9);
        for (std::int64_t b = 0; b < c.sequences(); ++b) {
          c.counts.push_back(static_cast<std::int32_t>(random.integer(-1, 10)));
        }
      }
      expect_reference(c);
    }
  });
}

// Values that overflow, vanish and cancel; the sign and payload of inf − inf are the processor's.
TEST_P(VarlenCausalConvDynamic, EveryStepRoundsAtTheEdges) {
  Random random(10);
  for_each_type([&]<class T>(T) {
    for (int round = 0; round < 20; ++round) {
      auto c = random_dynamic_case<T>(random, random.cu_seqlens(3, 0, 9));
      for (std::vector<T>* values : {&c.input, &c.weight, &c.state, &c.kernel_delta}) {
        constexpr float kEdges[] = {0.0f,      -0.0f,    1.0f,     -1.0f, 65504.0f,
                                    -60000.0f, 0x1p-14f, 0x1p-24f, 3e38f, -0x1p-126f};
        for (T& x : *values) x = from_float<T>(kEdges[random.integer(0, 9)]);
      }
      ConvResult<T> expected;
      const std::vector<double> output = reference_of(c, expected);
      const auto actual = run(Cpu{}, c);
      for (std::size_t i = 0; i < output.size(); ++i) {
        const T wanted = from_float<T>(static_cast<float>(output[i]));
        const bool are_nan = std::isnan(output[i]) && std::isnan(to_float(actual.output[i]));
        ASSERT_TRUE(are_nan || std::memcmp(&actual.output[i], &wanted, sizeof(T)) == 0)
            << i << ": " << to_float(actual.output[i]) << ", expected " << output[i];
      }
    }
  });
}

// Slots of a pool in any order, some skipped, some fresh.
TEST_P(VarlenCausalConvDynamic, PoolsAreReadAndWrittenAsEver) {
  Random random(2);
  for_each_type([&]<class T>(T) {
    for (int round = 0; round < 20; ++round) {
      auto c = random_dynamic_case<T>(random, random.cu_seqlens(4, 0, 7));
      c.slots = 6;
      c.state = random.normal<T>(c.slots * c.channels);
      for (std::int32_t b = 0; b < 4; ++b) {
        c.slots_in.push_back(static_cast<std::int32_t>(random.integer(-1, 5)));
        c.slots_out.push_back(5 - b);
        c.fresh.push_back(random.integer(0, 2) == 0);
      }
      expect_reference(c);
    }
  });
}

// Lanes as one sequence that the mask cuts, or as a sequence each; both stages of `dynamic`.
template <class T>
ConvCase<T> conv_of(Random& random, const DFlash2Case<T>& dflash2, bool one_sequence) {
  ConvCase<T> c{.channels = dflash2.channels(), .width = 2};
  const std::int64_t stage = dflash2.stage_index(), rows = dflash2.rows();
  for (std::int64_t ch = 0; ch < c.channels; ++ch) {
    for (const std::int64_t tap : {1, 0}) {  // here the last tap is now
      c.weight.push_back(
          dflash2.base[static_cast<std::size_t>((stage * 2 + tap) * c.channels + ch)]);
    }
  }
  const std::int64_t length =
      one_sequence ? std::max<std::int64_t>(1, rows) : dflash2.rows_per_lane;
  for (std::int64_t end = length; end <= rows; end += length) {
    c.cu_seqlens.push_back(static_cast<std::int32_t>(end));
  }
  c.slots = c.sequences();
  c.state = random.normal<T>(c.slots * c.channels);
  c.input = dflash2.input;
  c.kernel_delta = dflash2.dynamic;
  c.projected_taps = 4, c.group_size = dflash2.group_size, c.delta_offset = 2 * stage;
  for (std::int64_t r = 0; r < rows; ++r) {
    c.previous_mask.push_back(from_float<T>(r % dflash2.rows_per_lane > 0));
  }
  return c;
}

TEST_P(VarlenCausalConvDynamic, EqualsTheActivationModeOfDFlash2) {
  Random random(3);
  for_each_type([&]<class T>(T) {
    for (int round = 0; round < 60; ++round) {
      auto dflash2 = any_dflash2(random, DFlash2Case<T>());
      dflash2.taps = 2;
      dflash2.arithmetic = DFlash2Arithmetic::kActivation;
      dflash2.fill(random);
      if (round % 2 == 0) {  // zeros of both signs, and what rounds to them
        for (T& x : dflash2.input) {
          constexpr float kSmall[] = {0.0f, -0.0f, 0x1p-24f, -0x1p-133f, 1.0f};
          x = from_float<T>(kSmall[random.integer(0, 4)]);
        }
      }
      dflash2.residual.assign(dflash2.residual.size(), from_float<T>(-0.0f));  // changes nothing
      const auto output = run(Cpu{}, conv_of(random, dflash2, round % 3 == 0)).output;
      const auto expected = dflash2.run(Cpu{});
      ASSERT_EQ(output.size(), expected.size());
      for (std::size_t i = 0; i < output.size(); ++i) {
        const float is = to_float(output[i]), wanted = to_float(expected[i]);
        ASSERT_TRUE(is == wanted) << i << ": " << is << ", expected " << wanted;  // 0 = −0
      }
    }
  });
}

TEST_P(VarlenCausalConvDynamic, AnySplitGivesTheSameBits) {
  Random random(4);
  for_each_type([&]<class T>(T) {
    for (int round = 0; round < 15; ++round) {
      const auto length = static_cast<std::int32_t>(random.integer(0, round % 3 ? 24 : 200));
      auto c = random_dynamic_case<T>(random, {0, length});
      c.capacity = random.integer(-1, 9);  // the parts do not capture
      c.counts = {static_cast<std::int32_t>(random.integer(0, 9))};
      const auto whole = run(Cpu{}, c);
      std::vector<T> output, state = c.state;
      for (std::int64_t at = 0; at < length;) {
        const std::int64_t next = std::min<std::int64_t>(length, at + random.integer(1, 20));
        const auto part = run(Cpu{}, part_of(c, 0, at, next, state));
        output.insert(output.end(), part.output.begin(), part.output.end());
        state = part.final_state;
        at = next;
      }
      ASSERT_TRUE(same_bits(output, whole.output));
      ASSERT_TRUE(same_bits(state, whole.final_state));
    }
  });
}

TEST_P(VarlenCausalConvDynamic, PackedEqualsAloneAndStatesMayBeInPlace) {
  Random random(5);
  for_each_type([&]<class T>(T) {
    for (int round = 0; round < 12; ++round) {
      const auto c = random_dynamic_case<T>(random, random.cu_seqlens(5, 0, 90));
      const auto packed = run(Cpu{}, c);
      ASSERT_TRUE(same_bits(run_in_place(Cpu{}, c), packed));
      for (std::int64_t b = 0; b < c.sequences(); ++b) {
        const auto at = static_cast<std::size_t>(b);
        const auto alone =
            run(Cpu{}, part_of(c, b, 0, c.length(b), rows_of(c.state, c.channels, b, b + 1)));
        ASSERT_TRUE(same_bits(alone.output, rows_of(packed.output, c.channels, c.cu_seqlens[at],
                                                    c.cu_seqlens[at + 1])));
        ASSERT_TRUE(
            same_bits(alone.final_state, rows_of(packed.final_state, c.channels, b, b + 1)));
      }
    }
  });
}

TEST_P(VarlenCausalConvDynamic, AnyThreadCountGivesTheSameBits) {
  Random random(6);
  Threads threads(4);
  for_each_type([&]<class T>(T) {
    for (int round = 0; round < 3; ++round) {
      const auto c = random_dynamic_case<T>(random, random.cu_seqlens(6, 100, 500));
      const auto one = run(Cpu{}, c);
      ASSERT_TRUE(same_bits(run(threads.cpu(), c), one));
      ASSERT_TRUE(same_bits(run_in_place(threads.cpu(), c), one));
    }
  });
}

// Sequences 0 and 2, the tokens of sequence 1 from its 14th on, channel `bad`, and the coefficients
// that the call does not select.
TEST_P(VarlenCausalConvDynamic, NanReachesNoOtherSequenceChannelOrEarlierToken) {
  Random random(7);
  for_each_type([&]<class T>(T) {
    for (int round = 0; round < 20; ++round) {
      auto c = random_dynamic_case<T>(random, {0, 9, 30, 41});
      const auto clean = run(Cpu{}, c);
      const std::int64_t bad = random.integer(0, c.channels - 1);
      const auto is_seen = [](std::int64_t t) { return t >= 9 && t < 22; };
      const auto each = [](std::vector<T>& values, std::int64_t row, const auto& is_bad) {
        for (std::int64_t i = 0; i < std::ssize(values); ++i) {
          if (is_bad(i / row, i % row)) values[static_cast<std::size_t>(i)] = poison<T>();
        }
      };
      each(c.input, c.channels,
           [&](std::int64_t t, std::int64_t ch) { return !is_seen(t) || ch == bad; });
      each(c.state, c.channels,
           [&](std::int64_t b, std::int64_t ch) { return b != 1 || ch == bad; });
      each(c.previous_mask, 1, [&](std::int64_t t, std::int64_t) { return !is_seen(t); });
      each(c.kernel_delta, c.projected_taps * c.groups(), [&](std::int64_t t, std::int64_t at) {
        const std::int64_t tap = at / c.groups() - c.delta_offset;
        return !is_seen(t) || tap < 0 || tap > 1;
      });
      const auto dirty = run(Cpu{}, c);
      for (std::int64_t i = 9 * c.channels; i < 22 * c.channels; ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (i % c.channels == bad) {
          ASSERT_NE(to_float(dirty.output[at]), to_float(dirty.output[at]));
        } else {
          ASSERT_EQ(std::memcmp(&dirty.output[at], &clean.output[at], sizeof(T)), 0);
        }
      }
    }
  });
}

// The mask is a number: 0 lets no finite sample through, and a NaN does not vanish.
TEST_P(VarlenCausalConvDynamic, AMaskOfZeroTimesNanIsNan) {
  Random random(8);
  auto c = random_dynamic_case<float>(random, {0, 2});
  c.previous_mask = {0, 0};
  const auto masked = run(Cpu{}, c);
  c.state = random.normal<float>(c.channels);
  EXPECT_TRUE(same_bits(run(Cpu{}, c).output, masked.output));
  c.state[0] = poison<float>();
  const auto output = run(Cpu{}, c).output;
  EXPECT_NE(output[0], output[0]);
}

TEST_P(VarlenCausalConvDynamic, OperandsMayBePitched) {
  Random random(9);
  for (const std::int64_t gap : {1, 6}) {
    const auto c = random_dynamic_case<Float16>(random, {0, 5, 13});
    const auto expected = run(Cpu{}, c);
    const auto pitched = [&](const std::vector<Float16>& values, std::int64_t rows) {
      const std::int64_t size = std::ssize(values) / rows;
      std::vector<Float16> wide(values.size() + static_cast<std::size_t>(rows * gap),
                                poison<Float16>());
      for (std::int64_t r = 0; r < rows; ++r) {
        std::copy_n(values.begin() + r * size, size, wide.begin() + r * (size + gap));
      }
      return wide;
    };
    const auto weight = pitched(c.weight, c.channels), delta = pitched(c.kernel_delta, 13),
               mask = pitched(c.previous_mask, 13), state = pitched(c.state, 2);
    ConvBuffers<Float16> to(c);
    VarlenCausalConvArgs<Float16> args =
        args_of(c, to.output.data(), to.final_state.data(), static_cast<Float16*>(nullptr));
    args.weight = {weight.data(), {c.channels, 1, 2}, 2 + gap};
    args.initial_state = {state.data(), {2, c.channels, 1}, c.channels + gap};
    args.previous_mask = View<const Float16, 2>(mask.data(), {13, 1}, 1 + gap);
    args.kernel_delta = View<const Float16, 3>(delta.data(), {13, c.projected_taps, c.groups()},
                                               c.projected_taps * c.groups() + gap);
    call(Cpu{}, args);
    EXPECT_TRUE(same_bits(to.result(), expected));
  }
}

}  // namespace
}  // namespace deltaworks::testing

// Values and laws of varlen_causal_conv on every backend and type.
#include <gtest/gtest.h>

#include <cmath>

#include "support/targets.hpp"
#include "support/varlen_causal_conv_case.hpp"

namespace deltaworks::testing {
namespace {

using VarlenCausalConv = OnBackend;
INSTANTIATE_TEST_SUITE_P(Targets, VarlenCausalConv, every_backend(), target_name);

template <class Body>
void for_each_type(const Body& body) {
  {
    SCOPED_TRACE("float32");
    body(float{});
  }
  {
    SCOPED_TRACE("float16");
    body(Float16{});
  }
  {
    SCOPED_TRACE("bfloat16");
    body(BFloat16{});
  }
}

constexpr std::int64_t kChannels[] = {1, 2, 3, 7, 16, 17, 33, 64, 100, 257};

std::int64_t any_channels(Random& random) {
  return kChannels[random.integer(0, std::size(kChannels) - 1)];
}

// A pool of more slots than sequences, in any order, some of them skipped or fresh.
template <class T>
void add_pool(Random& random, ConvCase<T>& c) {
  c.slots = c.sequences() + 2;
  c.state = random.normal<T>(c.slots * c.channels * c.history());
  for (std::int64_t b = 0; b < c.sequences(); ++b) {
    const bool skipped = random.integer(0, 4) == 0;
    c.slots_in.push_back(skipped ? -1 : static_cast<std::int32_t>(random.integer(0, c.slots - 1)));
    c.slots_out.push_back(static_cast<std::int32_t>(c.slots - 1 - b));
    c.fresh.push_back(random.integer(0, 3) == 0);
  }
}

template <class T>
ConvCase<T> any_case(Random& random) {
  const auto offsets = random.cu_seqlens(random.integer(0, 5), 0, random.integer(0, 5) ? 12 : 200);
  auto c = random_case<T>(random, any_channels(random), random.integer(1, 7), random.integer(1, 3),
                          offsets);
  if (c.sequences() > 0 && random.integer(0, 2) == 0) add_pool(random, c);
  if (random.integer(0, 1)) {
    c.capacity = random.integer(0, 9);
    for (std::int64_t b = 0; b < c.sequences(); ++b) {
      c.counts.push_back(static_cast<std::int32_t>(random.integer(-1, 10)));
    }
  }
  return c;
}

TEST_P(VarlenCausalConv, MatchesTheReference) {
  Random random(1);
  for_each_type([&]<class T>(T) {
    for (int round = 0; round < 80; ++round) {
      const auto c = any_case<T>(random);
      ConvResult<T> expected;
      const std::vector<double> output = reference_of(c, expected);
      const auto actual = run(Cpu{}, c);
      ASSERT_TRUE(near(actual.output, output)) << "width " << c.width << " dilation " << c.dilation;
      expected.output = actual.output;
      ASSERT_TRUE(same_bits(actual, expected)) << "width " << c.width << " dilation " << c.dilation;
    }
  });
}

// The contract names every rounding of float32; without an activation a scalar chain gives the
// bits.
TEST_P(VarlenCausalConv, IsAChainOfMultiplyAdds) {
  const bool fused = GetParam() != "SCALAR" && GetParam() != "SSE4";
  Random random(2);
  for (int round = 0; round < 40; ++round) {
    auto c = random_case<float>(random, any_channels(random), random.integer(1, 6),
                                random.integer(1, 3), {0, 17});
    c.activation = ConvActivation::kNone;
    const auto actual = run(Cpu{}, c);
    std::vector<float> expected;
    for (std::int64_t t = 0; t < c.tokens(); ++t) {
      for (std::int64_t ch = 0; ch < c.channels; ++ch) {
        float sum = c.bias.empty() ? 0 : c.bias[static_cast<std::size_t>(ch)];
        for (std::int64_t j = 0; j < c.width; ++j) {
          const std::int64_t at = t - c.history() + j * c.dilation;
          const float x = at >= 0 ? c.input[static_cast<std::size_t>(at * c.channels + ch)]
                                  : c.state[static_cast<std::size_t>((ch + 1) * c.history() + at)];
          const float w = c.weight[static_cast<std::size_t>(ch * c.width + j)];
          sum = fused ? std::fma(w, x, sum) : sum + w * x;
        }
        expected.push_back(sum);
      }
    }
    ASSERT_TRUE(same_bits(actual.output, expected));
  }
}

TEST_P(VarlenCausalConv, AnySplitGivesTheSameBits) {
  Random random(3);
  for_each_type([&]<class T>(T) {
    for (int round = 0; round < 30; ++round) {
      const auto length = static_cast<std::int32_t>(random.integer(0, round % 3 ? 24 : 300));
      auto c = random_case<T>(random, any_channels(random), random.integer(1, 6),
                              random.integer(1, 3), {0, length});
      c.capacity = random.integer(-1, 9);  // the parts do not capture: verify = decode
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

TEST_P(VarlenCausalConv, PackedEqualsAlone) {
  Random random(4);
  for_each_type([&]<class T>(T) {
    for (int round = 0; round < 20; ++round) {
      const auto c = random_case<T>(random, any_channels(random), random.integer(1, 6),
                                    random.integer(1, 3), random.cu_seqlens(5, 0, 90));
      const auto packed = run(Cpu{}, c);
      const std::int64_t state_row = c.channels * c.history();
      for (std::int64_t b = 0; b < c.sequences(); ++b) {
        const auto at = static_cast<std::size_t>(b);
        const auto alone =
            run(Cpu{}, part_of(c, b, 0, c.length(b), rows_of(c.state, state_row, b, b + 1)));
        ASSERT_TRUE(same_bits(alone.output, rows_of(packed.output, c.channels, c.cu_seqlens[at],
                                                    c.cu_seqlens[at + 1])));
        ASSERT_TRUE(same_bits(alone.final_state, rows_of(packed.final_state, state_row, b, b + 1)));
      }
    }
  });
}

TEST_P(VarlenCausalConv, AnyThreadCountGivesTheSameBits) {
  Random random(5);
  Threads threads(4);
  for_each_type([&]<class T>(T) {
    for (const std::int64_t channels : {96, 1030, 5000}) {
      const auto offsets = random.cu_seqlens(6, 0, 400'000 / channels);
      const auto c =
          random_case<T>(random, channels, random.integer(1, 5), random.integer(1, 40), offsets);
      const auto one = run(Cpu{}, c);
      ASSERT_TRUE(same_bits(run(threads.cpu(), c), one));
      ASSERT_TRUE(same_bits(run_in_place(threads.cpu(), c), one));
    }
  });
}

TEST_P(VarlenCausalConv, StateMayBeUpdatedInPlace) {
  Random random(6);
  for_each_type([&]<class T>(T) {
    for (int round = 0; round < 30; ++round) {
      const auto c = random_case<T>(random, any_channels(random), random.integer(1, 6),
                                    random.integer(1, 3), random.cu_seqlens(4, 0, 6));
      ASSERT_TRUE(same_bits(run_in_place(Cpu{}, c), run(Cpu{}, c)));
    }
  });
}

TEST_P(VarlenCausalConv, NanReachesNoOtherSequenceChannelOrEarlierToken) {
  Random random(7);
  for_each_type([&]<class T>(T) {
    for (int round = 0; round < 20; ++round) {
      auto c = random_case<T>(random, 1 + any_channels(random), random.integer(1, 6),
                              random.integer(1, 3), {0, 9, 30, 41});
      const auto clean = run(Cpu{}, c);
      // Sequence 0 and 2, the tokens of sequence 1 from its 14th on, and channel `bad`.
      const std::int64_t bad = random.integer(0, c.channels - 1);
      for (std::int64_t t = 0; t < c.tokens(); ++t) {
        for (std::int64_t ch = 0; ch < c.channels; ++ch) {
          if (t >= 9 && t < 22 && ch != bad) continue;
          c.input[static_cast<std::size_t>(t * c.channels + ch)] = poison<T>();
        }
      }
      for (std::int64_t i = 0; i < std::ssize(c.state); ++i) {
        const std::int64_t row = i / std::max<std::int64_t>(1, c.history());
        if (row / c.channels != 1 || row % c.channels == bad) {
          c.state[static_cast<std::size_t>(i)] = poison<T>();
        }
      }
      const auto dirty = run(Cpu{}, c);
      for (std::int64_t t = 9; t < 22; ++t) {
        for (std::int64_t ch = 0; ch < c.channels; ++ch) {
          if (ch == bad) continue;
          const auto at = static_cast<std::size_t>(t * c.channels + ch);
          ASSERT_EQ(std::memcmp(&dirty.output[at], &clean.output[at], sizeof(T)), 0);
        }
      }
    }
  });
}

TEST_P(VarlenCausalConv, ReplayOfNEqualsHavingRunN) {
  Random random(8);
  for_each_type([&]<class T>(T) {
    for (int round = 0; round < 20; ++round) {
      auto c = random_case<T>(random, any_channels(random), random.integer(1, 6),
                              random.integer(1, 3), {0, 8, 17});
      c.capacity = 8;
      c.counts = {8, 8};
      const auto captured = run(Cpu{}, c);
      const std::int64_t row = c.channels * c.history();
      for (std::int32_t n = 0; n <= 8; ++n) {
        const std::vector<std::int32_t> counts{n, 8 - n};
        Buffer<T> replayed(c.state), elsewhere(2 * row);
        ReplayConvStateArgs<T> args{
            .initial_state = view_of<3>(c.state, {2, c.channels, c.history()}),
            .state_update = view_of<3>(captured.state_update, {2, 8, c.channels}),
            .count = view_of<1>(counts, {2}),
            .final_state = elsewhere.template view<3>({2, c.channels, c.history()})};
        call(Cpu{}, args);
        args.final_state = replayed.template view<3>({2, c.channels, c.history()});
        args.initial_state = args.final_state;
        call(Cpu{}, args);
        ASSERT_TRUE(same_bits(replayed.values(), elsewhere.values()));
        for (std::int64_t b = 0; b < 2; ++b) {
          const auto ran = run(Cpu{}, part_of(c, b, 0, counts[static_cast<std::size_t>(b)],
                                              rows_of(c.state, row, b, b + 1)));
          ASSERT_TRUE(same_bits(rows_of(replayed.values(), row, b, b + 1), ran.final_state)) << n;
        }
      }
    }
  });
}

}  // namespace
}  // namespace deltaworks::testing

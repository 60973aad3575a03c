// One call of varlen_causal_conv with memory of its own, and what came out of it.
#pragma once

#include <cstdint>
#include <vector>

#include "deltaworks/varlen_causal_conv.hpp"
#include "reference/varlen_causal_conv.hpp"
#include "support/buffer.hpp"
#include "support/compare.hpp"
#include "support/cuda.hpp"
#include "support/random.hpp"

namespace deltaworks::testing {

template <class T>
struct ConvCase {
  std::int64_t channels = 1, width = 1, dilation = 1;
  std::int64_t slots = 0;      // rows of the states
  std::int64_t capacity = -1;  // no capture
  ConvActivation activation = ConvActivation::kNone;
  std::vector<std::int32_t> cu_seqlens{0}, slots_in{}, slots_out{}, fresh{}, counts{};
  std::vector<T> input{}, weight{}, bias{}, state{};
  // The dynamic mode, where projected_taps > 0.
  std::int64_t projected_taps = 0, group_size = 1, delta_offset = 0;
  std::vector<T> kernel_delta{}, previous_mask{};

  std::int64_t sequences() const { return static_cast<std::int64_t>(cu_seqlens.size()) - 1; }
  std::int64_t tokens() const { return cu_seqlens.back(); }
  std::int64_t history() const { return (width - 1) * dilation; }
  std::int64_t groups() const { return channels / group_size; }
  std::int64_t length(std::int64_t b) const {
    const auto at = static_cast<std::size_t>(b);
    return cu_seqlens[at + 1] - cu_seqlens[at];
  }
};

template <class T>
struct ConvResult {
  std::vector<T> output, final_state, state_update;
};

inline OptionalView<const std::int32_t, 1> ints(const std::vector<std::int32_t>& values) {
  if (values.empty()) return std::nullopt;
  return View<const std::int32_t, 1>(values.data(), {static_cast<std::int64_t>(values.size())});
}

// Views of a case and of the three results.
template <class T>
VarlenCausalConvArgs<T> args_of(const ConvCase<T>& c, T* output, T* final_state, T* state_update) {
  const std::array<std::int64_t, 3> states{c.slots, c.channels, c.history()};
  VarlenCausalConvArgs<T> args{
      .input = view_of<2>(c.input, {c.tokens(), c.channels}),
      .weight = view_of<3>(c.weight, {c.channels, 1, c.width}),
      .cu_seqlens = view_of<1>(c.cu_seqlens, {c.sequences() + 1}),
      .initial_state = view_of<3>(c.state, states),
      .output = {output, {c.tokens(), c.channels}},
      .final_state = {final_state, states},
      .slots_in = ints(c.slots_in),
      .slots_out = ints(c.slots_out),
      .fresh = ints(c.fresh),
      .activation = c.activation,
      .dilation = c.dilation,
  };
  if (!c.bias.empty()) args.bias = view_of<1>(c.bias, {c.channels});
  if (c.capacity >= 0) {
    args.capture_count = view_of<1>(c.counts, {c.sequences()});
    args.state_update = View<T, 3>(state_update, {c.sequences(), c.capacity, c.channels});
  }
  if (c.projected_taps > 0) {
    args.kernel_delta = view_of<3>(c.kernel_delta, {c.tokens(), c.projected_taps, c.groups()});
    args.previous_mask = view_of<2>(c.previous_mask, {c.tokens(), 1});
    args.group_size = c.group_size;
    args.delta_offset = c.delta_offset;
  }
  return args;
}

template <class T>
struct ConvBuffers {
  explicit ConvBuffers(const ConvCase<T>& c)
      : output(c.tokens() * c.channels),
        final_state(c.slots * c.channels * c.history()),
        state_update(c.sequences() * std::max<std::int64_t>(0, c.capacity) * c.channels) {}
  ConvResult<T> result() const {
    return {output.values(), final_state.values(), state_update.values()};
  }

  Buffer<T> output, final_state, state_update;
};

// On the backend that is tested.
template <class Args>
void call(const Cpu& cpu, const Args& args) {
  run_on(cpu, args, [](const auto& device, const Args& to) {
    if constexpr (requires { to.weight; }) {
      varlen_causal_conv(device, to);
    } else {
      replay_conv_state(device, to);
    }
  });
}

template <class T>
ConvResult<T> run(const Cpu& cpu, const ConvCase<T>& c) {
  ConvBuffers<T> to(c);
  call(cpu, args_of(c, to.output.data(), to.final_state.data(), to.state_update.data()));
  return to.result();
}

template <class T>
ConvResult<T> run_in_place(const Cpu& cpu, const ConvCase<T>& c) {
  ConvBuffers<T> to(c);
  std::copy(c.state.begin(), c.state.end(), to.final_state.data());
  auto args = args_of(c, to.output.data(), to.final_state.data(), to.state_update.data());
  args.initial_state = args.final_state;
  call(cpu, args);
  return to.result();
}

// The float64 outputs; the exact copies go into `copies`.
template <class T>
std::vector<double> reference_of(const ConvCase<T>& c, ConvResult<T>& copies) {
  ConvBuffers<T> to(c);
  std::vector<double> output(static_cast<std::size_t>(c.tokens() * c.channels));
  reference::varlen_causal_conv(
      args_of(c, to.output.data(), to.final_state.data(), to.state_update.data()),
      View<double, 2>(output.data(), {c.tokens(), c.channels}));
  copies = to.result();
  return output;
}

template <class T>
::testing::AssertionResult same_bits(const ConvResult<T>& actual, const ConvResult<T>& expected) {
  for (const auto part :
       {&ConvResult<T>::output, &ConvResult<T>::final_state, &ConvResult<T>::state_update}) {
    const auto same = same_bits(actual.*part, expected.*part);
    if (!same) {
      const char* name = part == &ConvResult<T>::output        ? "output "
                         : part == &ConvResult<T>::final_state ? "final_state "
                                                               : "state_update ";
      return ::testing::AssertionFailure() << name << same.message();
    }
  }
  return ::testing::AssertionSuccess();
}

// Sequences of the given lengths with random values; nothing optional but the bias.
template <class T>
ConvCase<T> random_case(Random& random, std::int64_t channels, std::int64_t width,
                        std::int64_t dilation, const std::vector<std::int32_t>& cu_seqlens) {
  ConvCase<T> c{.channels = channels, .width = width, .dilation = dilation};
  c.cu_seqlens = cu_seqlens;
  c.slots = c.sequences();
  c.activation = random.integer(0, 2) ? ConvActivation::kSilu : ConvActivation::kNone;
  c.input = random.normal<T>(c.tokens() * channels);
  c.weight = random.normal<T>(channels * width, 0.5);
  if (random.integer(0, 1)) c.bias = random.normal<T>(channels);
  c.state = random.normal<T>(c.slots * channels * c.history());
  return c;
}

// The dynamic mode over random geometry; the mask is any number.
template <class T>
ConvCase<T> random_dynamic_case(Random& random, const std::vector<std::int32_t>& cu_seqlens) {
  constexpr std::int64_t kGroupSizes[] = {1, 2, 3, 7, 8, 15, 16, 17, 32, 100, 300};
  const std::int64_t group_size = kGroupSizes[random.integer(0, std::size(kGroupSizes) - 1)];
  auto c =
      random_case<T>(random, group_size * random.integer(1, 600 / group_size), 2, 1, cu_seqlens);
  c.activation = ConvActivation::kNone;
  c.bias.clear();
  c.group_size = group_size;
  c.projected_taps = random.integer(2, 6);
  c.delta_offset = random.integer(0, c.projected_taps - 2);
  c.kernel_delta = random.normal<T>(c.tokens() * c.projected_taps * c.groups(), 0.3);
  c.previous_mask = random.normal<T>(c.tokens());
  return c;
}

// Tokens [begin, end) of sequence b alone, from a state of its own.
template <class T>
ConvCase<T> part_of(const ConvCase<T>& c, std::int64_t b, std::int64_t begin, std::int64_t end,
                    const std::vector<T>& state) {
  ConvCase<T> part = c;
  const std::int64_t first = c.cu_seqlens[static_cast<std::size_t>(b)];
  part.cu_seqlens = {0, static_cast<std::int32_t>(end - begin)};
  part.input.assign(c.input.begin() + (first + begin) * c.channels,
                    c.input.begin() + (first + end) * c.channels);
  if (c.projected_taps > 0) {
    const std::int64_t row = c.projected_taps * c.groups();
    part.kernel_delta.assign(c.kernel_delta.begin() + (first + begin) * row,
                             c.kernel_delta.begin() + (first + end) * row);
    part.previous_mask.assign(c.previous_mask.begin() + first + begin,
                              c.previous_mask.begin() + first + end);
  }
  part.state = state;
  part.slots = 1;
  part.slots_in.clear();
  part.slots_out.clear();
  part.fresh.clear();
  part.counts.clear();
  part.capacity = -1;
  return part;
}

// Rows [begin, end) of a matrix.
template <class T>
std::vector<T> rows_of(const std::vector<T>& matrix, std::int64_t row_size, std::int64_t begin,
                       std::int64_t end) {
  return {matrix.begin() + begin * row_size, matrix.begin() + end * row_size};
}

}  // namespace deltaworks::testing

// One call of causal_conv_with_state with memory of its own, in either layout, and what came out of
// it.
#pragma once

#include <cstdint>
#include <vector>

#include "deltaworks/causal_conv_with_state.hpp"
#include "reference/causal_conv_with_state.hpp"
#include "support/buffer.hpp"
#include "support/compare.hpp"
#include "support/random.hpp"

namespace deltaworks::testing {

template <class T>
struct DenseConvResult {
  std::vector<T> output, present_state;
};

template <class T>
struct DenseConvCase {
  std::int64_t sequences = 1, channels = 1, length = 1, width = 1, dilation = 1;
  ConvActivation activation = ConvActivation::kNone;
  bool channels_last = false;
  std::vector<T> input{}, weight{}, bias{}, past_state{};  // empty bias, past_state: absent

  std::int64_t history() const { return (width - 1) * dilation; }
  std::int64_t size() const { return sequences * channels * length; }
  std::int64_t state_size() const { return sequences * channels * history(); }
  std::array<std::int64_t, 3> extents(std::int64_t positions) const {
    if (channels_last) return {sequences, positions, channels};
    return {sequences, channels, positions};
  }

  void fill(Random& random) {
    input = random.normal<T>(size());
    weight = random.normal<T>(channels * width, 0.5);
    if (random.integer(0, 1)) bias = random.normal<T>(channels);
    if (random.integer(0, 3)) past_state = random.normal<T>(state_size());
    activation = random.integer(0, 2) ? ConvActivation::kSilu : ConvActivation::kNone;
  }

  CausalConvWithStateArgs<T> args(T* output, T* present_state) const {
    CausalConvWithStateArgs<T> args{.input = view_of<3>(input, extents(length)),
                                    .weight = view_of<3>(weight, {channels, 1, width}),
                                    .output = {output, extents(length)},
                                    .present_state = {present_state, extents(history())},
                                    .activation = activation,
                                    .dilation = dilation,
                                    .channels_last = channels_last};
    if (!bias.empty()) args.bias = view_of<1>(bias, {channels});
    if (!past_state.empty()) args.past_state = view_of<3>(past_state, extents(history()));
    return args;
  }

  DenseConvResult<T> run(const Cpu& cpu = {}) const {
    Buffer<T> output(size()), present_state(state_size());
    causal_conv_with_state(cpu, args(output.data(), present_state.data()));
    return {output.values(), present_state.values()};
  }
  DenseConvResult<T> run_in_place() const {
    Buffer<T> output(size()), state(past_state);
    auto call = args(output.data(), state.data());
    call.past_state = call.present_state;
    causal_conv_with_state(Cpu{}, call);
    return {output.values(), state.values()};
  }
  // The float64 outputs; the exact copies go into `state`.
  std::vector<double> reference(std::vector<T>& state) const {
    state.resize(static_cast<std::size_t>(state_size()));
    std::vector<double> output(static_cast<std::size_t>(size()));
    reference::causal_conv_with_state(args(nullptr, state.data()),
                                      View<double, 3>(output.data(), extents(length)));
    return output;
  }

  // [sequences, channels, positions] to [sequences, positions, channels], or back.
  std::vector<T> swapped(const std::vector<T>& from, std::int64_t positions) const {
    std::vector<T> to(from.size());
    const std::int64_t rows = channels_last ? positions : channels;
    const std::int64_t columns = channels_last ? channels : positions;
    for (std::int64_t b = 0; b < (from.empty() ? 0 : sequences); ++b) {
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < columns; ++j)
          to[(b * columns + j) * rows + i] = from[(b * rows + i) * columns + j];
      }
    }
    return to;
  }
  DenseConvCase in_other_layout() const {
    DenseConvCase other = *this;
    other.channels_last = !channels_last;
    other.input = swapped(input, length);
    other.past_state = swapped(past_state, history());
    return other;
  }
  // Sequence b alone.
  DenseConvCase alone(std::int64_t b) const {
    DenseConvCase one = *this;
    const auto cut = [&](std::vector<T>& all) {
      const std::int64_t size = std::ssize(all) / sequences;
      all = std::vector<T>(all.begin() + b * size, all.begin() + (b + 1) * size);
    };
    cut(one.input);
    cut(one.past_state);
    one.sequences = 1;
    return one;
  }
  // Tokens first … first + count − 1 of a single sequence, from `state`.
  DenseConvCase part(std::int64_t first, std::int64_t count, const std::vector<T>& state) const {
    DenseConvCase one = *this;
    one.length = count;
    one.past_state = state;
    one.input.clear();
    const std::int64_t rows = channels_last ? 1 : channels, row = channels_last ? channels : 1;
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto from = input.begin() + (i * length + first) * row;
      one.input.insert(one.input.end(), from, from + count * row);
    }
    return one;
  }
};

// A small call of any geometry, in either layout.
template <class T>
DenseConvCase<T> any_dense_conv(Random& random) {
  constexpr std::int64_t kChannels[] = {1, 2, 5, 8, 16, 17, 33, 64, 70, 130};
  DenseConvCase<T> c;
  c.sequences = random.integer(1, 3);
  c.channels = kChannels[random.integer(0, std::ssize(kChannels) - 1)];
  c.length = random.integer(0, random.integer(0, 3) ? 18 : 80);
  c.width = random.integer(1, 6);
  c.dilation = random.integer(0, 2) ? 1 : random.integer(2, 20);
  c.channels_last = random.integer(0, 1);
  c.fill(random);
  return c;
}

}  // namespace deltaworks::testing

// com.microsoft::CausalConvWithState
#include "deltaworks/causal_conv_with_state.hpp"

#include <fmt/format.h>

#include "contract/causal_conv_with_state.hpp"
#include "contract/values.hpp"
#include "contract/varlen_causal_conv.hpp"
#include "operator.hpp"

namespace deltaworks::ort {

namespace {

constexpr const char* kName = "CausalConvWithState";

enum Input { kInput, kWeight, kBias, kPastState };
enum Output { kOutput, kPresentState, kStateUpdate };

// What ONNX Runtime has for other providers, each with the value that asks for none of it.
constexpr std::pair<const char*, std::int64_t> kElsewhere[] = {{"ndim", 1},
                                                               {"state_window", 0},
                                                               {"state_update_capacity", 0},
                                                               {"state_length", 0},
                                                               {"state_channels_last", -1},
                                                               {"input_channels", 0},
                                                               {"input_channel_offset", 0}};

template <class T>
class CausalConvWithState final : public Kernel {
 public:
  explicit CausalConvWithState(const Node& node)
      : activation_(contract::value_or_throw(
            contract::parse_conv_activation(kName, node.attribute("activation", "none")))),
        dilation_(node.attribute("dilation", std::int64_t{1})),
        channels_last_(node.attribute("channels_last", std::int64_t{0}) != 0) {
    for (const auto& [name, none] : kElsewhere) {
      const std::int64_t value = node.attribute(name, none);
      if (value == none) continue;
      throw InvalidArgument(
          fmt::format("{} is {}, expected {}: other values are not available "
                      "on the CPU",
                      name, value, none));
    }
    if (node.has_output(kStateUpdate)) {
      throw InvalidArgument(
          "state_update is asked for, expected no third output: it is not available on the CPU");
    }
    known_ = geometry(node);
  }

  void compute(Call& call) const override {
    const auto g = geometry(call);
    CausalConvWithStateArgs<T> args{
        .input = {call.data<T>(kInput), extents(g, g.length)},
        .weight = call.view<T, 3>(kWeight),
        .output = {output(call, kOutput, kInput, g, g.length), extents(g, g.length)},
        .present_state = {output(call, kPresentState, kInput, g, g.history), extents(g, g.history)},
        .bias = call.optional_view<T, 1>(kBias),
        .activation = activation_,
        .dilation = dilation_,
        .channels_last = channels_last_};
    if (call.has_input(kPastState)) {
      args.past_state = View<const T, 3>{call.data<T>(kPastState), extents(g, g.history)};
    }
    causal_conv_with_state(call.device(), args);
  }

  Plan plan() const override {
    const auto& g = known_;
    return {{{"sequences", g.sequences},
             {"length", g.length},
             {"channels", g.channels},
             {"width", g.width},
             {"dilation", g.dilation}},
            "direct",
            bytes_of({g.channels, g.history}, sizeof(T)),
            "sequence"};
  }

 private:
  std::array<std::int64_t, 3> extents(const contract::CausalConvWithStateGeometry& g,
                                      std::int64_t positions) const {
    if (channels_last_) return {g.sequences, positions, g.channels};
    return {g.sequences, g.channels, positions};
  }

  // An output of the input's rank: several last dims may count the channels together.
  T* output(Call& call, Output index, Input like, const contract::CausalConvWithStateGeometry& g,
            std::int64_t positions) const {
    const auto [sequences, second, third] = extents(g, positions);
    const auto& dims = call.shape(like).dims;
    switch (call.shape(like).rank) {
      case 4: return call.output<T, 4>(index, {sequences, second, dims[2], dims[3]}).data();
      case 5:
        return call.output<T, 5>(index, {sequences, second, dims[2], dims[3], dims[4]}).data();
      default: return call.output<T, 3>(index, {sequences, second, third}).data();
    }
  }

  template <class Source>
  contract::CausalConvWithStateGeometry geometry(const Source& source) const {
    return contract::value_or_throw(
        contract::causal_conv_with_state(kName, {.input = *source.input(kInput, 3),
                                                 .weight = *source.input(kWeight, 3),
                                                 .bias = source.input(kBias, 1),
                                                 .past_state = source.input(kPastState, 3),
                                                 .dilation = dilation_,
                                                 .channels_last = channels_last_}));
  }

  ConvActivation activation_;
  std::int64_t dilation_;
  bool channels_last_;
  contract::CausalConvWithStateGeometry known_;  // as the graph tells it
};

template <class T>
Operator variant() {
  constexpr auto kType = element_type<T>();
  return {kName,
          {{kType}, {kType}, {kType, true}, {kType, true}},
          {{kType}, {kType, true}, {kType, true}},
          [](const Node& node) -> std::unique_ptr<Kernel> {
            return std::make_unique<CausalConvWithState<T>>(node);
          },
          in_place<kPastState, kPresentState>};
}

}  // namespace

std::vector<Operator> causal_conv_with_state_operators() {
  return {variant<float>(), variant<Float16>(), variant<BFloat16>()};
}

}  // namespace deltaworks::ort

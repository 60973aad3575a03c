// com.microsoft::VarlenCausalConvWithState
#include "deltaworks/varlen_causal_conv.hpp"

#include <vector>

#include "contract/values.hpp"
#include "contract/varlen_causal_conv.hpp"
#include "operator.hpp"

namespace deltaworks::ort {

namespace {

constexpr const char* kName = "VarlenCausalConvWithState";

enum Input {
  kInput,
  kWeight,
  kOffsets,
  kBias,
  kInitialState,
  kCaptureCount,
  kKernelDelta,
  kPreviousMask
};
enum Output { kOutput, kFinalState, kStateUpdate };

template <class T>
class VarlenCausalConv final : public Kernel {
 public:
  explicit VarlenCausalConv(const Node& node)
      : activation_(contract::value_or_throw(
            contract::parse_conv_activation(kName, node.attribute("activation", "none")))),
        dilation_(node.attribute("dilation", std::int64_t{1})),
        capacity_(state_update_capacity(node)),
        group_size_(node.attribute("group_size", std::int64_t{1})),
        delta_offset_(node.attribute("delta_offset", std::int64_t{0})),
        is_dynamic_(node.has_input(kKernelDelta)) {
    known_ = geometry(node);
    if (!is_dynamic_) prepare(node);
  }

  void compute(Call& call) const override {
    const auto g = geometry(call);
    VarlenCausalConvArgs<T> args{
        .input = call.view<T, 2>(kInput),
        .weight = call.view<T, 3>(kWeight),
        .cu_seqlens = call.view<std::int32_t, 1>(kOffsets),
        .initial_state = call.view<T, 3>(kInitialState),
        .output = call.output<T, 2>(kOutput, {g.tokens, g.channels}),
        .final_state = call.output<T, 3>(kFinalState, {g.sequences, g.channels, g.history}),
        .bias = call.optional_view<T, 1>(kBias),
        .activation = activation_,
        .dilation = dilation_,
        .kernel_delta = call.optional_view<T, 3>(kKernelDelta),
        .previous_mask = call.optional_view<T, 2>(kPreviousMask),
        .group_size = group_size_,
        .delta_offset = delta_offset_};
    if (!prepared_.empty()) {
      args.prepared_weight = View<const float, 2>(prepared_.data(), {g.width, g.channels});
    }
    const auto update =
        call.optional_output<T, 3>(kStateUpdate, {g.sequences, capacity_, g.channels});
    if (capacity_ > 0 && update) {
      args.state_update = update;
      args.capture_count = call.view<std::int32_t, 1>(kCaptureCount);
    }
    varlen_causal_conv(call.device(), args);
  }

  Plan plan() const override {
    const auto& g = known_;
    return {{{"sequences", g.sequences},
             {"tokens", g.tokens},
             {"channels", g.channels},
             {"width", g.width},
             {"dilation", g.dilation},
             {"capacity", g.capacity}},
            is_dynamic_ ? "dynamic" : "direct",
            bytes_of({g.channels, g.history}, sizeof(T)),
            "sequence"};
  }

  std::size_t prepared_bytes() const override { return prepared_.size() * sizeof(float); }

 private:
  // Constant weights, once for the life of the session.
  void prepare(const Node& node) {
    if (!node.is_constant(kWeight) || node.inputs[kWeight].data == nullptr) return;
    const auto& dims = node.inputs[kWeight].tensor.dims;
    const std::int64_t channels = dims[0], width = dims[2];
    if (channels < 1 || width < 1) return;
    prepared_.resize(static_cast<std::size_t>(channels * width));
    prepare_conv_weight(
        View<const T, 3>(static_cast<const T*>(node.inputs[kWeight].data), {channels, 1, width}),
        {prepared_.data(), {width, channels}});
  }

  template <class Source>
  contract::VarlenCausalConvGeometry geometry(const Source& source) const {
    return contract::value_or_throw(
        contract::varlen_causal_conv(kName, {.input = *source.input(kInput, 2),
                                             .weight = *source.input(kWeight, 3),
                                             .cu_seqlens = *source.input(kOffsets, 1),
                                             .initial_state = *source.input(kInitialState, 3),
                                             .bias = source.input(kBias, 1),
                                             .capture_count = source.input(kCaptureCount, 1),
                                             .activation = activation_,
                                             .dilation = dilation_,
                                             .state_update_capacity = capacity_,
                                             .kernel_delta = source.input(kKernelDelta, 3),
                                             .previous_mask = source.input(kPreviousMask, 2),
                                             .group_size = group_size_,
                                             .delta_offset = delta_offset_}));
  }

  ConvActivation activation_;
  std::int64_t dilation_, capacity_, group_size_, delta_offset_;
  bool is_dynamic_;
  contract::VarlenCausalConvGeometry known_;  // as the graph tells it
  std::vector<float> prepared_{};             // [width, channels]; empty: the weights may change
};

template <class T>
Operator variant() {
  constexpr auto kType = element_type<T>(), kInt = element_type<std::int32_t>();
  return {kName,
          {{kType},
           {kType},
           {kInt},
           {kType, true},
           {kType},
           {kInt, true},
           {kType, true},
           {kType, true}},
          {{kType}, {kType, true}, {kType, true}},
          [](const Node& node) -> std::unique_ptr<Kernel> {
            return std::make_unique<VarlenCausalConv<T>>(node);
          },
          in_place<kInitialState, kFinalState>};
}

}  // namespace

std::vector<Operator> varlen_causal_conv_operators() {
  return {variant<float>(), variant<Float16>(), variant<BFloat16>()};
}

}  // namespace deltaworks::ort

#include <fmt/format.h>

#include "bench.hpp"
#include "deltaworks/varlen_causal_conv.hpp"
#include "reference/varlen_causal_conv.hpp"

namespace deltaworks::cli {

namespace {

constexpr std::int64_t kWidth = 4, kHistory = kWidth - 1, kCapacity = 7;
constexpr std::int32_t kReplayed = 2;

// One sequence with SiLU, its state updated in place.
template <class T>
class Problem {
 public:
  Problem(std::int64_t channels, std::int64_t tokens)
      : channels_(channels), offsets_{0, static_cast<std::int32_t>(tokens)} {
    Draw draw(1);
    input_ = draw.buffer<T>(tokens * channels);
    weight_ = draw.buffer<T>(channels * kWidth, 0.5);
    bias_ = draw.buffer<T>(channels, 0.5);
    state_ = draw.buffer<T>(channels * kHistory);
    update_ = draw.buffer<T>(channels * kCapacity);
    output_.resize(input_.size());
    prepared_.resize(weight_.size());
    prepare_conv_weight(args().weight, {prepared_.data(), {kWidth, channels}});
  }

  double error() {
    std::vector<double> expected(input_.size());
    Buffer<T> expected_state(state_);
    auto call = args();
    call.final_state = {expected_state.data(), call.final_state.extents()};
    reference::varlen_causal_conv(call, View<double, 2>{expected.data(), {offsets_[1], channels_}});
    run(Cpu{});
    if (state_ != expected_state) return std::numeric_limits<double>::infinity();  // copies
    return excess<T>(output_, expected);
  }
  double replay_error() {
    Buffer<T> expected(state_);
    reference::replay_conv_state(replay_args(expected));
    replay(Cpu{});
    return state_ == expected ? 0 : std::numeric_limits<double>::infinity();
  }

  void run(const Cpu& device) { varlen_causal_conv(device, args()); }
  void run_prepared(const Cpu& device) {
    auto call = args();
    call.prepared_weight = View<const float, 2>{prepared_.data(), {kWidth, channels_}};
    varlen_causal_conv(device, call);
  }
  void replay(const Cpu& device) { replay_conv_state(device, replay_args(state_)); }

  OnnxNode node() {
    const auto call = args();
    return {"VarlenCausalConvWithState",
            "com.microsoft",
            {operand("input", call.input), constant(operand("weight", call.weight)),
             operand("cumulative_sequence_length", call.cu_seqlens),
             constant(operand("bias", *call.bias)), operand("initial_state", call.initial_state)},
            {operand("output", call.output), operand("final_state", call.final_state)},
            {{"activation", "silu"}},
            {}};
  }

 private:
  View<T, 3> view(Buffer<T>& state) { return {state.data(), {1, channels_, kHistory}}; }

  VarlenCausalConvArgs<T> args() {
    VarlenCausalConvArgs<T> call{.input = {input_.data(), {offsets_[1], channels_}},
                                 .weight = {weight_.data(), {channels_, 1, kWidth}},
                                 .cu_seqlens = {offsets_.data(), {2}},
                                 .initial_state = view(state_),
                                 .output = {output_.data(), {offsets_[1], channels_}},
                                 .final_state = view(state_)};
    call.bias = {bias_.data(), {channels_}};
    call.activation = ConvActivation::kSilu;
    return call;
  }
  ReplayConvStateArgs<T> replay_args(Buffer<T>& final_state) {
    return {.initial_state = view(state_),
            .state_update = {update_.data(), {1, kCapacity, channels_}},
            .count = {&kReplayed, {1}},
            .final_state = view(final_state)};
  }

  std::int64_t channels_;
  std::vector<std::int32_t> offsets_;
  Buffer<T> input_, weight_, bias_, state_, update_, output_;
  Buffer<float> prepared_;
};

// The dynamic mode as drafters have it: the projection holds two stages of two taps, one sequence of
// blocks, whose first row a mask of 0 cuts off.
template <class T>
class DynamicProblem {
 public:
  DynamicProblem(const bench::DynamicConvShape& shape, std::int64_t blocks)
      : shape_(shape), offsets_{0, static_cast<std::int32_t>(blocks * shape.rows_per_lane)} {
    Draw draw(1);
    const std::int64_t tokens = offsets_[1];
    input_ = draw.buffer<T>(tokens * shape.channels);
    weight_ = draw.buffer<T>(shape.channels * 2, 0.5);
    delta_ = draw.buffer<T>(tokens * kTaps * shape.groups, 0.3);
    state_ = draw.buffer<T>(shape.channels);
    for (std::int64_t t = 0; t < tokens; ++t) {
      mask_.push_back(from_float<T>(t % shape.rows_per_lane == 0 ? 0.0f : 1.0f));
    }
    output_.resize(input_.size());
  }

  double error() {
    std::vector<double> expected(input_.size());
    Buffer<T> expected_state(state_);
    auto call = args();
    call.final_state = {expected_state.data(), call.final_state.extents()};
    reference::varlen_causal_conv(call, View<double, 2>{expected.data(), call.input.extents()});
    run(Cpu{});
    return excess<T>(output_, expected);
  }
  void run(const Cpu& device) { varlen_causal_conv(device, args()); }

  OnnxNode node() {
    const auto call = args();
    return {"VarlenCausalConvWithState",
            "com.microsoft",
            {operand("input", call.input),
             constant(operand("weight", call.weight)),
             operand("cumulative_sequence_length", call.cu_seqlens),
             {},
             operand("initial_state", call.initial_state),
             {},
             operand("kernel_delta", *call.kernel_delta),
             operand("previous_mask", *call.previous_mask)},
            {operand("output", call.output), operand("final_state", call.final_state)},
            {{"group_size", call.group_size}, {"delta_offset", call.delta_offset}},
            {}};
  }

 private:
  static constexpr std::int64_t kTaps = 4;

  VarlenCausalConvArgs<T> args() {
    const std::int64_t tokens = offsets_[1], channels = shape_.channels;
    VarlenCausalConvArgs<T> call{.input = {input_.data(), {tokens, channels}},
                                 .weight = {weight_.data(), {channels, 1, 2}},
                                 .cu_seqlens = {offsets_.data(), {2}},
                                 .initial_state = {state_.data(), {1, channels, 1}},
                                 .output = {output_.data(), {tokens, channels}},
                                 .final_state = {state_.data(), {1, channels, 1}}};
    call.kernel_delta = {delta_.data(), {tokens, kTaps, shape_.groups}};
    call.previous_mask = {mask_.data(), {tokens, 1}};
    call.group_size = channels / shape_.groups;
    return call;
  }

  bench::DynamicConvShape shape_;
  std::vector<std::int32_t> offsets_;
  Buffer<T> input_, weight_, delta_, mask_, state_, output_;
};

template <class T>
ReadyCall conv_call(std::int64_t channels, std::int64_t tokens) {
  const double error = Problem<T>(channels, std::min<std::int64_t>(tokens, 20)).error();
  const auto problem = std::make_shared<Problem<T>>(channels, tokens);
  OnnxNode node = problem->node();
  node.memory = problem;
  return {error, [problem](const Cpu& device) { problem->run(device); },
          PeerNodes{node, "its VarlenCausalConvWithState", node, {0, 1}},
          Variant{"with prepared weights",
                  [problem](const Cpu& device) { problem->run_prepared(device); }}};
}

template <class T>
ReadyCall dynamic_call(const bench::DynamicConvShape& shape, std::int64_t blocks) {
  const auto problem = std::make_shared<DynamicProblem<T>>(shape, blocks);
  OnnxNode node = problem->node();
  node.memory = problem;
  return {problem->error(), [problem](const Cpu& device) { problem->run(device); },
          PeerNodes{node, "its VarlenCausalConvWithState", node, {0, 1}}};
}

template <class T>
ReadyCall replay_call(std::int64_t channels) {
  const auto problem = std::make_shared<Problem<T>>(channels, 1);
  return {problem->replay_error(), [problem](const Cpu& device) { problem->replay(device); }, {}};
}

Bound copies(std::size_t bytes, std::int64_t flops) {
  return {Bound::Kind::kCopy, static_cast<double>(bytes), bytes, static_cast<double>(flops)};
}

template <class T>
void add(const bench::GatedDeltaNetShape& shape, BenchCalls& calls) {
  const std::int64_t channels = shape.channels();
  const std::string text = fmt::format("{} channels, width {}, silu", channels, kWidth);
  for (const std::int64_t tokens : {1, 8, 256, 1024}) {
    const auto elements =
        static_cast<std::size_t>(channels * (2 * tokens + kWidth + 1 + 2 * kHistory));
    calls.push_back({"varlen_causal_conv", text, shape.name, count_text(tokens, "token"),
                     dtype_of<T>(), copies(elements * sizeof(T), 2 * kWidth * channels * tokens),
                     [channels, tokens] { return conv_call<T>(channels, tokens); }});
  }
  const auto elements = static_cast<std::size_t>(channels * (2 * kHistory + kReplayed));
  calls.push_back({"varlen_causal_conv", text, shape.name,
                   fmt::format("replay of {} tokens", kReplayed), dtype_of<T>(),
                   copies(elements * sizeof(T), 0),
                   [channels] { return replay_call<T>(channels); }});
}

template <class T>
void add_dynamic(const bench::DynamicConvShape& shape, std::int64_t blocks, BenchCalls& calls) {
  const std::int64_t tokens = blocks * shape.rows_per_lane;
  const std::int64_t elements =
      tokens * (2 * shape.channels + 2 * shape.groups + 1) + 4 * shape.channels;
  calls.push_back(
      {"varlen_causal_conv",
       fmt::format("{} channels, dynamic, {} groups", shape.channels, shape.groups), shape.name,
       count_text(tokens, "token"), dtype_of<T>(),
       copies(static_cast<std::size_t>(elements) * sizeof(T), 6 * tokens * shape.channels),
       [=] { return dynamic_call<T>(shape, blocks); }});
}

}  // namespace

void bench_varlen_causal_conv(DType dtype, BenchCalls& calls) {
  visit_dtype(dtype, [&]<class T>(T) {
    for (const auto& shape : bench::kGatedDeltaNetShapes) add<T>(shape, calls);
    for (const std::int64_t blocks : {1, 64}) {
      add_dynamic<T>(bench::kDynamicConvShapes[0], blocks, calls);
    }
  });
}

}  // namespace deltaworks::cli

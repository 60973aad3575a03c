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
  void replay(const Cpu& device) { replay_conv_state(device, replay_args(state_)); }

  OnnxNode node() {
    const auto call = args();
    return {"VarlenCausalConvWithState",
            "com.microsoft",
            {operand("input", call.input), operand("weight", call.weight),
             operand("cumulative_sequence_length", call.cu_seqlens), operand("bias", *call.bias),
             operand("initial_state", call.initial_state)},
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
};

template <class T>
ReadyCall conv_call(std::int64_t channels, std::int64_t tokens) {
  const double error = Problem<T>(channels, std::min<std::int64_t>(tokens, 20)).error();
  const auto problem = std::make_shared<Problem<T>>(channels, tokens);
  OnnxNode node = problem->node();
  node.memory = problem;
  return {error, [problem](const Cpu& device) { problem->run(device); },
          PeerNodes{node, "its VarlenCausalConvWithState", node, {0, 1}}};
}

template <class T>
ReadyCall replay_call(std::int64_t channels) {
  const auto problem = std::make_shared<Problem<T>>(channels, 1);
  return {problem->replay_error(), [problem](const Cpu& device) { problem->replay(device); }, {}};
}

template <class T>
void add(const bench::GatedDeltaNetShape& shape, BenchCalls& calls) {
  const std::int64_t channels = shape.channels();
  const std::string text = fmt::format("{} channels, width {}, silu", channels, kWidth);
  const auto copy = [](std::size_t bytes) {
    return Bound{Bound::Kind::kCopy, static_cast<double>(bytes), bytes};
  };
  for (const std::int64_t tokens : {1, 8, 256}) {
    const auto elements =
        static_cast<std::size_t>(channels * (2 * tokens + kWidth + 1 + 2 * kHistory));
    calls.push_back({"varlen_causal_conv", text, shape.name, count_text(tokens, "token"),
                     dtype_of<T>(), copy(elements * sizeof(T)),
                     [channels, tokens] { return conv_call<T>(channels, tokens); }});
  }
  const auto elements = static_cast<std::size_t>(channels * (2 * kHistory + kReplayed));
  calls.push_back({"varlen_causal_conv", text, shape.name,
                   fmt::format("replay of {} tokens", kReplayed), dtype_of<T>(),
                   copy(elements * sizeof(T)), [channels] { return replay_call<T>(channels); }});
}

}  // namespace

void bench_varlen_causal_conv(DType dtype, BenchCalls& calls) {
  visit_dtype(dtype, [&]<class T>(T) {
    for (const auto& shape : bench::kGatedDeltaNetShapes) add<T>(shape, calls);
  });
}

}  // namespace deltaworks::cli

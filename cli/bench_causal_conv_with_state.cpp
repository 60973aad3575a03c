#include <fmt/format.h>

#include "bench.hpp"
#include "deltaworks/causal_conv_with_state.hpp"
#include "reference/causal_conv_with_state.hpp"

namespace deltaworks::cli {

namespace {

constexpr std::int64_t kWidth = 4, kHistory = kWidth - 1;

// One sequence with SiLU, channels first, its state updated in place.
template <class T>
class Problem {
 public:
  Problem(std::int64_t channels, std::int64_t tokens) : channels_(channels), tokens_(tokens) {
    Draw draw(1);
    input_ = draw.buffer<T>(tokens * channels);
    weight_ = draw.buffer<T>(channels * kWidth, 0.5);
    bias_ = draw.buffer<T>(channels, 0.5);
    state_ = draw.buffer<T>(channels * kHistory);
    output_.resize(input_.size());
  }

  double error() {
    std::vector<double> expected(input_.size());
    Buffer<T> expected_state(state_);
    auto call = args();
    call.present_state = {expected_state.data(), call.present_state.extents()};
    reference::causal_conv_with_state(call,
                                      View<double, 3>{expected.data(), call.output.extents()});
    run(Cpu{});
    if (state_ != expected_state) return std::numeric_limits<double>::infinity();  // copies
    return excess<T>(output_, expected);
  }
  void run(const Cpu& device) { causal_conv_with_state(device, args()); }

  OnnxNode node() {
    const auto call = args();
    return {"CausalConvWithState",
            "com.microsoft",
            {operand("input", call.input), constant(operand("weight", call.weight)),
             constant(operand("bias", *call.bias)), operand("past_state", *call.past_state)},
            {operand("output", call.output), operand("present_state", call.present_state)},
            {{"activation", "silu"}},
            {}};
  }

 private:
  CausalConvWithStateArgs<T> args() {
    CausalConvWithStateArgs<T> call{.input = {input_.data(), {1, channels_, tokens_}},
                                    .weight = {weight_.data(), {channels_, 1, kWidth}},
                                    .output = {output_.data(), {1, channels_, tokens_}},
                                    .present_state = {state_.data(), {1, channels_, kHistory}},
                                    .activation = ConvActivation::kSilu};
    call.bias = View<const T, 1>{bias_.data(), {channels_}};
    call.past_state = call.present_state;
    return call;
  }

  std::int64_t channels_, tokens_;
  Buffer<T> input_, weight_, bias_, state_, output_;
};

template <class T>
ReadyCall call_of(std::int64_t channels, std::int64_t tokens) {
  const double error = Problem<T>(channels, std::min<std::int64_t>(tokens, 20)).error();
  const auto problem = std::make_shared<Problem<T>>(channels, tokens);
  ReadyCall ready{error, [problem](const Cpu& device) { problem->run(device); }, {}};
  if (dtype_of<T>() == DType::kFloat32) {  // ONNX Runtime has no other
    OnnxNode node = problem->node();
    node.memory = problem;
    ready.peers = PeerNodes{node, "its CausalConvWithState", node, {0, 1}};
  }
  return ready;
}

template <class T>
void add(const bench::GatedDeltaNetShape& shape, BenchCalls& calls) {
  const std::int64_t channels = shape.channels();
  for (const std::int64_t tokens : {1, 8, 256}) {
    const auto bytes =
        sizeof(T) * static_cast<std::size_t>(channels * (2 * tokens + kWidth + 1 + 2 * kHistory));
    calls.push_back({"causal_conv_with_state",
                     fmt::format("{} channels, width {}, silu", channels, kWidth), shape.name,
                     count_text(tokens, "token"), dtype_of<T>(),
                     Bound{Bound::Kind::kCopy, static_cast<double>(bytes), bytes,
                           static_cast<double>(2 * kWidth * channels * tokens)},
                     [channels, tokens] { return call_of<T>(channels, tokens); }});
  }
}

}  // namespace

void bench_causal_conv_with_state(DType dtype, BenchCalls& calls) {
  visit_dtype(dtype, [&]<class T>(T) {
    for (const auto& shape : bench::kGatedDeltaNetShapes) add<T>(shape, calls);
  });
}

}  // namespace deltaworks::cli

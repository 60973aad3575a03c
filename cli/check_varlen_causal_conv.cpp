#include "check.hpp"
#include "deltaworks/varlen_causal_conv.hpp"
#include "reference/varlen_causal_conv.hpp"

namespace deltaworks::cli {

namespace {

template <class T>
class Problem {
 public:
  explicit Problem(Draw& draw)
      : channels_(draw.integer(1, 200)),
        width_(draw.integer(1, 5)),
        dilation_(draw.integer(1, 2)),
        offsets_(draw.cu_seqlens()),
        input_(draw.normal<T>(tokens() * channels_)),
        weight_(draw.normal<T>(channels_ * width_, 0.5)),
        bias_(draw.normal<T>(channels_, 0.5)),
        initial_(draw.normal<T>(sequences() * channels_ * history())),
        capture_(static_cast<std::size_t>(sequences()), kCapacity) {
    for (std::size_t b = 1; b < offsets_.size(); ++b) {
      count_.push_back(std::min<std::int32_t>(offsets_[b] - offsets_[b - 1], kCapacity));
    }
  }

  void check(Measurements& measurements) {
    const auto size = static_cast<std::size_t>(sequences() * channels_);
    std::vector<T> output(input_.size()), final_state(initial_.size()), update(kCapacity * size);
    std::vector<T> expected_state(final_state), expected_update(update);
    std::vector<double> expected(input_.size());
    reference::varlen_causal_conv(args(output, expected_state, expected_update),
                                  View<double, 2>{expected.data(), {tokens(), channels_}});
    varlen_causal_conv(Cpu{}, args(output, final_state, update));
    const DType dtype = dtype_of<T>();
    measurements.compare(dtype, "output", output, expected, 1.01);
    // These are copies of inputs.
    measurements.compare(dtype, "final_state", final_state, widened(expected_state), 0);
    measurements.compare(dtype, "state_update", update, widened(expected_update), 0);
    reference::replay_conv_state(replay_args(update, expected_state));
    replay_conv_state(Cpu{}, replay_args(update, final_state));
    measurements.compare(dtype, "replayed", final_state, widened(expected_state), 0);
  }

 private:
  static constexpr std::int64_t kCapacity = 7;

  std::int64_t sequences() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  std::int64_t tokens() const { return offsets_.back(); }
  std::int64_t history() const { return (width_ - 1) * dilation_; }

  static std::vector<double> widened(const std::vector<T>& values) {
    std::vector<double> wide;
    for (const T value : values) wide.push_back(static_cast<double>(to_float(value)));
    return wide;
  }

  VarlenCausalConvArgs<T> args(std::vector<T>& output, std::vector<T>& final_state,
                               std::vector<T>& update) const {
    const std::int64_t n = tokens(), b = sequences();
    VarlenCausalConvArgs<T> call{.input = {input_.data(), {n, channels_}},
                                 .weight = {weight_.data(), {channels_, 1, width_}},
                                 .cu_seqlens = {offsets_.data(), {b + 1}},
                                 .initial_state = {initial_.data(), {b, channels_, history()}},
                                 .output = {output.data(), {n, channels_}},
                                 .final_state = {final_state.data(), {b, channels_, history()}}};
    call.bias = {bias_.data(), {channels_}};
    call.capture_count = {capture_.data(), {b}};
    call.state_update = {update.data(), {b, kCapacity, channels_}};
    call.activation = ConvActivation::kSilu;
    call.dilation = dilation_;
    return call;
  }

  ReplayConvStateArgs<T> replay_args(const std::vector<T>& update,
                                     std::vector<T>& final_state) const {
    const std::int64_t b = sequences();
    return {.initial_state = {initial_.data(), {b, channels_, history()}},
            .state_update = {update.data(), {b, kCapacity, channels_}},
            .count = {count_.data(), {b}},
            .final_state = {final_state.data(), {b, channels_, history()}}};
  }

  std::int64_t channels_, width_, dilation_;
  std::vector<std::int32_t> offsets_;
  std::vector<T> input_, weight_, bias_, initial_;
  std::vector<std::int32_t> capture_, count_;
};

// Two taps that depend on the token. The reference rounds as the operator does.
template <class T>
class DynamicProblem {
 public:
  explicit DynamicProblem(Draw& draw)
      : groups_(draw.integer(1, 20)),
        group_size_(draw.integer(1, 32)),
        channels_(groups_ * group_size_),
        offsets_(draw.cu_seqlens()),
        input_(draw.normal<T>(offsets_.back() * channels_)),
        weight_(draw.normal<T>(channels_ * 2, 0.5)),
        initial_(draw.normal<T>((std::ssize(offsets_) - 1) * channels_)),
        delta_(draw.normal<T>(offsets_.back() * kTaps * groups_, 0.3)),
        mask_(draw.normal<T>(offsets_.back())) {}

  void check(Measurements& measurements) {
    const std::int64_t tokens = offsets_.back(), sequences = std::ssize(offsets_) - 1;
    std::vector<T> output(input_.size()), final_state(initial_.size());
    std::vector<double> expected(input_.size());
    VarlenCausalConvArgs<T> args{.input = {input_.data(), {tokens, channels_}},
                                 .weight = {weight_.data(), {channels_, 1, 2}},
                                 .cu_seqlens = {offsets_.data(), {sequences + 1}},
                                 .initial_state = {initial_.data(), {sequences, channels_, 1}},
                                 .output = {output.data(), {tokens, channels_}},
                                 .final_state = {final_state.data(), {sequences, channels_, 1}}};
    args.kernel_delta = {delta_.data(), {tokens, kTaps, groups_}};
    args.previous_mask = {mask_.data(), {tokens, 1}};
    args.group_size = group_size_;
    args.delta_offset = kTaps - 2;
    reference::varlen_causal_conv(args, View<double, 2>{expected.data(), {tokens, channels_}});
    varlen_causal_conv(Cpu{}, args);
    measurements.compare(dtype_of<T>(), "dynamic", output, expected, 0);
  }

 private:
  static constexpr std::int64_t kTaps = 4;  // of both stages of a drafter

  std::int64_t groups_, group_size_, channels_;
  std::vector<std::int32_t> offsets_;
  std::vector<T> input_, weight_, initial_, delta_, mask_;
};

template <class T>
void check_type(Draw& draw, Measurements& measurements) {
  Problem<T>(draw).check(measurements);
  DynamicProblem<T>(draw).check(measurements);
}

}  // namespace

void check_varlen_causal_conv(Draw& draw, Measurements& measurements) {
  check_type<float>(draw, measurements);
  check_type<Float16>(draw, measurements);
  check_type<BFloat16>(draw, measurements);
}

}  // namespace deltaworks::cli

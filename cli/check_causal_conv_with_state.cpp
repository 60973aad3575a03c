#include "check.hpp"
#include "deltaworks/causal_conv_with_state.hpp"
#include "reference/causal_conv_with_state.hpp"

namespace deltaworks::cli {

namespace {

template <class T>
class Problem {
 public:
  explicit Problem(Draw& draw)
      : channels_(draw.integer(1, 100)),
        length_(draw.integer(1, 80)),
        width_(draw.integer(1, 5)),
        dilation_(draw.integer(1, 2)),
        channels_last_(draw.integer(0, 1) != 0),
        input_(draw.normal<T>(kSequences * channels_ * length_)),
        weight_(draw.normal<T>(channels_ * width_, 0.5)),
        bias_(draw.normal<T>(channels_, 0.5)),
        past_(draw.normal<T>(kSequences * channels_ * history())) {}

  void check(Measurements& measurements) {
    std::vector<T> output(input_.size()), present(past_.size()), copies(past_.size());
    std::vector<double> expected(input_.size()), expected_state;
    reference::causal_conv_with_state(args(output, copies),
                                      View<double, 3>{expected.data(), extents(length_)});
    causal_conv_with_state(Cpu{}, args(output, present));
    for (const T x : copies) expected_state.push_back(static_cast<double>(to_float(x)));
    const DType dtype = dtype_of<T>();
    measurements.compare(dtype, "output", output, expected, 1.01);
    measurements.compare(dtype, "state", present, expected_state, 0);  // copies of inputs
  }

 private:
  static constexpr std::int64_t kSequences = 2;

  std::int64_t history() const { return (width_ - 1) * dilation_; }
  std::array<std::int64_t, 3> extents(std::int64_t positions) const {
    if (channels_last_) return {kSequences, positions, channels_};
    return {kSequences, channels_, positions};
  }

  CausalConvWithStateArgs<T> args(std::vector<T>& output, std::vector<T>& present) const {
    CausalConvWithStateArgs<T> call{.input = {input_.data(), extents(length_)},
                                    .weight = {weight_.data(), {channels_, 1, width_}},
                                    .output = {output.data(), extents(length_)},
                                    .present_state = {present.data(), extents(history())},
                                    .activation = ConvActivation::kSilu,
                                    .dilation = dilation_,
                                    .channels_last = channels_last_};
    call.bias = View<const T, 1>{bias_.data(), {channels_}};
    call.past_state = View<const T, 3>{past_.data(), extents(history())};
    return call;
  }

  std::int64_t channels_, length_, width_, dilation_;
  bool channels_last_;
  std::vector<T> input_, weight_, bias_, past_;
};

}  // namespace

void check_causal_conv_with_state(Draw& draw, Measurements& measurements) {
  Problem<float>(draw).check(measurements);
  Problem<Float16>(draw).check(measurements);
  Problem<BFloat16>(draw).check(measurements);
}

}  // namespace deltaworks::cli

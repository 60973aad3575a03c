#include "check.hpp"
#include "deltaworks/dflash2_dynamic_conv.hpp"
#include "reference/dflash2_dynamic_conv.hpp"

namespace deltaworks::cli {

namespace {

// Both stages of a drafter's call, with a residual in R.
template <class T, class R, class Base>
class Problem {
 public:
  explicit Problem(Draw& draw)
      : rows_per_lane_(draw.integer(1, 16)),
        rows_(rows_per_lane_ * draw.integer(1, 4)),
        taps_(draw.integer(1, 4)),
        groups_(draw.integer(1, 20)),
        channels_(groups_ * draw.integer(1, 32)),
        input_(draw.normal<T>(rows_ * channels_)),
        dynamic_(draw.normal<T>(rows_ * 2 * taps_ * groups_, 0.3)),
        base_(draw.normal<Base>(2 * taps_ * channels_, 0.5)),
        residual_(draw.normal<R>(rows_ * channels_)) {}

  void check(Measurements& measurements) {
    constexpr bool kSame = std::is_same_v<T, R>;
    DFlash2DynamicConvArgs<T, R, Base> args{
        .input = {input_.data(), {rows_, channels_}},
        .dynamic = {dynamic_.data(), {rows_, 2 * taps_ * groups_}},
        .base = {base_.data(), {2, taps_, channels_}},
        .output = {},
        .rows_per_lane = rows_per_lane_,
        .groups = groups_};
    compare(measurements, kSame ? "prepare" : "prepare f32", args);
    args.residual = {residual_.data(), {rows_, channels_}};
    args.stage = DFlash2Stage::kResidual;
    compare(measurements, kSame ? "residual" : "residual f32", args);
  }

 private:
  void compare(Measurements& measurements, const char* result,
               DFlash2DynamicConvArgs<T, R, Base> args) {
    std::vector<R> output(input_.size());
    std::vector<double> expected(input_.size());
    args.output = {output.data(), {rows_, channels_}};
    dflash2_dynamic_conv(Cpu{}, args);
    reference::dflash2_dynamic_conv(args, View<double, 2>{expected.data(), {rows_, channels_}});
    measurements.compare(dtype_of<T>(), result, output, expected, 1.01);
  }

  std::int64_t rows_per_lane_, rows_, taps_, groups_, channels_;
  std::vector<T> input_, dynamic_;
  std::vector<Base> base_;
  std::vector<R> residual_;
};

}  // namespace

void check_dflash2_dynamic_conv(Draw& draw, Measurements& measurements) {
  Problem<float, float, float>(draw).check(measurements);
  Problem<Float16, Float16, Float16>(draw).check(measurements);
  Problem<Float16, float, BFloat16>(draw).check(measurements);
  Problem<BFloat16, BFloat16, BFloat16>(draw).check(measurements);
  Problem<BFloat16, float, BFloat16>(draw).check(measurements);
}

}  // namespace deltaworks::cli

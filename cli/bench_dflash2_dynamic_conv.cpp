#include <fmt/format.h>

#include "bench.hpp"
#include "deltaworks/dflash2_dynamic_conv.hpp"
#include "reference/dflash2_dynamic_conv.hpp"

namespace deltaworks::cli {

namespace {

// Blocks of a drafter, residual and output in the type of the activations.
template <class T>
class Problem {
 public:
  Problem(const bench::DynamicConvShape& shape, std::int64_t lanes, DFlash2Stage stage)
      : shape_(shape), rows_(lanes * shape.rows_per_lane), stage_(stage) {
    Draw draw(1);
    input_ = draw.buffer<T>(rows_ * shape.channels);
    dynamic_ = draw.buffer<T>(rows_ * 2 * shape.taps * shape.groups, 0.3);
    base_ = draw.buffer<T>(2 * shape.taps * shape.channels, 0.5);
    residual_ = draw.buffer<T>(rows_ * shape.channels);
    output_.resize(input_.size());
  }

  double error() {
    std::vector<double> expected(output_.size());
    reference::dflash2_dynamic_conv(args(),
                                    View<double, 2>{expected.data(), {rows_, shape_.channels}});
    run(Cpu{});
    return excess<T>(output_, expected);
  }
  void run(const Cpu& device) { dflash2_dynamic_conv(device, args()); }

 private:
  DFlash2DynamicConvArgs<T> args() {
    const std::int64_t channels = shape_.channels;
    DFlash2DynamicConvArgs<T> call{
        .input = {input_.data(), {rows_, channels}},
        .dynamic = {dynamic_.data(), {rows_, 2 * shape_.taps * shape_.groups}},
        .base = {base_.data(), {2, shape_.taps, channels}},
        .output = {output_.data(), {rows_, channels}},
        .stage = stage_,
        .rows_per_lane = shape_.rows_per_lane,
        .groups = shape_.groups};
    if (stage_ == DFlash2Stage::kResidual) call.residual = {residual_.data(), {rows_, channels}};
    return call;
  }

  bench::DynamicConvShape shape_;
  std::int64_t rows_;
  DFlash2Stage stage_;
  Buffer<T> input_, dynamic_, base_, residual_, output_;
};

// What a call must move: one stage reads half of `dynamic` and of `base`.
std::int64_t elements(const bench::DynamicConvShape& shape, std::int64_t lanes,
                      DFlash2Stage stage) {
  const std::int64_t rows = lanes * shape.rows_per_lane;
  const std::int64_t passes = stage == DFlash2Stage::kResidual ? 3 : 2;
  return rows * (passes * shape.channels + shape.taps * shape.groups) + shape.taps * shape.channels;
}

template <class T>
void add(const bench::DynamicConvShape& shape, std::int64_t lanes, DFlash2Stage stage,
         BenchCalls& calls) {
  const std::size_t bytes = static_cast<std::size_t>(elements(shape, lanes, stage)) * sizeof(T);
  calls.push_back(
      {"dflash2_dynamic_conv",
       fmt::format("{} channels, {} groups, {} taps", shape.channels, shape.groups, shape.taps),
       shape.name,
       fmt::format("{} of {} rows, {}", count_text(lanes, "block"), shape.rows_per_lane,
                   stage == DFlash2Stage::kResidual ? "residual" : "prepare"),
       dtype_of<T>(),
       {Bound::Kind::kCopy, static_cast<double>(bytes), bytes,
        static_cast<double>(3 * shape.taps * shape.channels * lanes * shape.rows_per_lane)},
       [=] {
         const auto problem = std::make_shared<Problem<T>>(shape, lanes, stage);
         return ReadyCall{
             problem->error(), [problem](const Cpu& device) { problem->run(device); }, {}};
       }});
}

}  // namespace

void bench_dflash2_dynamic_conv(DType dtype, BenchCalls& calls) {
  visit_dtype(dtype, [&]<class T>(T) {
    for (const auto& shape : bench::kDynamicConvShapes) {
      add<T>(shape, 1, DFlash2Stage::kPrepare, calls);
      add<T>(shape, 1, DFlash2Stage::kResidual, calls);
      add<T>(shape, 64, DFlash2Stage::kPrepare, calls);
    }
  });
}

}  // namespace deltaworks::cli

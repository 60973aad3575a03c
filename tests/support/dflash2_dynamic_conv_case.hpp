// One call of dflash2_dynamic_conv with memory of its own, and what came out of it.
#pragma once

#include <cstdint>
#include <vector>

#include "deltaworks/dflash2_dynamic_conv.hpp"
#include "reference/dflash2_dynamic_conv.hpp"
#include "support/buffer.hpp"
#include "support/compare.hpp"
#include "support/cuda.hpp"
#include "support/random.hpp"

namespace deltaworks::testing {

template <class T_, class R_ = T_, class Base_ = T_>
struct DFlash2Case {
  using T = T_;
  using R = R_;
  using Base = Base_;
  using Args = DFlash2DynamicConvArgs<T, R, Base>;

  std::int64_t lanes = 1, rows_per_lane = 1, taps = 2, groups = 1, group_size = 1;
  DFlash2Stage stage = DFlash2Stage::kPrepare;
  DFlash2Arithmetic arithmetic = DFlash2Arithmetic::kFloat32;
  std::vector<T> input{}, dynamic{};
  std::vector<Base> base{};
  std::vector<R> residual{};

  std::int64_t rows() const { return lanes * rows_per_lane; }
  std::int64_t channels() const { return groups * group_size; }
  std::int64_t dynamic_width() const { return 2 * taps * groups; }
  std::int64_t stage_index() const { return stage == DFlash2Stage::kPrepare ? 0 : 1; }

  void fill(Random& random) {
    input = random.normal<T>(rows() * channels());
    dynamic = random.normal<T>(rows() * dynamic_width(), 0.3);
    base = random.normal<Base>(2 * taps * channels(), 0.5, 0.2);
    residual = random.normal<R>(rows() * channels());
  }

  Args args(R* output) const {
    Args args{.input = view_of<2>(input, {rows(), channels()}),
              .dynamic = view_of<2>(dynamic, {rows(), dynamic_width()}),
              .base = view_of<3>(base, {2, taps, channels()}),
              .output = {output, {rows(), channels()}},
              .stage = stage,
              .rows_per_lane = rows_per_lane,
              .groups = groups,
              .arithmetic = arithmetic};
    if (stage == DFlash2Stage::kResidual)
      args.residual = view_of<2>(residual, {rows(), channels()});
    return args;
  }

  // On the backend that is tested.
  static void call(const Cpu& cpu, const Args& args) {
    run_on(cpu, args, [](const auto& device, const Args& to) { dflash2_dynamic_conv(device, to); });
  }
  std::vector<R> run(const Cpu& cpu) const {
    Buffer<R> output(rows() * channels());
    call(cpu, args(output.data()));
    return output.values();
  }
  std::vector<double> reference() const {
    std::vector<double> output(static_cast<std::size_t>(rows() * channels()));
    reference::dflash2_dynamic_conv(args(nullptr),
                                    View<double, 2>(output.data(), {rows(), channels()}));
    return output;
  }
  // Lanes in another order, or some of them: lane i is this call's lane `order[i]`.
  DFlash2Case picked(const std::vector<std::int64_t>& order) const {
    DFlash2Case other = *this;
    other.lanes = std::ssize(order);
    other.input = lanes_of(input, order);
    other.dynamic = lanes_of(dynamic, order);
    other.residual = lanes_of(residual, order);
    return other;
  }
  template <class E>
  std::vector<E> lanes_of(const std::vector<E>& values,
                          const std::vector<std::int64_t>& order) const {
    const std::int64_t size = std::ssize(values) / lanes;
    std::vector<E> picked;
    for (const std::int64_t lane : order) {
      picked.insert(picked.end(), values.begin() + lane * size, values.begin() + (lane + 1) * size);
    }
    return picked;
  }
};

// Calls body with an empty case of each combination of types.
template <class Body>
void for_each_dflash2_type(const Body& body) {
  const auto named = [&](const char* name, auto problem) {
    SCOPED_TRACE(name);
    body(problem);
  };
  named("float32", DFlash2Case<float>());
  named("float32, base bfloat16", DFlash2Case<float, float, BFloat16>());
  named("float16", DFlash2Case<Float16>());
  named("float16, base bfloat16", DFlash2Case<Float16, Float16, BFloat16>());
  named("float16 to float32", DFlash2Case<Float16, float>());
  named("float16 to float32, base bfloat16", DFlash2Case<Float16, float, BFloat16>());
  named("bfloat16", DFlash2Case<BFloat16>());
  named("bfloat16 to float32", DFlash2Case<BFloat16, float>());
}

// A small call of any geometry and either stage.
template <class Case>
Case any_dflash2(Random& random, Case c) {
  constexpr std::int64_t kGroupSizes[] = {1, 2, 3, 4, 7, 8, 15, 16, 17, 32, 100, 300};
  c.taps = random.integer(1, 4);
  c.lanes = random.integer(0, 4);
  c.rows_per_lane = random.integer(1, random.integer(0, 3) == 0 ? 20 : 5);
  c.group_size = kGroupSizes[random.integer(0, std::ssize(kGroupSizes) - 1)];
  c.groups = random.integer(1, 700 / c.group_size);
  c.stage = random.integer(0, 1) ? DFlash2Stage::kResidual : DFlash2Stage::kPrepare;
  c.fill(random);
  return c;
}

}  // namespace deltaworks::testing

// Elements lie across the lanes, each input is read once. What depends on the head alone is computed
// once a task: rows without gaps are taken as one long row over repetitions of it, so that a number
// of heads that fills no whole vectors wastes no lanes.
#include "cpu/gated_delta_rates.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <variant>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gated_delta_rates.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/gates-inl.h"
#include "cpu/load-inl.h"
#include "cpu/math-inl.h"
#include "cpu/parallel.hpp"

#ifndef DELTAWORKS_CPU_GATED_DELTA_RATES_ONCE_
#define DELTAWORKS_CPU_GATED_DELTA_RATES_ONCE_
namespace deltaworks::cpu {

// One name for every type: dispatch takes no template.
using RatesArgs =
    std::variant<const GatedDeltaRatesArgs<float>*, const GatedDeltaRatesArgs<Float16>*,
                 const GatedDeltaRatesArgs<BFloat16>*>;

}  // namespace deltaworks::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kPeriod = 1024;  // floats of each parameter: 8 KiB together

// What a stretch of heads multiplies and adds, `repeats` times one after another.
struct Parameters {
  HWY_ALIGN float scale[kPeriod];  // exp(a_log), finite
  HWY_ALIGN float bias[kPeriod];   // dt_bias, finite
};

template <class T>
void prepare(const GatedDeltaRatesArgs<T>& args, std::int64_t first, std::int64_t heads,
             std::int64_t repeats, Parameters& parameters) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < heads; ++i) {
    parameters.scale[i] = args.a_log(first + i);
    parameters.bias[i] = args.dt_bias(first + i);
  }
  for (std::int64_t i = 0; i < heads; i += lanes) {
    const auto n = static_cast<std::size_t>(std::min(lanes, heads - i));
    float* const scale = parameters.scale + i;
    float* const bias = parameters.bias + i;
    store_float_n(finite_exp(d, load_float_n(d, scale, n)), d, scale, n);
    store_float_n(finite(d, load_float_n(d, bias, n)), d, bias, n);
  }
  for (std::int64_t i = 1; i < repeats; ++i) {
    std::copy_n(parameters.scale, heads, parameters.scale + i * heads);
    std::copy_n(parameters.bias, heads, parameters.bias + i * heads);
  }
  // The last vector may be read whole.
  const std::int64_t size = heads * repeats, padded = std::min(size + lanes, kPeriod);
  std::fill(parameters.scale + size, parameters.scale + padded, 0.0f);
  std::fill(parameters.bias + size, parameters.bias + padded, 0.0f);
}

// Elements that lie one after another in every operand; at most kPeriod.
template <class T>
struct Stretch {
  const T* update_logits;
  const T* decay_inputs;
  T* update_rates;
  float* decay_factors;
  std::int64_t size;
};

// Vectors a turn. Their operations alternate, which fills the ports (run_stretch); with 16 registers more than two spill.
constexpr std::int64_t kTurn = HWY_TARGET == HWY_AVX3 ? 4 : 2;

// body(is_even, i, n) for vectors in turn, even and odd: the n elements from i on.
template <class Body>
HWY_INLINE void for_each_vector(std::int64_t size, const Body& body) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr std::true_type kEven;
  constexpr std::false_type kOdd;
  std::int64_t i = 0;
  for (; i + kTurn * lanes <= size; i += kTurn * lanes) {
    for (std::int64_t j = i; j < i + kTurn * lanes; j += 2 * lanes) {
      body(kEven, j, hn::Lanes(d));
      body(kOdd, j + lanes, hn::Lanes(d));
    }
  }
  for (; i < size; i += 2 * lanes) {
    body(kEven, i, static_cast<std::size_t>(std::min(lanes, size - i)));
    if (i + lanes < size)
      body(kOdd, i + lanes, static_cast<std::size_t>(std::min(lanes, size - i - lanes)));
  }
}

// Four loops over the same elements in the first-level cache: all operations of an element depend
// on each other, about 40 of them, and a processor does not look far enough ahead to fill its ports
// from the next vectors. The divisions take a unit of their own for as long as half of everything
// else, so that they are spread over two loops.
template <class Step, bool kLogDecay, class T>
void run_stretch(const Stretch<T>& at, const Parameters& parameters) {
  HWY_ALIGN float halves[kPeriod], sums[kPeriod], powers[kPeriod];  // powers become exponents
  const hn::ScalableTag<float> d;
  for_each_vector(at.size, [&](auto, std::int64_t i, std::size_t n) HWY_ATTR {
    const auto logits = load_float_n(d, at.update_logits + i, n);
    hn::Store(half_of_one_plus_exp_of_minus(d, logits), d, halves + i);
  });
  const auto store_rates = [&](std::int64_t i, std::size_t n) HWY_ATTR {
    const auto rates = hn::Div(hn::Set(d, 0.5f), hn::Load(d, halves + i));
    store_float_n(rates, d, at.update_rates + i, n);
  };
  for_each_vector(at.size, [&](auto is_even, std::int64_t i, std::size_t n) HWY_ATTR {
    if constexpr (is_even) store_rates(i, n);
    const auto input = finite(d, load_float_n(d, at.decay_inputs + i, n));
    const auto x = round_to(d, hn::Add(input, hn::Load(d, parameters.bias + i)), Step{});
    hn::Store(x, d, sums + i);
    hn::Store(exp_of_minus(d, hn::Abs(x)), d, powers + i);
  });
  for_each_vector(at.size, [&](auto is_even, std::int64_t i, std::size_t n) HWY_ATTR {
    if constexpr (!is_even) store_rates(i, n);
    const auto s = softplus_of(d, hn::Load(d, sums + i), hn::Load(d, powers + i));
    const auto largest = hn::Set(d, std::numeric_limits<float>::max());
    const auto s_finite = at_most(d, round_to(d, s, Step{}), largest);
    hn::Store(hn::Mul(hn::Load(d, parameters.scale + i), s_finite), d, powers + i);
  });
  for_each_vector(at.size, [&](auto, std::int64_t i, std::size_t n) HWY_ATTR {
    const auto exponent = hn::Load(d, powers + i);
    store_float_n(kLogDecay ? hn::Neg(exponent) : exp_of_minus(d, exponent), d,
                  at.decay_factors + i, n);
  });
}

template <class Step, bool kLogDecay, class T>
void run_rows(const GatedDeltaRatesArgs<T>& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t heads = args.update_logits.extent(1);
  const bool is_dense = args.update_logits.is_dense() && args.decay_inputs.is_dense() &&
                        args.update_rates.is_dense() && args.decay_factors.is_dense();
  const std::int64_t together =
      is_dense ? std::clamp<std::int64_t>(kPeriod / heads, 1, end - begin) : 1;
  Parameters parameters;
  for (std::int64_t head = 0; head < heads; head += kPeriod) {
    const std::int64_t count = std::min(kPeriod, heads - head);
    prepare(args, head, count, together, parameters);
    for (std::int64_t row = begin; row < end; row += together) {
      const Stretch<T> stretch{args.update_logits.row(row) + head,
                               args.decay_inputs.row(row) + head, args.update_rates.row(row) + head,
                               args.decay_factors.row(row) + head,
                               std::min(together, end - row) * count};
      run_stretch<Step, kLogDecay>(stretch, parameters);
    }
  }
}

template <class Step, class T>
void run_arithmetic(const GatedDeltaRatesArgs<T>& args, std::int64_t begin, std::int64_t end) {
  if (args.log_decay) return run_rows<Step, true>(args, begin, end);
  run_rows<Step, false>(args, begin, end);
}

template <class T>
void run_typed(const GatedDeltaRatesArgs<T>& args, std::int64_t begin, std::int64_t end) noexcept {
  if constexpr (!std::is_same_v<T, float>) {  // rounding to float32 changes nothing
    if (args.arithmetic == GatedDeltaRatesArithmetic::kActivation) {
      return run_arithmetic<T>(args, begin, end);
    }
  }
  run_arithmetic<float>(args, begin, end);
}

void rows_task(const cpu::RatesArgs& args, std::int64_t begin, std::int64_t end) {
  std::visit([&](const auto* typed) { run_typed(*typed, begin, end); }, args);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaworks {

HWY_EXPORT(rows_task);

namespace cpu {

template <class T>
void gated_delta_rates(const Cpu& device, const contract::GatedDeltaRatesGeometry& geometry,
                       const GatedDeltaRatesArgs<T>& args) noexcept {
  constexpr std::int64_t kTaskElements = 1 << 14;  // about 20 us
  const RatesArgs any = &args;
  for_rows(device, geometry.tokens, geometry.value_heads, kTaskElements,
           [&](std::int64_t begin, std::int64_t end) {
             HWY_DYNAMIC_DISPATCH(rows_task)(any, begin, end);
           });
}

template void gated_delta_rates(const Cpu&, const contract::GatedDeltaRatesGeometry&,
                                const GatedDeltaRatesArgs<float>&) noexcept;
template void gated_delta_rates(const Cpu&, const contract::GatedDeltaRatesGeometry&,
                                const GatedDeltaRatesArgs<Float16>&) noexcept;
template void gated_delta_rates(const Cpu&, const contract::GatedDeltaRatesGeometry&,
                                const GatedDeltaRatesArgs<BFloat16>&) noexcept;

}  // namespace cpu
}  // namespace deltaworks
#endif  // HWY_ONCE

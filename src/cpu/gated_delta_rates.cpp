// Elements lie across the lanes; both outputs of a vector come from one load of each input. What
// depends on the head alone is computed once a task: rows without gaps are taken as one long row over
// repetitions of it, so that a number of heads that fills no whole vectors wastes no lanes.
#include "cpu/gated_delta_rates.hpp"

#include <algorithm>
#include <type_traits>
#include <variant>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gated_delta_rates.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/gates-inl.h"
#include "cpu/load-inl.h"
#include "cpu/math-inl.h"

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
  HWY_ALIGN float scale[kPeriod];  // exp(a_log)
  HWY_ALIGN float bias[kPeriod];   // dt_bias
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
}

// `size` elements that lie one after another in every operand.
template <class Step, bool kLogDecay, class T>
HWY_INLINE void run_stretch(const T* update_logits, const T* decay_inputs,
                            const Parameters& parameters, std::int64_t size, T* update_rates,
                            float* decay_factors) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < size; i += lanes) {
    const auto n = static_cast<std::size_t>(std::min(lanes, size - i));
    store_float_n(sigmoid(d, load_float_n(d, update_logits + i, n)), d, update_rates + i, n);
    const auto decay = load_float_n(d, decay_inputs + i, n);
    const auto log_decay = scaled_softplus<Step>(d, decay, load_float_n(d, parameters.scale + i, n),
                                                 load_float_n(d, parameters.bias + i, n));
    store_float_n(kLogDecay ? log_decay : exp(d, log_decay), d, decay_factors + i, n);
  }
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
      run_stretch<Step, kLogDecay>(
          args.update_logits.row(row) + head, args.decay_inputs.row(row) + head, parameters,
          std::min(together, end - row) * count, args.update_rates.row(row) + head,
          args.decay_factors.row(row) + head);
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
  if (geometry.tokens == 0 || geometry.value_heads == 0) return;
  const RatesArgs any = &args;
  const bool is_small = geometry.tokens <= 2 * kTaskElements / geometry.value_heads;
  const std::int64_t rows =  // of a task; a small call costs less than starting a thread
      is_small ? geometry.tokens : std::max<std::int64_t>(1, kTaskElements / geometry.value_heads);
  device.parallel_for((geometry.tokens + rows - 1) / rows, [&](std::int64_t task) {
    const std::int64_t begin = task * rows;
    HWY_DYNAMIC_DISPATCH(rows_task)(any, begin, std::min(begin + rows, geometry.tokens));
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

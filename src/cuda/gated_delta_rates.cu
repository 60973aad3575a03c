// A thread owns one element of every operand, a warp 32 heads of a token. Up to a few hundred tokens the launch is all that such a
// call costs, so that there is nothing to gain from wider loads.
#include "cuda/gated_delta_rates.hpp"

#include <cstdint>

#include "cuda/early_launch.cuh"
#include "cuda/gates.cuh"
#include "cuda/pack.cuh"

namespace deltaworks::cuda {

namespace {

constexpr int kThreads = 128, kHeads = 32, kTokens = kThreads / kHeads;

// As small as it gets: what a kernel reads of its parameters first, it waits for.
template <class T>
struct RatesCall {
  const T *decay_inputs, *update_logits;
  const float *a_log, *dt_bias;
  T* update_rates;
  float* decay_factors;
  std::int64_t inputs_stride, logits_stride, a_log_stride, dt_bias_stride, rates_stride,
      factors_stride;
  std::uint32_t tokens, heads;
  bool log_decay;
};

// kRounds: the arithmetic kActivation, where the decay's first two steps are rounded to T.
template <bool kRounds, class T>
__global__ void __launch_bounds__(kThreads)
    rates_kernel(const __grid_constant__ RatesCall<T> call) {
  const std::uint32_t token = blockIdx.x * kTokens + threadIdx.x / kHeads;
  const std::uint32_t head = blockIdx.y * kHeads + threadIdx.x % kHeads;
  wait_for_stream();
  if (token >= call.tokens || head >= call.heads) return;
  const T input = call.decay_inputs[token * call.inputs_stride + head];
  const float dt_bias = call.dt_bias[head * call.dt_bias_stride],
              a_log = call.a_log[head * call.a_log_stride];
  const T logit = call.update_logits[token * call.logits_stride + head];
  const auto step = [](float x) { return kRounds ? rounded<T>(x) : x; };
  const float sum = step(finite(widen(input)) + finite(dt_bias));
  const float log_decay = -(finite(exp(a_log)) * finite(step(softplus(sum))));
  call.decay_factors[token * call.factors_stride + head] =
      call.log_decay ? log_decay : exp(log_decay);
  call.update_rates[token * call.rates_stride + head] = narrow<T>(sigmoid(widen(logit)));
}

}  // namespace

template <class T>
void gated_delta_rates(const Cuda& device, const contract::GatedDeltaRatesGeometry& geometry,
                       const GatedDeltaRatesArgs<T>& args) {
  if (geometry.tokens == 0 || geometry.value_heads == 0) return;
  const RatesCall<T> call{.decay_inputs = args.decay_inputs.data(),
                          .update_logits = args.update_logits.data(),
                          .a_log = args.a_log.data(),
                          .dt_bias = args.dt_bias.data(),
                          .update_rates = args.update_rates.data(),
                          .decay_factors = args.decay_factors.data(),
                          .inputs_stride = args.decay_inputs.row_stride(),
                          .logits_stride = args.update_logits.row_stride(),
                          .a_log_stride = args.a_log.row_stride(),
                          .dt_bias_stride = args.dt_bias.row_stride(),
                          .rates_stride = args.update_rates.row_stride(),
                          .factors_stride = args.decay_factors.row_stride(),
                          .tokens = index32(geometry.tokens),
                          .heads = index32(geometry.value_heads),
                          .log_decay = args.log_decay};
  const bool rounds = args.arithmetic == GatedDeltaRatesArithmetic::kActivation;
  const dim3 grid(index32(ceil_div(geometry.tokens, kTokens)),
                  index32(ceil_div(geometry.value_heads, kHeads)));
  launch_early(device, grid, kThreads, rounds ? rates_kernel<true, T> : rates_kernel<false, T>,
               call);
}

template void gated_delta_rates(const Cuda&, const contract::GatedDeltaRatesGeometry&,
                                const GatedDeltaRatesArgs<float>&);
template void gated_delta_rates(const Cuda&, const contract::GatedDeltaRatesGeometry&,
                                const GatedDeltaRatesArgs<Float16>&);
template void gated_delta_rates(const Cuda&, const contract::GatedDeltaRatesGeometry&,
                                const GatedDeltaRatesArgs<BFloat16>&);

}  // namespace deltaworks::cuda

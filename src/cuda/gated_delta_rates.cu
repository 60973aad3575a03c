// A thread owns one element of every operand, a warp 32 heads of a token. Up to a few hundred tokens the launch is all that such a
// call costs, so that there is nothing to gain from wider loads.
#include "cuda/gated_delta_rates.hpp"

#include <cstdint>

#include "cuda/gates.cuh"
#include "cuda/launch.hpp"
#include "cuda/pack.cuh"

namespace deltaworks::cuda {

namespace {

constexpr int kThreads = 128, kHeads = 32, kTokens = kThreads / kHeads;

template <class T>
struct RatesCall {
  View<const T, 2> update_logits, decay_inputs;
  View<const float, 1> a_log, dt_bias;
  View<T, 2> update_rates;
  View<float, 2> decay_factors;
  unsigned head_blocks;
  bool log_decay;
};

// kRounds: the arithmetic kActivation, where the decay's first two steps are rounded to T.
template <bool kRounds, class T>
__global__ void __launch_bounds__(kThreads)
    rates_kernel(const __grid_constant__ RatesCall<T> call) {
  const unsigned token = blockIdx.x / call.head_blocks * kTokens + threadIdx.x / kHeads;
  const unsigned head = blockIdx.x % call.head_blocks * kHeads + threadIdx.x % kHeads;
  if (token >= call.update_logits.extent(0) || head >= call.update_logits.extent(1)) return;
  const auto step = [](float x) { return kRounds ? rounded<T>(x) : x; };
  const float logit = widen(call.update_logits.row(token)[head]);
  const float input = widen(call.decay_inputs.row(token)[head]);
  const float sum = step(finite(input) + finite(call.dt_bias(head)));
  const float log_decay = -(finite(exp(call.a_log(head))) * finite(step(softplus(sum))));
  call.update_rates.row(token)[head] = narrow<T>(sigmoid(logit));
  call.decay_factors.row(token)[head] = call.log_decay ? log_decay : exp(log_decay);
}

}  // namespace

template <class T>
void gated_delta_rates(const Cuda& device, const contract::GatedDeltaRatesGeometry& geometry,
                       const GatedDeltaRatesArgs<T>& args) {
  const std::int64_t head_blocks = ceil_div(geometry.value_heads, kHeads);
  const RatesCall<T> call{args.update_logits,
                          args.decay_inputs,
                          args.a_log,
                          args.dt_bias,
                          args.update_rates,
                          args.decay_factors,
                          static_cast<unsigned>(head_blocks),
                          args.log_decay};
  const bool rounds = args.arithmetic == GatedDeltaRatesArithmetic::kActivation;
  launch(device, ceil_div(geometry.tokens, kTokens) * head_blocks, kThreads,
         rounds ? rates_kernel<true, T> : rates_kernel<false, T>, call);
}

template void gated_delta_rates(const Cuda&, const contract::GatedDeltaRatesGeometry&,
                                const GatedDeltaRatesArgs<float>&);
template void gated_delta_rates(const Cuda&, const contract::GatedDeltaRatesGeometry&,
                                const GatedDeltaRatesArgs<Float16>&);
template void gated_delta_rates(const Cuda&, const contract::GatedDeltaRatesGeometry&,
                                const GatedDeltaRatesArgs<BFloat16>&);

}  // namespace deltaworks::cuda

#include "reference/gated_delta_rates.hpp"

#include <cmath>
#include <limits>

namespace deltaworks::reference {

namespace {

// As float32's infinities count in a sum or a product.
double finite(double x) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return x > kLargest ? kLargest : x < -kLargest ? -kLargest : x;
}

double softplus(double x) { return (x > 0 ? x : 0) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace

template <class T>
void gated_delta_rates(const GatedDeltaRatesArgs<T>& args, const View<double, 2>& update_rates,
                       const View<double, 2>& decay_factors) {
  for (std::int64_t n = 0; n < args.update_logits.extent(0); ++n) {
    for (std::int64_t h = 0; h < args.update_logits.extent(1); ++h) {
      const double logit = to_float(args.update_logits(n, h));
      update_rates(n, h) = 1 / (1 + std::exp(-logit));
      const double x = finite(to_float(args.decay_inputs(n, h))) + finite(args.dt_bias(h));
      const double a = args.a_log(h), scale = finite(std::exp(a));
      const double log_decay = -scale * finite(softplus(x));
      decay_factors(n, h) = args.log_decay ? log_decay : std::exp(log_decay);
    }
  }
}

template void gated_delta_rates(const GatedDeltaRatesArgs<float>&, const View<double, 2>&,
                                const View<double, 2>&);
template void gated_delta_rates(const GatedDeltaRatesArgs<Float16>&, const View<double, 2>&,
                                const View<double, 2>&);
template void gated_delta_rates(const GatedDeltaRatesArgs<BFloat16>&, const View<double, 2>&,
                                const View<double, 2>&);

}  // namespace deltaworks::reference

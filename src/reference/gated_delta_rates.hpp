// The specification of gated_delta_rates. Its bits are specified by gated_delta_rates_composed.hpp.
#pragma once

#include "deltaworks/gated_delta_rates.hpp"

namespace deltaworks::reference {

// The operator without any rounding, whatever args.arithmetic is; args' outputs are not touched.
template <class T>
void gated_delta_rates(const GatedDeltaRatesArgs<T>& args, const View<double, 2>& update_rates,
                       const View<double, 2>& decay_factors);

}  // namespace deltaworks::reference

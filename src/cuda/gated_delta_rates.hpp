// Rates and decays on CUDA. Arguments have been checked.
#pragma once

#include "contract/gated_delta_rates.hpp"
#include "deltaworks/gated_delta_rates.hpp"

namespace deltaworks::cuda {

template <class T>
void gated_delta_rates(const Cuda& device, const contract::GatedDeltaRatesGeometry& geometry,
                       const GatedDeltaRatesArgs<T>& args);

}  // namespace deltaworks::cuda

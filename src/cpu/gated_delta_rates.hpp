// Update rates and decays on the CPU. Arguments are checked by the caller.
#pragma once

#include "contract/gated_delta_rates.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/gated_delta_rates.hpp"

namespace deltaworks::cpu {

template <class T>
void gated_delta_rates(const Cpu& device, const contract::GatedDeltaRatesGeometry& geometry,
                       const GatedDeltaRatesArgs<T>& args) noexcept;

}  // namespace deltaworks::cpu

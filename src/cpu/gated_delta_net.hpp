// The recurrent engine on the CPU. Arguments have been checked.
#pragma once

#include "contract/gated_delta_net.hpp"
#include "deltaworks/gated_delta_net.hpp"

namespace deltaworks::cpu {

template <class T, class G>
void gated_delta_net(const Cpu& device, const contract::GatedDeltaNetGeometry& geometry,
                     const GatedDeltaNetArgs<T, G>& args) noexcept;

void replay_gated_delta_state(const Cpu& device, const contract::GatedDeltaNetGeometry& geometry,
                              const ReplayGatedDeltaStateArgs& args) noexcept;

}  // namespace deltaworks::cpu

// The gated delta rule on CUDA. Shapes and addresses have been checked, values in device memory have
// not.
#pragma once

#include "contract/gated_delta_net.hpp"
#include "deltaworks/gated_delta_net.hpp"

namespace deltaworks::cuda {

template <class T, class G>
void gated_delta_net(const Cuda& device, const contract::GatedDeltaNetGeometry& geometry,
                     const GatedDeltaNetArgs<T, G>& args);

void replay_gated_delta_state(const Cuda& device, const contract::GatedDeltaNetGeometry& geometry,
                              const ReplayGatedDeltaStateArgs& args);

}  // namespace deltaworks::cuda

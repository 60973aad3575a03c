// The gated delta rule on CUDA. Shapes and addresses have been checked, values in device memory have
// not.
#pragma once

#include "contract/gated_delta_net.hpp"
#include "deltaworks/gated_delta_net.hpp"

namespace deltaworks::cuda {

void replay_gated_delta_state(const Cuda& device, const contract::GatedDeltaNetGeometry& geometry,
                              const ReplayGatedDeltaStateArgs& args);

}  // namespace deltaworks::cuda

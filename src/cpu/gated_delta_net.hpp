// The recurrent engine on the CPU. Arguments have been checked.
#pragma once

#include <cstdint>
#include <tuple>

#include "contract/gated_delta_net.hpp"
#include "deltaworks/gated_delta_net.hpp"

namespace deltaworks::cpu {

template <class T, class G>
void gated_delta_net(const ParallelFor& parallel_for, const GatedDeltaNetArgs<T, G>& args,
                     const contract::GatedDeltaNetGeometry& geometry) noexcept;

void replay_gated_delta_state(const ParallelFor& parallel_for,
                              const ReplayGatedDeltaStateArgs& args,
                              const contract::GatedDeltaNetGeometry& geometry) noexcept;

// One instruction set's kernels: all tokens of value head h of sequence b.
template <class T, class G = float>
using RunHead = void (*)(const GatedDeltaNetArgs<T, G>& args,
                         const contract::GatedDeltaNetGeometry& geometry, std::int64_t b,
                         std::int64_t h);

struct GatedDeltaNetKernels {
  std::tuple<RunHead<float>, RunHead<Float16>, RunHead<BFloat16>, RunHead<Float16, Float16>,
             RunHead<BFloat16, BFloat16>>
      run_head;
  void (*replay_head)(const ReplayGatedDeltaStateArgs& args,
                      const contract::GatedDeltaNetGeometry& geometry, std::int64_t b,
                      std::int64_t h);
};

}  // namespace deltaworks::cpu

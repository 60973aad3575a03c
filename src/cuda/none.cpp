// The CUDA backend of a build without CUDA: every call is refused by name.
#include <fmt/format.h>

#include <string_view>

#include "cuda/dflash2_dynamic_conv.hpp"
#include "cuda/gated_delta_net.hpp"
#include "cuda/gated_delta_rates.hpp"
#include "cuda/varlen_causal_conv.hpp"
#include "deltaworks/error.hpp"

namespace deltaworks {

namespace cuda {

namespace {

[[noreturn]] void refuse(std::string_view op) {
  throw InvalidArgument(
      fmt::format("{}: device is Cuda, expected Cpu: this build has no CUDA", op));
}

}  // namespace

template <class T>
void varlen_causal_conv(const Cuda&, const contract::VarlenCausalConvGeometry&,
                        const VarlenCausalConvArgs<T>&) {
  refuse("varlen_causal_conv");
}
template <class T>
void replay_conv_state(const Cuda&, const contract::ReplayConvStateGeometry&,
                       const ReplayConvStateArgs<T>&) {
  refuse("replay_conv_state");
}
template <class T, class G>
void gated_delta_net(const Cuda&, const contract::GatedDeltaNetGeometry&,
                     const GatedDeltaNetArgs<T, G>&) {
  refuse("gated_delta_net");
}
void replay_gated_delta_state(const Cuda&, const contract::GatedDeltaNetGeometry&,
                              const ReplayGatedDeltaStateArgs&) {
  refuse("replay_gated_delta_state");
}
template <class T>
void gated_delta_rates(const Cuda&, const contract::GatedDeltaRatesGeometry&,
                       const GatedDeltaRatesArgs<T>&) {
  refuse("gated_delta_rates");
}
template <class T, class R, class Base>
void dflash2_dynamic_conv(const Cuda&, const contract::DFlash2DynamicConvGeometry&,
                          const DFlash2DynamicConvArgs<T, R, Base>&) {
  refuse("dflash2_dynamic_conv");
}

#define DELTAWORKS_NONE(T)                                                                 \
  template void varlen_causal_conv(const Cuda&, const contract::VarlenCausalConvGeometry&, \
                                   const VarlenCausalConvArgs<T>&);                        \
  template void replay_conv_state(const Cuda&, const contract::ReplayConvStateGeometry&,   \
                                  const ReplayConvStateArgs<T>&);                          \
  template void gated_delta_rates(const Cuda&, const contract::GatedDeltaRatesGeometry&,   \
                                  const GatedDeltaRatesArgs<T>&)
DELTAWORKS_NONE(float);
DELTAWORKS_NONE(Float16);
DELTAWORKS_NONE(BFloat16);
#undef DELTAWORKS_NONE

#define DELTAWORKS_NONE(...)                                                         \
  template void gated_delta_net(const Cuda&, const contract::GatedDeltaNetGeometry&, \
                                const GatedDeltaNetArgs<__VA_ARGS__>&)
DELTAWORKS_NONE(float);
DELTAWORKS_NONE(Float16);
DELTAWORKS_NONE(BFloat16);
DELTAWORKS_NONE(Float16, Float16);
DELTAWORKS_NONE(BFloat16, BFloat16);
#undef DELTAWORKS_NONE

#define DELTAWORKS_NONE(...)                                                                   \
  template void dflash2_dynamic_conv(const Cuda&, const contract::DFlash2DynamicConvGeometry&, \
                                     const DFlash2DynamicConvArgs<__VA_ARGS__>&)
DELTAWORKS_NONE(float, float, float);
DELTAWORKS_NONE(float, float, BFloat16);
DELTAWORKS_NONE(Float16, Float16, Float16);
DELTAWORKS_NONE(Float16, Float16, BFloat16);
DELTAWORKS_NONE(Float16, float, Float16);
DELTAWORKS_NONE(Float16, float, BFloat16);
DELTAWORKS_NONE(BFloat16, BFloat16, BFloat16);
DELTAWORKS_NONE(BFloat16, float, BFloat16);
#undef DELTAWORKS_NONE

}  // namespace cuda

std::string cuda_device() { return {}; }

}  // namespace deltaworks

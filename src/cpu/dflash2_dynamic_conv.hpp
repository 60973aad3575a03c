// The dynamic convolution on the CPU. Arguments are checked by the caller.
#pragma once

#include "contract/dflash2_dynamic_conv.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/dflash2_dynamic_conv.hpp"

namespace deltaworks::cpu {

template <class T, class R, class Base>
void dflash2_dynamic_conv(const Cpu& device, const contract::DFlash2DynamicConvGeometry& geometry,
                          const DFlash2DynamicConvArgs<T, R, Base>& args) noexcept;

}  // namespace deltaworks::cpu

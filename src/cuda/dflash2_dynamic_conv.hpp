// The dynamic convolution on CUDA. Arguments have been checked.
#pragma once

#include "contract/dflash2_dynamic_conv.hpp"
#include "deltaworks/dflash2_dynamic_conv.hpp"

namespace deltaworks::cuda {

template <class T, class R, class Base>
void dflash2_dynamic_conv(const Cuda& device, const contract::DFlash2DynamicConvGeometry& geometry,
                          const DFlash2DynamicConvArgs<T, R, Base>& args);

}  // namespace deltaworks::cuda

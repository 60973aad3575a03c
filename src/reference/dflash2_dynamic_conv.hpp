// The specification of dflash2_dynamic_conv.
#pragma once

#include "deltaworks/dflash2_dynamic_conv.hpp"

namespace deltaworks::reference {

// The operator without any rounding, whatever args.arithmetic is; args.output is not touched.
template <class T, class R, class Base>
void dflash2_dynamic_conv(const DFlash2DynamicConvArgs<T, R, Base>& args,
                          const View<double, 2>& output);

}  // namespace deltaworks::reference

// The chosen instruction set, read from DELTAWORKS_CPU_TARGET before the first dispatch.
#pragma once

namespace deltaworks::cpu {

// Every operator calls this before HWY_DYNAMIC_DISPATCH. Throws InvalidArgument when the variable
// names no usable target.
void ensure_target();

}  // namespace deltaworks::cpu

// The module deltaworks._core: every function takes keywords only, in full; the Python modules beside
// it have the signatures, defaults and documentation.
#pragma once

#include <nanobind/nanobind.h>

namespace deltaworks::python {

void define_causal_conv_with_state(nanobind::module_& module);
void define_dflash2_dynamic_conv(nanobind::module_& module);
void define_gated_delta_net(nanobind::module_& module);
void define_gated_delta_rates(nanobind::module_& module);
void define_linear_attention(nanobind::module_& module);
void define_node(nanobind::module_& module);
void define_paged_attention(nanobind::module_& module);
void define_varlen_causal_conv(nanobind::module_& module);

}  // namespace deltaworks::python

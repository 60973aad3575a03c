#include "module.hpp"

#include "deltaworks/device.hpp"
#include "deltaworks/version.hpp"

// nanobind turns InvalidArgument, a std::invalid_argument, into ValueError.
NB_MODULE(_core, module) {
  namespace python = deltaworks::python;
  module.attr("__version__") = deltaworks::version();
  module.def("cpu_target", [] { return nanobind::str(deltaworks::cpu_target().c_str()); });
  python::define_causal_conv_with_state(module);
  python::define_dflash2_dynamic_conv(module);
  python::define_gated_delta_net(module);
  python::define_gated_delta_rates(module);
  python::define_linear_attention(module);
  python::define_node(module);
  python::define_paged_attention(module);
  python::define_varlen_causal_conv(module);
}

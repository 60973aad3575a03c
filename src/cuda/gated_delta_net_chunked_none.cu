// A build that is not for Hopper has no chunked engine: the recurrent one serves every sequence.
#include "cuda/gated_delta_net_chunked.hpp"

namespace deltaworks::cuda {

template <class T>
bool launch_chunked(const Cuda&, const GatedDeltaNetCall<T>&, bool) {
  return false;
}

template bool launch_chunked(const Cuda&, const GatedDeltaNetCall<Float16>&, bool);
template bool launch_chunked(const Cuda&, const GatedDeltaNetCall<BFloat16>&, bool);

}  // namespace deltaworks::cuda

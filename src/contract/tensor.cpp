#include "contract/tensor.hpp"

namespace deltaworks::contract {

std::string to_string(const Tensor& tensor) {
  std::string text = "[";
  for (int dim = 0; dim < tensor.rank; ++dim) {
    if (dim > 0) text += ", ";
    text += tensor.dims[dim] == kUnknown ? "?" : std::to_string(tensor.dims[dim]);
  }
  return text + "]";
}

}  // namespace deltaworks::contract

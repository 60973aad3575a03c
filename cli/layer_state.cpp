#include "layer_state.hpp"

#include <array>
#include <stdexcept>

#include "deltaworks/gated_delta_net.hpp"
#include "deltaworks/varlen_causal_conv.hpp"

namespace deltaworks::cli {

namespace {

template <class T, std::size_t Rank>
View<T, Rank> view(const Tensor& tensor) {
  std::array<std::int64_t, Rank> extents{};
  if (tensor.shape().size() != Rank) {
    throw std::runtime_error("a layer's state has an unexpected rank in the graph");
  }
  for (std::size_t dim = 0; dim < Rank; ++dim) extents[dim] = tensor.shape()[dim];
  return {tensor.data<T>(), extents};
}

template <class T>
void replay_convolution(const LayerState& layer, int bank, const std::int32_t& count) {
  replay_conv_state(Cpu{},
                    ReplayConvStateArgs<T>{.initial_state = view<T, 3>(layer.banks[bank]),
                                           .state_update = view<T, 3>(*layer.update),
                                           .count = {&count, {1}},
                                           .final_state = view<T, 3>(layer.banks[1 - bank])});
}

}  // namespace

void replay_convolution(const LayerState& layer, int bank, std::int32_t count) {
  switch (layer.banks[bank].type()) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return replay_convolution<float>(layer, bank, count);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return replay_convolution<Float16>(layer, bank, count);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return replay_convolution<BFloat16>(layer, bank, count);
    default:
      throw std::runtime_error(layer.past + " is not float32, float16 or bfloat16 in the graph");
  }
}

void replay_recurrence(const LayerState& layer, int bank, std::int32_t count,
                       std::int64_t key_heads, std::int64_t capacity) {
  if (layer.banks[bank].type() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
    throw std::runtime_error(layer.past + " is not float32 in the graph");
  }
  replay_gated_delta_state(Cpu{}, {.initial_state = view<float, 4>(layer.banks[bank]),
                                   .state_update = view<float, 2>(*layer.update),
                                   .count = {&count, {1}},
                                   .final_state = view<float, 4>(layer.banks[1 - bank]),
                                   .key_heads = key_heads,
                                   .state_update_capacity = capacity});
}

}  // namespace deltaworks::cli

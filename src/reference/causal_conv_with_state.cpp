#include "reference/causal_conv_with_state.hpp"

#include <cmath>

namespace deltaworks::reference {

template <class T>
void causal_conv_with_state(const CausalConvWithStateArgs<T>& args, const View<double, 3>& output) {
  const std::int64_t channels = args.weight.extent(0), width = args.weight.extent(2);
  const std::int64_t history = (width - 1) * args.dilation;
  const std::int64_t length = args.input.extent(args.channels_last ? 1 : 2);
  const auto at = [&](const auto& x, std::int64_t b, std::int64_t c, std::int64_t t) -> auto& {
    return args.channels_last ? x(b, t, c) : x(b, c, t);
  };
  for (std::int64_t b = 0; b < args.input.extent(0); ++b) {
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto x = [&](std::int64_t t) {
        if (t >= 0) return at(args.input, b, c, t);
        return args.past_state ? at(*args.past_state, b, c, history + t) : T{};
      };
      for (std::int64_t t = 0; t < length; ++t) {
        double acc = args.bias ? to_float((*args.bias)(c)) : 0;
        for (std::int64_t j = 0; j < width; ++j) {
          acc += static_cast<double>(to_float(args.weight(c, 0, j))) *
                 to_float(x(t - history + j * args.dilation));
        }
        at(output, b, c, t) =
            args.activation == ConvActivation::kSilu ? acc / (1 + std::exp(-acc)) : acc;
      }
      for (std::int64_t p = 0; p < history; ++p)
        at(args.present_state, b, c, p) = x(length - history + p);
    }
  }
}

template void causal_conv_with_state(const CausalConvWithStateArgs<float>&, const View<double, 3>&);
template void causal_conv_with_state(const CausalConvWithStateArgs<Float16>&,
                                     const View<double, 3>&);
template void causal_conv_with_state(const CausalConvWithStateArgs<BFloat16>&,
                                     const View<double, 3>&);

}  // namespace deltaworks::reference

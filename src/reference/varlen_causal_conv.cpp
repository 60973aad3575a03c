#include "reference/varlen_causal_conv.hpp"

#include <algorithm>
#include <cmath>

namespace deltaworks::reference {

namespace {

// A sum or product of T's values, as exact in double as float32 can tell, rounded to T.
template <class T>
double rounded(double value) {
  return to_float(from_float<T>(static_cast<float>(value)));
}

// The dynamic mode: input row `row`, channel c, with the sample before it.
template <class T>
double dynamic_output(const VarlenCausalConvArgs<T>& args, std::int64_t row, std::int64_t c,
                      T previous) {
  const auto wide = [](T x) { return static_cast<double>(to_float(x)); };
  const std::int64_t group = c / args.group_size, tap = args.delta_offset;
  const double now = wide(args.weight(c, 0, 1)) + wide((*args.kernel_delta)(row, tap, group));
  const double before =
      wide(args.weight(c, 0, 0)) + wide((*args.kernel_delta)(row, tap + 1, group));
  const double masked = rounded<T>(rounded<T>(rounded<T>(before) * wide(previous)) *
                                   wide((*args.previous_mask)(row, 0)));
  return rounded<T>(rounded<T>(rounded<T>(now) * wide(args.input(row, c))) + masked);
}

}  // namespace

template <class T>
void varlen_causal_conv(const VarlenCausalConvArgs<T>& args, const View<double, 2>& output) {
  const std::int64_t channels = args.weight.extent(0), width = args.weight.extent(2);
  const std::int64_t history = (width - 1) * args.dilation;
  for (std::int64_t b = 0; b + 1 < args.cu_seqlens.extent(0); ++b) {
    const std::int64_t first = args.cu_seqlens(b), length = args.cu_seqlens(b + 1) - first;
    const std::int64_t slot_in = args.slots_in ? (*args.slots_in)(b) : b;
    const std::int64_t slot_out = args.slots_out ? (*args.slots_out)(b) : b;
    const bool skipped = slot_in < 0 || slot_out < 0, fresh = args.fresh && (*args.fresh)(b) != 0;
    const std::int64_t capacity = args.state_update ? args.state_update->extent(1) : 0;
    const std::int64_t wanted = args.capture_count ? (*args.capture_count)(b) : 0;
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto x = [&](std::int64_t t) {
        if (t >= 0) return args.input(first + t, c);
        return fresh ? T{} : args.initial_state(slot_in, c, history + t);
      };
      for (std::int64_t t = 0; t < length; ++t) {
        double acc = args.bias ? to_float((*args.bias)(c)) : 0;
        for (std::int64_t j = 0; !skipped && j < width; ++j) {
          acc += static_cast<double>(to_float(args.weight(c, 0, j))) *
                 to_float(x(t - history + j * args.dilation));
        }
        if (args.activation == ConvActivation::kSilu) acc /= 1 + std::exp(-acc);
        if (args.kernel_delta && !skipped) acc = dynamic_output(args, first + t, c, x(t - 1));
        output(first + t, c) = skipped ? 0 : acc;
      }
      for (std::int64_t p = 0; !skipped && p < history; ++p) {
        args.final_state(slot_out, c, p) = x(length - history + p);
      }
      for (std::int64_t slot = 0; slot < capacity; ++slot) {
        const bool captured = !skipped && slot < std::min(wanted, length);
        (*args.state_update)(b, slot, c) = captured ? x(slot) : T{};
      }
    }
  }
}

template <class T>
void replay_conv_state(const ReplayConvStateArgs<T>& args) {
  const auto [sequences, channels, history] = args.initial_state.extents();
  for (std::int64_t b = 0; b < sequences; ++b) {
    const std::int64_t n = args.count(b);
    for (std::int64_t c = 0; c < channels; ++c) {
      for (std::int64_t p = 0; p < history; ++p) {
        args.final_state(b, c, p) = p + n < history ? args.initial_state(b, c, p + n)
                                                    : args.state_update(b, p + n - history, c);
      }
    }
  }
}

template void varlen_causal_conv(const VarlenCausalConvArgs<float>&, const View<double, 2>&);
template void varlen_causal_conv(const VarlenCausalConvArgs<Float16>&, const View<double, 2>&);
template void varlen_causal_conv(const VarlenCausalConvArgs<BFloat16>&, const View<double, 2>&);
template void replay_conv_state(const ReplayConvStateArgs<float>&);
template void replay_conv_state(const ReplayConvStateArgs<Float16>&);
template void replay_conv_state(const ReplayConvStateArgs<BFloat16>&);

}  // namespace deltaworks::reference

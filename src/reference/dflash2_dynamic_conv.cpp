#include "reference/dflash2_dynamic_conv.hpp"

namespace deltaworks::reference {

template <class T, class R, class Base>
void dflash2_dynamic_conv(const DFlash2DynamicConvArgs<T, R, Base>& args,
                          const View<double, 2>& output) {
  const auto wide = [](auto x) { return static_cast<double>(to_float(x)); };
  const std::int64_t channels = args.input.extent(1), taps = args.base.extent(1);
  const std::int64_t s = args.stage == DFlash2Stage::kPrepare ? 0 : 1;
  for (std::int64_t r = 0; r < args.input.extent(0); ++r) {
    for (std::int64_t c = 0; c < channels; ++c) {
      const std::int64_t group = c / (channels / args.groups);
      double sum = 0;
      for (std::int64_t tap = 0; tap < taps && tap <= r % args.rows_per_lane; ++tap) {
        const T dynamic = args.dynamic(r, (s * taps + tap) * args.groups + group);
        sum += (wide(args.base(s, tap, c)) + wide(dynamic)) * wide(args.input(r - tap, c));
      }
      output(r, c) = args.residual ? sum + wide((*args.residual)(r, c)) : sum;
    }
  }
}

#define DELTAWORKS_REFERENCE(...)                                                \
  template void dflash2_dynamic_conv(const DFlash2DynamicConvArgs<__VA_ARGS__>&, \
                                     const View<double, 2>&)
DELTAWORKS_REFERENCE(float, float, float);
DELTAWORKS_REFERENCE(float, float, BFloat16);
DELTAWORKS_REFERENCE(Float16, Float16, Float16);
DELTAWORKS_REFERENCE(Float16, Float16, BFloat16);
DELTAWORKS_REFERENCE(Float16, float, Float16);
DELTAWORKS_REFERENCE(Float16, float, BFloat16);
DELTAWORKS_REFERENCE(BFloat16, BFloat16, BFloat16);
DELTAWORKS_REFERENCE(BFloat16, float, BFloat16);
#undef DELTAWORKS_REFERENCE

}  // namespace deltaworks::reference

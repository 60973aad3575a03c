// The convolution of Qwen3-Next's layers (8192 channels: 16 key and 32 value heads; 10240 with 48),
// four taps and silu, states in place.
#include "deltaworks/varlen_causal_conv.hpp"

#include <fmt/format.h>

#include "cuda/bench.hpp"

namespace deltaworks::bench {

namespace {

constexpr std::int64_t kWidth = 4, kHistory = kWidth - 1;

// capacity: of the captured rows of each sequence; 0 captures none.
template <class T>
void bench_conv(Bench& bench, std::int64_t channels, const std::vector<std::int32_t>& lengths,
                const std::string& shape, std::int64_t capacity = 0) {
  std::vector<std::int32_t> offsets{0};
  for (const std::int32_t length : lengths) offsets.push_back(offsets.back() + length);
  const std::int64_t sequences = std::ssize(lengths), tokens = offsets.back();
  const std::int64_t rows = tokens * channels, states = sequences * channels * kHistory,
                     captured = sequences * capacity * channels;
  const auto bytes =
      static_cast<std::size_t>(2 * rows + 2 * states + captured + channels * kWidth) * sizeof(T);
  const std::int64_t sets = Bench::sets_of(bytes);
  const std::vector<std::int32_t> counts(static_cast<std::size_t>(sequences),
                                         static_cast<std::int32_t>(capacity));
  const Memory cu_seqlens(offsets), capture_count(counts);
  const auto memory = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * sizeof(T);
  };
  const Memory input(memory(sets * rows)), output(memory(sets * rows)),
      state(memory(sets * states)), weight(memory(sets * channels * kWidth)),
      update(memory(sets * captured));
  bench.fill(input.as<T>(), sets * rows);
  bench.fill(state.as<T>(), sets * states);
  bench.fill(weight.as<T>(), sets * channels * kWidth, 0.5);
  bench.measure(
      "varlen_causal_conv", fmt::format("{} x {} {}", shape, channels, name(dtype_of<T>())), bytes,
      sets, [&](const Cuda& device, std::int64_t set) {
        const View<T, 3> states_view(state.as<T>() + set * states, {sequences, channels, kHistory});
        VarlenCausalConvArgs<T> args{
            .input = {input.as<T>() + set * rows, {tokens, channels}},
            .weight = {weight.as<T>() + set * channels * kWidth, {channels, 1, kWidth}},
            .cu_seqlens = {cu_seqlens.as<std::int32_t>(), {sequences + 1}},
            .initial_state = states_view,
            .output = {output.as<T>() + set * rows, {tokens, channels}},
            .final_state = states_view,
            .activation = ConvActivation::kSilu};
        if (capacity > 0) {
          args.capture_count =
              View<const std::int32_t, 1>(capture_count.as<std::int32_t>(), {sequences});
          args.state_update =
              View<T, 3>(update.as<T>() + set * captured, {sequences, capacity, channels});
        }
        varlen_causal_conv(device, args);
      });
}

}  // namespace

void bench_varlen_causal_conv(Bench& bench) {
  for (const std::int64_t channels : {8192, 10240}) {
    for (const std::int32_t sequences : {1, 8, 64, 256}) {
      bench_conv<BFloat16>(bench, channels, std::vector<std::int32_t>(sequences, 1),
                           fmt::format("{}x1", sequences));
    }
    for (const std::int32_t length : {64, 256, 1024, 2048, 8192}) {
      bench_conv<BFloat16>(bench, channels, {length}, fmt::format("1x{}", length));
    }
    bench_conv<BFloat16>(bench, channels, std::vector<std::int32_t>(4, 2048), "4x2048");
    bench_conv<BFloat16>(bench, channels, {2048, 64, 1500, 900, 1, 1679, 1000, 1000}, "8 ragged");
    bench_conv<BFloat16>(bench, channels, std::vector<std::int32_t>(4, 2048), "4x2048 captures 8",
                         8);
    bench_conv<BFloat16>(bench, channels, std::vector<std::int32_t>(64, 8), "64x8 captures 8", 8);
  }
  bench_conv<Float16>(bench, 8192, {8192}, "1x8192");
  bench_conv<float>(bench, 8192, {8192}, "1x8192");
}

}  // namespace deltaworks::bench

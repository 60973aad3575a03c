// Decode and verify: packed bfloat16 rows, gates and norm inside, states in place and cold.
#include "deltaworks/gated_delta_net.hpp"

#include <fmt/format.h>

#include "cuda/bench.hpp"

namespace deltaworks::bench {

namespace {

struct Shape {
  std::int64_t sequences, length, value_heads;
  bool captures = false;
};

void bench_shape(Bench& bench, const Shape& shape) {
  using T = BFloat16;
  constexpr std::int64_t kKeyHeads = 16, kDim = 128;
  const std::int64_t heads = shape.value_heads, tokens = shape.sequences * shape.length;
  const std::int64_t row = (2 * kKeyHeads + heads) * kDim, outputs = tokens * heads * kDim;
  const std::int64_t states = shape.sequences * heads * kDim * kDim;
  const std::int64_t capacity = shape.captures ? shape.length : 0;
  const std::int64_t update_row = capacity * (heads + (kKeyHeads + heads) * kDim);
  const auto state_bytes = static_cast<std::size_t>(2 * states) * sizeof(float);
  const auto bytes =
      state_bytes + static_cast<std::size_t>(tokens * row + outputs) * sizeof(T) +
      static_cast<std::size_t>(2 * tokens * heads + shape.sequences * update_row) * sizeof(float);
  const std::int64_t sets = Bench::sets_of(state_bytes);
  std::vector<std::int32_t> offsets;
  for (std::int64_t b = 0; b <= shape.sequences; ++b) {
    offsets.push_back(static_cast<std::int32_t>(b * shape.length));
  }
  const std::vector<std::int32_t> counts(static_cast<std::size_t>(shape.sequences),
                                         static_cast<std::int32_t>(capacity));
  const Memory state(static_cast<std::size_t>(sets * states) * sizeof(float)),
      qkv(static_cast<std::size_t>(tokens * row) * sizeof(T)),
      output(static_cast<std::size_t>(outputs) * sizeof(T)),
      gates(static_cast<std::size_t>(2 * (tokens + 1) * heads) * sizeof(float)),
      update(static_cast<std::size_t>(shape.sequences * update_row + 1) * sizeof(float)),
      cu_seqlens(offsets), capture_count(counts);
  bench.fill(state.as<float>(), sets * states);
  bench.fill(qkv.as<T>(), tokens * row);
  bench.fill(gates.as<float>(), 2 * (tokens + 1) * heads);
  const auto split = split_qkv<const T>({qkv.as<T>(), {tokens, row}}, kKeyHeads, kDim, heads, kDim);
  const float* const gate = gates.as<float>();
  bench.measure(
      "gated_delta_net",
      fmt::format("{} x {}, {} heads{}", shape.sequences, shape.length, heads,
                  shape.captures ? ", captures" : ""),
      bytes, sets, [&](const Cuda& device, std::int64_t set) {
        const View<float, 4> view(state.as<float>() + set * states,
                                  {shape.sequences, heads, kDim, kDim});
        GatedDeltaNetArgs<T> args{
            .query = split.query,
            .key = split.key,
            .value = split.value,
            .cu_seqlens = {cu_seqlens.as<std::int32_t>(), {shape.sequences + 1}},
            .output = {output.as<T>(), {tokens, heads, kDim}},
            .final_state = view};
        args.initial_state = view;
        args.decay = View<const float, 2>(gate, {tokens, heads});
        args.beta = View<const float, 2>(gate + tokens * heads, {tokens, heads});
        args.a_log = View<const float, 1>(gate + 2 * tokens * heads, {heads});
        args.dt_bias = View<const float, 1>(gate + (2 * tokens + 1) * heads, {heads});
        args.gate_activation = GateActivation::kSoftplus;
        args.beta_activation = BetaActivation::kSigmoid;
        args.qk_l2_norm = true;
        if (shape.captures) {
          args.capture_count =
              View<const std::int32_t, 1>(capture_count.as<std::int32_t>(), {shape.sequences});
          args.state_update = View<float, 2>(update.as<float>(), {shape.sequences, update_row});
          args.state_update_capacity = capacity;
        }
        gated_delta_net(device, args);
      });
}

}  // namespace

void bench_gated_delta_net(Bench& bench) {
  for (const std::int64_t heads : {32, 48}) {
    for (const std::int64_t sequences : {1, 8, 64, 256}) bench_shape(bench, {sequences, 1, heads});
    for (const std::int64_t length : {4, 8, 16}) {
      for (const std::int64_t sequences : {1, 64}) bench_shape(bench, {sequences, length, heads});
    }
    for (const std::int64_t length : {4, 8}) bench_shape(bench, {64, length, heads, true});
  }
}

}  // namespace deltaworks::bench

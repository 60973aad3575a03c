// Decode, verify and prefill: packed rows, gates and norm inside, states in place and cold.
#include "deltaworks/gated_delta_net.hpp"

#include <fmt/format.h>

#include <string>
#include <type_traits>
#include <vector>

#include "cuda/bench.hpp"

namespace deltaworks::bench {

namespace {

struct Shape {
  std::string name;  // of the batch
  std::vector<std::int32_t> lengths;
  std::int64_t value_heads;
  bool captures = false;
};

constexpr std::int64_t kKeyHeads = 16, kDim = 128;

// Of a prompt in chunks of 64 tokens: products with the state, within the chunk, and of keys and queries, which the
// value heads of a key head share. Inverses are not counted.
double flop_of(std::int64_t tokens, std::int64_t heads) {
  constexpr double kChunk = 64, kSize = kDim;
  return static_cast<double>(tokens) *
         (static_cast<double>(heads) * (6 * kSize * kSize + 4 * kChunk * kSize) +
          static_cast<double>(kKeyHeads) * 4 * kChunk * kSize);
}

template <class T>
void bench_shape(Bench& bench, const Shape& shape) {
  std::vector<std::int32_t> offsets{0};
  for (const std::int32_t length : shape.lengths) offsets.push_back(offsets.back() + length);
  const std::int64_t heads = shape.value_heads, tokens = offsets.back();
  const std::int64_t sequences = std::ssize(shape.lengths);
  const std::int64_t row = (2 * kKeyHeads + heads) * kDim, outputs = tokens * heads * kDim;
  const std::int64_t states = sequences * heads * kDim * kDim;
  const std::int64_t capacity = shape.captures ? shape.lengths[0] : 0;
  const std::int64_t update_row = capacity * (heads + (kKeyHeads + heads) * kDim);
  const auto state_bytes = static_cast<std::size_t>(2 * states) * sizeof(float);
  const auto bytes =
      state_bytes + static_cast<std::size_t>(tokens * row + outputs) * sizeof(T) +
      static_cast<std::size_t>(2 * tokens * heads + sequences * update_row) * sizeof(float);
  const bool is_prompt = tokens > 16 * sequences;
  // The rows of a token stay where the layer before has just written them; those of a prompt do not fit.
  const std::int64_t sets = Bench::sets_of(is_prompt ? bytes : state_bytes);
  const std::vector<std::int32_t> counts(static_cast<std::size_t>(sequences),
                                         static_cast<std::int32_t>(capacity));
  const Memory state(static_cast<std::size_t>(sets * states) * sizeof(float)),
      qkv(static_cast<std::size_t>(tokens * row) * sizeof(T)),
      output(static_cast<std::size_t>(outputs) * sizeof(T)),
      gates(static_cast<std::size_t>(2 * (tokens + 1) * heads) * sizeof(float)),
      update(static_cast<std::size_t>(sequences * update_row + 1) * sizeof(float)),
      cu_seqlens(offsets), capture_count(counts);
  bench.fill(state.as<float>(), sets * states);
  bench.fill(qkv.as<T>(), tokens * row);
  bench.fill(gates.as<float>(), 2 * (tokens + 1) * heads);
  const auto split = split_qkv<const T>({qkv.as<T>(), {tokens, row}}, kKeyHeads, kDim, heads, kDim);
  const float* const gate = gates.as<float>();
  bench.measure(
      "gated_delta_net",
      fmt::format("{}{}, {} heads{}", shape.name, shape.captures ? " captured" : "", heads,
                  std::is_same_v<T, BFloat16> ? "" : fmt::format(", {}", name(dtype_of<T>()))),
      {bytes, is_prompt ? flop_of(tokens, heads) : 0}, sets,
      [&](const Cuda& device, std::int64_t set) {
        const View<float, 4> view(state.as<float>() + set * states, {sequences, heads, kDim, kDim});
        GatedDeltaNetArgs<T> args{.query = split.query,
                                  .key = split.key,
                                  .value = split.value,
                                  .cu_seqlens = {cu_seqlens.as<std::int32_t>(), {sequences + 1}},
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
              View<const std::int32_t, 1>(capture_count.as<std::int32_t>(), {sequences});
          args.state_update = View<float, 2>(update.as<float>(), {sequences, update_row});
          args.state_update_capacity = capacity;
        }
        gated_delta_net(device, args);
      });
}

Shape equal(std::int32_t sequences, std::int32_t length, std::int64_t heads,
            bool captures = false) {
  return {fmt::format("{} x {}", sequences, length),
          std::vector<std::int32_t>(static_cast<std::size_t>(sequences), length), heads, captures};
}

template <class T>
void bench_prompts(Bench& bench, std::int64_t heads) {
  for (const std::int32_t length : {64, 256, 1024, 2048, 8192}) {
    bench_shape<T>(bench, equal(1, length, heads));
  }
  bench_shape<T>(bench, equal(4, 2048, heads));
  bench_shape<T>(bench, equal(8, 8192, heads));
  bench_shape<T>(bench, {"8 ragged", {2048, 64, 1500, 900, 1, 1679, 1000, 1000}, heads});
}

}  // namespace

void bench_gated_delta_net(Bench& bench) {
  using T = BFloat16;
  for (const std::int64_t heads : {32, 48}) {
    for (const std::int32_t sequences : {1, 8, 64, 256}) {
      bench_shape<T>(bench, equal(sequences, 1, heads));
    }
    for (const std::int32_t length : {4, 8, 16}) {
      for (const std::int32_t sequences : {1, 64}) {
        bench_shape<T>(bench, equal(sequences, length, heads));
      }
    }
    for (const std::int32_t length : {4, 8}) {
      bench_shape<T>(bench, equal(64, length, heads, true));
    }
  }
  for (const std::int64_t heads : {32, 48}) {
    bench_prompts<BFloat16>(bench, heads);
    bench_prompts<Float16>(bench, heads);
  }
}

}  // namespace deltaworks::bench

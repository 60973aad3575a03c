// Taking back rejected drafts: four captured tokens of eight, states in place.
#include <fmt/format.h>

#include "cuda/bench.hpp"
#include "deltaworks/gated_delta_net.hpp"
#include "deltaworks/varlen_causal_conv.hpp"

namespace deltaworks::bench {

namespace {

constexpr std::int64_t kCapacity = 8, kCount = 4;

std::vector<std::int32_t> counts_of(std::int64_t sequences) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(sequences), kCount);
}

void bench_conv_replay(Bench& bench, std::int64_t sequences) {
  using T = BFloat16;
  constexpr std::int64_t kChannels = 8192, kHistory = 3;
  const std::int64_t states = sequences * kChannels * kHistory,
                     updates = sequences * kCapacity * kChannels;
  // Of the four captured rows the state takes the last three.
  const auto bytes =
      static_cast<std::size_t>(2 * states + sequences * kHistory * kChannels) * sizeof(T);
  const std::int64_t sets = Bench::sets_of(bytes);
  const Memory state(static_cast<std::size_t>(sets * states) * sizeof(T)),
      update(static_cast<std::size_t>(sets * updates) * sizeof(T)), count(counts_of(sequences));
  bench.fill(state.as<T>(), sets * states);
  bench.fill(update.as<T>(), sets * updates);
  bench.measure(
      "replay_conv_state", fmt::format("{} x {}", sequences, kChannels), bytes, sets,
      [&](const Cuda& device, std::int64_t set) {
        const View<T, 3> view(state.as<T>() + set * states, {sequences, kChannels, kHistory});
        replay_conv_state(
            device, ReplayConvStateArgs<T>{.initial_state = view,
                                           .state_update = {update.as<T>() + set * updates,
                                                            {sequences, kCapacity, kChannels}},
                                           .count = {count.as<std::int32_t>(), {sequences}},
                                           .final_state = view});
      });
}

void bench_delta_replay(Bench& bench, std::int64_t sequences, std::int64_t heads) {
  constexpr std::int64_t kKeyHeads = 16, kDim = 128;
  const std::int64_t states = sequences * heads * kDim * kDim;
  const std::int64_t row = kCapacity * (heads + (kKeyHeads + heads) * kDim);
  const auto bytes =
      static_cast<std::size_t>(2 * states + sequences * row * kCount / kCapacity) * sizeof(float);
  const std::int64_t sets = Bench::sets_of(bytes);
  const Memory state(static_cast<std::size_t>(sets * states) * sizeof(float)),
      update(static_cast<std::size_t>(sets * sequences * row) * sizeof(float)),
      count(counts_of(sequences));
  bench.fill(state.as<float>(), sets * states);
  bench.fill(update.as<float>(), sets * sequences * row, 0.1);
  bench.measure(
      "replay_gated_delta_state", fmt::format("{} x {} heads", sequences, heads), bytes, sets,
      [&](const Cuda& device, std::int64_t set) {
        const View<float, 4> view(state.as<float>() + set * states, {sequences, heads, kDim, kDim});
        replay_gated_delta_state(
            device, {.initial_state = view,
                     .state_update = {update.as<float>() + set * sequences * row, {sequences, row}},
                     .count = {count.as<std::int32_t>(), {sequences}},
                     .final_state = view,
                     .key_heads = kKeyHeads,
                     .state_update_capacity = kCapacity});
      });
}

}  // namespace

void bench_replays(Bench& bench) {
  for (const std::int64_t sequences : {1, 8, 64, 256}) bench_conv_replay(bench, sequences);
  for (const std::int64_t heads : {32, 48}) {
    for (const std::int64_t sequences : {1, 8, 64}) bench_delta_replay(bench, sequences, heads);
  }
}

}  // namespace deltaworks::bench

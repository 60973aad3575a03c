// One decode step of a gated-delta-net layer for two sequences at once, state updated in place.
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "deltaworks/gated_delta_net.hpp"

namespace {

std::vector<float> random_values(std::int64_t count, float low, float high) {
  static std::mt19937 generator(1);
  std::uniform_real_distribution<float> distribution(low, high);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = distribution(generator);
  return values;
}

}  // namespace

int main() {
  // The heads of Qwen3.5-4B's recurrent layers: two value heads share a key head.
  const std::int64_t sequences = 2, key_heads = 16, value_heads = 32, dim = 128;
  const auto query = random_values(sequences * key_heads * dim, -1, 1);
  const auto key = random_values(sequences * key_heads * dim, -1, 1);
  const auto value = random_values(sequences * value_heads * dim, -1, 1);
  const auto decay = random_values(sequences * value_heads, -0.1f, 0);  // natural logarithms
  const auto beta = random_values(sequences * value_heads, 0, 1);
  const std::vector<std::int32_t> cu_seqlens{0, 1, 2};  // one token for each sequence
  std::vector<float> state(static_cast<std::size_t>(sequences * value_heads * dim * dim));
  std::vector<float> output(value.size());

  const deltaworks::View<float, 4> states(state.data(), {sequences, value_heads, dim, dim});
  const deltaworks::GatedDeltaNetArgs<float> args{
      .query = {query.data(), {sequences, key_heads, dim}},
      .key = {key.data(), {sequences, key_heads, dim}},
      .value = {value.data(), {sequences, value_heads, dim}},
      .cu_seqlens = {cu_seqlens.data(), {sequences + 1}},
      .output = {output.data(), {sequences, value_heads, dim}},
      .final_state = states,
      .initial_state = states,  // the same memory: updated in place
      .decay = {{decay.data(), {sequences, value_heads}}},
      .beta = {{beta.data(), {sequences, value_heads}}},
      .qk_l2_norm = true};
  deltaworks::gated_delta_net(deltaworks::Cpu{}, args);
  for (const deltaworks::AccessRange& range : deltaworks::access_ranges(args)) {
    std::printf("%s %.*s: %zu bytes\n",
                range.access == deltaworks::Access::kRead ? "read" : "written",
                static_cast<int>(range.argument.size()), range.argument.data(), range.size_bytes);
  }
  std::printf("%s: output of the first head starts with %g %g %g\n",
              deltaworks::cpu_target().c_str(), static_cast<double>(output[0]),
              static_cast<double>(output[1]), static_cast<double>(output[2]));
}

// Both gates of Qwen3-Next's 32 value heads, and of 48.
#include "deltaworks/gated_delta_rates.hpp"

#include <fmt/format.h>

#include "cuda/bench.hpp"

namespace deltaworks::bench {

namespace {

void bench_rates(Bench& bench, std::int64_t heads, std::int64_t tokens) {
  using T = BFloat16;
  const std::int64_t size = tokens * heads;
  const std::size_t bytes = static_cast<std::size_t>(size) * (3 * sizeof(T) + sizeof(float));
  const std::int64_t sets = Bench::sets_of(bytes);
  const auto elements = static_cast<std::size_t>(sets * size);
  const Memory logits(elements * sizeof(T)), inputs(elements * sizeof(T)),
      rates(elements * sizeof(T)), factors(elements * sizeof(float)),
      parameters(static_cast<std::size_t>(heads) * 2 * sizeof(float));
  bench.fill(logits.as<T>(), sets * size);
  bench.fill(inputs.as<T>(), sets * size);
  bench.fill(parameters.as<float>(), 2 * heads);
  bench.measure("gated_delta_rates", fmt::format("{} x {}", tokens, heads), bytes, sets,
                [&](const Cuda& device, std::int64_t set) {
                  const std::int64_t at = set * size;
                  gated_delta_rates(
                      device, GatedDeltaRatesArgs<T>{
                                  .update_logits = {logits.as<T>() + at, {tokens, heads}},
                                  .decay_inputs = {inputs.as<T>() + at, {tokens, heads}},
                                  .a_log = {parameters.as<float>(), {heads}},
                                  .dt_bias = {parameters.as<float>() + heads, {heads}},
                                  .update_rates = {rates.as<T>() + at, {tokens, heads}},
                                  .decay_factors = {factors.as<float>() + at, {tokens, heads}}});
                });
}

}  // namespace

void bench_gated_delta_rates(Bench& bench) {
  for (const std::int64_t heads : {32, 48}) {
    for (const std::int64_t tokens : {1, 64, 256, 1024, 8192}) bench_rates(bench, heads, tokens);
  }
}

}  // namespace deltaworks::bench

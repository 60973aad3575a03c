// Results to compare with those of others in a higher precision: operands, outputs and final states of
// gated_delta_net as files of plain numbers, NAME.query and so on.
#include <fmt/format.h>

#include <fstream>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda/bench.hpp"
#include "deltaworks/gated_delta_net.hpp"

namespace deltaworks::bench {

namespace {

template <class T>
std::vector<T> draw(std::int64_t size, double deviation, double mean = 0) {
  static std::mt19937 engine(std::random_device{}());
  std::normal_distribution<double> normal(mean, deviation);
  std::vector<T> values(static_cast<std::size_t>(size));
  for (T& value : values) value = from_float<T>(static_cast<float>(normal(engine)));
  return values;
}

template <class T>
void write(const std::string& path, const std::vector<T>& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(T)));
  if (!file) throw std::runtime_error("cannot write " + path);
}

// `a_log`: what the logarithms of the decay rates scatter around; 3 forgets a token within the next.
template <class T>
void write_case(const std::string& prefix, double a_log) {
  constexpr std::int64_t kKeyHeads = 16, kHeads = 32, kDim = 128;
  const std::vector<std::int32_t> cu_seqlens{0, 1000, 1001, 1131, 3179};
  const std::int64_t tokens = cu_seqlens.back(), sequences = std::ssize(cu_seqlens) - 1;
  const auto query = draw<T>(tokens * kKeyHeads * kDim, 1),
             key = draw<T>(tokens * kKeyHeads * kDim, 1),
             value = draw<T>(tokens * kHeads * kDim, 1);
  const auto decay = draw<float>(tokens * kHeads, 1), beta = draw<float>(tokens * kHeads, 1),
             rates = draw<float>(kHeads, 0.5, a_log), bias = draw<float>(kHeads, 0.5),
             state = draw<float>(sequences * kHeads * kDim * kDim, 0.1);
  // NaN where nothing is written.
  std::vector<T> output(value.size(), from_float<T>(std::numeric_limits<float>::quiet_NaN()));
  std::vector<float> final_state(state.size(), std::numeric_limits<float>::quiet_NaN());
  {
    const Memory q(query), k(key), v(value), g(decay), b(beta), a(rates), d(bias), s(state),
        offsets(cu_seqlens), o(output), f(final_state);
    GatedDeltaNetArgs<T> args{.query = {q.as<T>(), {tokens, kKeyHeads, kDim}},
                              .key = {k.as<T>(), {tokens, kKeyHeads, kDim}},
                              .value = {v.as<T>(), {tokens, kHeads, kDim}},
                              .cu_seqlens = {offsets.as<std::int32_t>(), {sequences + 1}},
                              .output = {o.as<T>(), {tokens, kHeads, kDim}},
                              .final_state = {f.as<float>(), {sequences, kHeads, kDim, kDim}}};
    args.initial_state = View<const float, 4>(s.as<float>(), {sequences, kHeads, kDim, kDim});
    args.decay = View<const float, 2>(g.as<float>(), {tokens, kHeads});
    args.beta = View<const float, 2>(b.as<float>(), {tokens, kHeads});
    args.a_log = View<const float, 1>(a.as<float>(), {kHeads});
    args.dt_bias = View<const float, 1>(d.as<float>(), {kHeads});
    args.gate_activation = GateActivation::kSoftplus;
    args.beta_activation = BetaActivation::kSigmoid;
    args.qk_l2_norm = true;
    gated_delta_net(Cuda{}, args);
    o.copy_to(output), f.copy_to(final_state);
  }
  write(prefix + ".query", query), write(prefix + ".key", key), write(prefix + ".value", value);
  write(prefix + ".decay", decay), write(prefix + ".beta", beta), write(prefix + ".a_log", rates);
  write(prefix + ".dt_bias", bias), write(prefix + ".initial_state", state);
  write(prefix + ".cu_seqlens", cu_seqlens), write(prefix + ".output", output);
  write(prefix + ".final_state", final_state);
}

template <class T>
void write_both(const std::string& folder) {
  const auto type = name(dtype_of<T>());
  write_case<T>(fmt::format("{}/slow.{}", folder, type), -1);
  write_case<T>(fmt::format("{}/fast.{}", folder, type), 3);
}

}  // namespace

void write_results(const std::string& folder) {
  write_both<BFloat16>(folder);
  write_both<Float16>(folder);
  write_both<float>(folder);
}

}  // namespace deltaworks::bench

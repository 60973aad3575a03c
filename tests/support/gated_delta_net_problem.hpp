// A random call of gated_delta_net that owns its operands, can be cut into parts, and runs into
// poisoned memory.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "deltaworks/gated_delta_net.hpp"
#include "support/buffer.hpp"
#include "support/cuda.hpp"
#include "support/random.hpp"

namespace deltaworks::testing {

struct GatedDeltaNetOptions {
  std::vector<std::int32_t> cu_seqlens{0, 5};
  std::int64_t key_heads = 1, heads_per_key = 1, key_dim = 8, value_dim = 8;
  std::int64_t capacity = 0;
  UpdateRule update_rule = UpdateRule::kGatedDelta;
  GateActivation gate_activation = GateActivation::kNone;
  BetaActivation beta_activation = BetaActivation::kNone;
  bool qk_l2_norm = true, decay_per_key = false, dt_bias_per_key = false, initial_state = true;
  float scale = 0;
  Engine engine = Engine::kRecurrent;  // whose bits any split of a sequence keeps
};

// On the backend that is tested.
template <class T, class G>
void call_gated_delta_net(const Cpu& cpu, const GatedDeltaNetArgs<T, G>& args) {
  run_on(cpu, args, [](const auto& device, const auto& to) { gated_delta_net(device, to); });
}
inline void call_replay(const Cpu& cpu, const ReplayGatedDeltaStateArgs& args) {
  run_on(cpu, args,
         [](const auto& device, const auto& to) { replay_gated_delta_state(device, to); });
}

template <class T>
struct GatedDeltaNetOutputs {
  std::vector<T> output;
  std::vector<float> final_state, state_update;

  friend bool operator==(const GatedDeltaNetOutputs&, const GatedDeltaNetOutputs&) = default;
};

template <class T, class G = float>
struct GatedDeltaNetProblem {
  GatedDeltaNetOptions o;
  std::vector<T> query, key, value;
  std::vector<G> decay, beta;
  std::vector<float> initial_state, a_log, dt_bias;
  std::vector<std::int32_t> capture_count;

  GatedDeltaNetProblem() = default;
  GatedDeltaNetProblem(Random& random, const GatedDeltaNetOptions& options) : o(options) {
    const std::int64_t n = tokens(), columns = o.decay_per_key ? o.key_dim : 1;
    query = random.normal<T>(n * o.key_heads * o.key_dim);
    key = random.normal<T>(n * o.key_heads * o.key_dim, o.qk_l2_norm ? 1.0 : 0.3);
    value = random.normal<T>(n * value_heads() * o.value_dim);
    if (gated()) {
      const bool raw = o.gate_activation != GateActivation::kNone;
      decay = random.normal<G>(n * value_heads() * columns, raw ? 1.0 : 0.05, raw ? 0.0 : -0.2);
    }
    const bool logits = o.beta_activation == BetaActivation::kSigmoid;
    beta = random.normal<G>(n * value_heads(), logits ? 1.0 : 0.1, logits ? 0.0 : 0.5);
    if (o.initial_state) initial_state = random.normal<float>(sequences() * state_size(), 0.2);
    if (o.gate_activation != GateActivation::kNone) {
      a_log = random.normal<float>(value_heads(), 0.5);
      dt_bias = random.normal<float>(value_heads() * (o.dt_bias_per_key ? o.key_dim : 1), 0.5);
    }
    for (std::int64_t b = 0; b < sequences(); ++b) {
      capture_count.push_back(static_cast<std::int32_t>(random.integer(-1, o.capacity + 1)));
    }
  }

  std::int64_t sequences() const { return static_cast<std::int64_t>(o.cu_seqlens.size()) - 1; }
  std::int64_t tokens() const { return o.cu_seqlens.back(); }
  std::int64_t value_heads() const { return o.key_heads * o.heads_per_key; }
  std::int64_t state_size() const { return value_heads() * o.value_dim * o.key_dim; }
  std::int64_t update_row() const {
    return o.capacity * (value_heads() * (o.decay_per_key ? o.key_dim : 1) +
                         o.key_heads * o.key_dim + value_heads() * o.value_dim);
  }
  bool gated() const {
    return o.update_rule == UpdateRule::kGated || o.update_rule == UpdateRule::kGatedDelta;
  }

  // What a failure depends on beside the values.
  std::string description() const {
    using ::testing::PrintToString;
    return PrintToString(o.key_heads) + " x " + PrintToString(o.heads_per_key) + " heads of " +
           PrintToString(o.value_dim) + " x " + PrintToString(o.key_dim) + ", offsets " +
           PrintToString(o.cu_seqlens) + ", capacity " + PrintToString(o.capacity) + ", counts " +
           PrintToString(capture_count) + ", decay per key " + PrintToString(o.decay_per_key);
  }

  // Everything but the outputs, which point nowhere.
  GatedDeltaNetArgs<T, G> args() const {
    const std::int64_t n = tokens(), heads = value_heads();
    GatedDeltaNetArgs<T, G> args{.query = view_of<3>(query, {n, o.key_heads, o.key_dim}),
                                 .key = view_of<3>(key, {n, o.key_heads, o.key_dim}),
                                 .value = view_of<3>(value, {n, heads, o.value_dim}),
                                 .cu_seqlens = view_of<1>(o.cu_seqlens, {sequences() + 1}),
                                 .output = {},
                                 .final_state = {}};
    if (!beta.empty()) args.beta = view_of<2>(beta, {n, heads});
    if (gated() && o.decay_per_key) args.decay_per_key = view_of<3>(decay, {n, heads, o.key_dim});
    if (gated() && !o.decay_per_key) args.decay = view_of<2>(decay, {n, heads});
    if (o.initial_state) {
      args.initial_state = view_of<4>(initial_state, {sequences(), heads, o.value_dim, o.key_dim});
    }
    if (!a_log.empty()) args.a_log = view_of<1>(a_log, {heads});
    if (!dt_bias.empty() && o.dt_bias_per_key) {
      args.dt_bias_per_key = view_of<2>(dt_bias, {heads, o.key_dim});
    } else if (!dt_bias.empty()) {
      args.dt_bias = view_of<1>(dt_bias, {heads});
    }
    if (o.capacity > 0) args.capture_count = view_of<1>(capture_count, {sequences()});
    args.state_update_capacity = o.capacity;
    args.update_rule = o.update_rule;
    args.scale = o.scale;
    args.gate_activation = o.gate_activation;
    args.beta_activation = o.beta_activation;
    args.qk_l2_norm = o.qk_l2_norm;
    args.engine = o.engine;
    return args;
  }

  GatedDeltaNetOutputs<T> run(const Cpu& device = {}) const {
    const std::int64_t heads = value_heads();
    Buffer<T> output(tokens() * heads * o.value_dim);
    Buffer<float> final_state(sequences() * state_size()), state_update(sequences() * update_row());
    auto call = args();
    call.output = output.template view<3>({tokens(), heads, o.value_dim});
    call.final_state = final_state.view<4>({sequences(), heads, o.value_dim, o.key_dim});
    if (o.capacity > 0) call.state_update = state_update.view<2>({sequences(), update_row()});
    call_gated_delta_net(device, call);
    return {output.values(), final_state.values(), state_update.values()};
  }

  // Tokens first … first + count − 1 of sequence b as a call of its own, from `state`.
  GatedDeltaNetProblem part(std::int64_t b, std::int64_t first, std::int64_t count,
                            std::vector<float> state) const {
    GatedDeltaNetProblem part;
    const std::int64_t start = o.cu_seqlens[static_cast<std::size_t>(b)] + first;
    const auto rows = [&](const auto& from, std::int64_t size) {
      if (from.empty()) return from;
      return std::decay_t<decltype(from)>(from.begin() + start * size,
                                          from.begin() + (start + count) * size);
    };
    part.o = o;
    part.o.cu_seqlens = {0, static_cast<std::int32_t>(count)};
    part.o.initial_state = true;
    part.query = rows(query, o.key_heads * o.key_dim);
    part.key = rows(key, o.key_heads * o.key_dim);
    part.value = rows(value, value_heads() * o.value_dim);
    part.decay = rows(decay, value_heads() * (o.decay_per_key ? o.key_dim : 1));
    part.beta = rows(beta, value_heads());
    part.initial_state = std::move(state);
    part.a_log = a_log;
    part.dt_bias = dt_bias;
    part.capture_count = {capture_count[static_cast<std::size_t>(b)]};
    return part;
  }

  std::vector<float> state_of(std::int64_t b) const {
    if (!o.initial_state) return std::vector<float>(static_cast<std::size_t>(state_size()));
    return {initial_state.begin() + b * state_size(),
            initial_state.begin() + (b + 1) * state_size()};
  }
};

// Any geometry and options that the operator serves.
inline GatedDeltaNetOptions random_options(Random& random) {
  GatedDeltaNetOptions o;
  o.cu_seqlens = random.cu_seqlens(random.integer(1, 4), 0, 9);
  if (random.integer(0, 7) == 0) o.cu_seqlens = random.cu_seqlens(1, 60, 140);  // several blocks
  o.key_heads = random.integer(1, 3);
  o.heads_per_key = random.integer(1, 3);
  constexpr std::int64_t kDims[] = {1, 3, 4, 7, 8, 16, 20, 31, 64, 128};
  o.key_dim = kDims[random.integer(0, 9)];
  o.value_dim = kDims[random.integer(0, 9)];
  if (random.integer(0, 3) == 0) {  // the kernels of the GPU that hold the state in registers
    o.key_dim = 128;
    o.value_dim = 64 * random.integer(1, 2);
  }
  o.capacity = random.integer(0, 1) * random.integer(1, 10);
  o.update_rule = static_cast<UpdateRule>(random.integer(0, 3));
  const bool gated =
      o.update_rule == UpdateRule::kGated || o.update_rule == UpdateRule::kGatedDelta;
  if (gated) {
    o.gate_activation = static_cast<GateActivation>(random.integer(0, 2));
    o.decay_per_key = random.integer(0, 2) == 0;
    o.dt_bias_per_key = o.decay_per_key && random.integer(0, 1) == 0;
  }
  o.beta_activation = static_cast<BetaActivation>(random.integer(0, 1));
  // Without the norm, or the correction of a delta rule, the state grows with the keys.
  o.qk_l2_norm = random.integer(0, 3) != 0;
  o.initial_state = random.integer(0, 3) != 0;
  o.scale = random.integer(0, 2) == 0 ? 0.37f : 0.0f;
  return o;
}

}  // namespace deltaworks::testing

// A random call of linear_attention that owns its operands, can be cut into parts, and runs into
// poisoned memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "deltaworks/linear_attention.hpp"
#include "support/buffer.hpp"
#include "support/random.hpp"

namespace deltaworks::testing {

struct LinearAttentionOptions {
  std::int64_t sequences = 1, length = 5;
  std::int64_t q_num_heads = 1, kv_num_heads = 1, key_heads = 1, key_dim = 8, value_dim = 8;
  UpdateRule update_rule = UpdateRule::kGatedDelta;
  bool decay_per_key = false, one_beta = false, past_state = true;
  float scale = 0;
};

template <class T, class S>
struct LinearAttentionOutputs {
  std::vector<T> output;
  std::vector<S> present_state;
};

template <class T, class S = float>
struct LinearAttentionProblem {
  LinearAttentionOptions o;
  std::vector<T> query, key, value, decay, beta;
  std::vector<S> past_state;

  LinearAttentionProblem() = default;
  LinearAttentionProblem(Random& random, const LinearAttentionOptions& options) : o(options) {
    const std::int64_t n = o.sequences * o.length;
    query = random.normal<T>(n * query_width());
    // Keys of about unit length: a delta rule diverges with longer ones.
    key = random.normal<T>(n * key_width(), 1 / std::sqrt(static_cast<double>(o.key_dim)));
    value = random.normal<T>(n * value_width());
    decay = random.normal<T>(n * decay_width(), 0.05, -0.2);
    beta = random.normal<T>(n * beta_width(), 0.1, 0.5);
    if (o.past_state) past_state = random.normal<S>(o.sequences * state_size(), 0.2);
  }

  std::int64_t query_width() const { return o.q_num_heads * o.key_dim; }
  std::int64_t key_width() const { return o.key_heads * o.key_dim; }
  std::int64_t value_width() const { return o.kv_num_heads * o.value_dim; }
  std::int64_t decay_width() const { return o.kv_num_heads * (o.decay_per_key ? o.key_dim : 1); }
  std::int64_t beta_width() const { return o.one_beta ? 1 : o.kv_num_heads; }
  std::int64_t output_width() const {
    return std::max(o.q_num_heads, o.kv_num_heads) * o.value_dim;
  }
  std::int64_t state_size() const { return o.kv_num_heads * o.key_dim * o.value_dim; }
  std::array<std::int64_t, 4> state_extents() const {
    return {o.sequences, o.kv_num_heads, o.key_dim, o.value_dim};
  }
  bool decays() const {
    return o.update_rule == UpdateRule::kGated || o.update_rule == UpdateRule::kGatedDelta;
  }
  bool recalls() const {
    return o.update_rule == UpdateRule::kDelta || o.update_rule == UpdateRule::kGatedDelta;
  }

  // Everything but the outputs, which point nowhere. Only the gates that the rule needs.
  LinearAttentionArgs<T, S> args() const {
    const std::int64_t b = o.sequences, n = o.length;
    LinearAttentionArgs<T, S> args{.query = view_of<3>(query, {b, n, query_width()}),
                                   .key = view_of<3>(key, {b, n, key_width()}),
                                   .value = view_of<3>(value, {b, n, value_width()}),
                                   .output = {nullptr, {b, n, output_width()}},
                                   .present_state = {nullptr, state_extents()},
                                   .q_num_heads = o.q_num_heads,
                                   .kv_num_heads = o.kv_num_heads,
                                   .update_rule = o.update_rule,
                                   .scale = o.scale};
    if (o.past_state) args.past_state = view_of<4>(past_state, state_extents());
    if (decays()) args.decay = view_of<3>(decay, {b, n, decay_width()});
    if (recalls()) args.beta = view_of<3>(beta, {b, n, beta_width()});
    return args;
  }

  LinearAttentionOutputs<T, S> run(const Cpu& device = {}) const {
    Buffer<T> output(o.sequences * o.length * output_width());
    Buffer<S> present_state(o.sequences * state_size());
    auto call = args();
    call.output = output.template view<3>({o.sequences, o.length, output_width()});
    call.present_state = present_state.template view<4>(state_extents());
    linear_attention(device, call);
    return {output.values(), present_state.values()};
  }

  // Tokens first … first + count − 1 of sequence b as a call of its own, from `state`.
  LinearAttentionProblem part(std::int64_t b, std::int64_t first, std::int64_t count,
                              std::vector<S> state) const {
    LinearAttentionProblem part;
    const auto rows = [&](const std::vector<T>& from, std::int64_t width) {
      const auto begin = from.begin() + (b * o.length + first) * width;
      return std::vector<T>(begin, begin + count * width);
    };
    part.o = o;
    part.o.sequences = 1;
    part.o.length = count;
    part.o.past_state = true;
    part.query = rows(query, query_width());
    part.key = rows(key, key_width());
    part.value = rows(value, value_width());
    part.decay = rows(decay, decay_width());
    part.beta = rows(beta, beta_width());
    part.past_state = std::move(state);
    return part;
  }

  // The state that sequence b starts from.
  std::vector<S> state_of(std::int64_t b) const {
    if (!o.past_state) return std::vector<S>(static_cast<std::size_t>(state_size()));
    const auto from = past_state.begin() + b * state_size();
    return {from, from + state_size()};
  }
};

// A small call of any geometry: both directions of grouping, every rule.
inline LinearAttentionOptions random_linear_attention(Random& random) {
  constexpr std::int64_t kDims[] = {1, 3, 4, 7, 8, 16, 20, 31, 64, 128};
  constexpr std::int64_t kHeads[] = {1, 2, 3, 4, 6};
  LinearAttentionOptions o;
  o.sequences = random.integer(1, 3);
  o.length = random.integer(0, 9);
  if (random.integer(0, 7) == 0) o.length = random.integer(60, 140);  // several blocks
  o.kv_num_heads = kHeads[random.integer(0, 4)];
  const auto divisor = [&] {
    std::int64_t d = random.integer(1, o.kv_num_heads);
    while (o.kv_num_heads % d != 0) --d;
    return d;
  };
  o.key_heads = divisor();
  o.q_num_heads = random.integer(0, 1) ? o.kv_num_heads * random.integer(1, 3) : divisor();
  o.key_dim = kDims[random.integer(0, 9)];
  o.value_dim = kDims[random.integer(0, 9)];
  o.update_rule = static_cast<UpdateRule>(random.integer(0, 3));
  o.decay_per_key = random.integer(0, 2) == 0;
  o.one_beta = random.integer(0, 2) == 0;
  o.past_state = random.integer(0, 3) != 0;
  o.scale = random.integer(0, 2) == 0 ? 0.37f : 0.0f;
  return o;
}

}  // namespace deltaworks::testing

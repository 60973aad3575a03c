#include "reference/linear_attention.hpp"

#include <algorithm>
#include <cmath>

namespace deltaworks::reference {

template <class T, class S>
LinearAttentionResult linear_attention(const LinearAttentionArgs<T, S>& args) {
  const auto [sequences, length, query_width] = args.query.extents();
  const std::int64_t q_heads = args.q_num_heads, kv_heads = args.kv_num_heads;
  const std::int64_t K = query_width / q_heads, V = args.value.extent(2) / kv_heads;
  const std::int64_t key_heads = args.key.extent(2) / K, heads = std::max(q_heads, kv_heads);
  const bool decays =
      args.update_rule == UpdateRule::kGated || args.update_rule == UpdateRule::kGatedDelta;
  const bool recalls =
      args.update_rule == UpdateRule::kDelta || args.update_rule == UpdateRule::kGatedDelta;
  const double scale = args.scale != 0 ? args.scale : 1 / std::sqrt(static_cast<double>(K));

  LinearAttentionResult result;
  result.output.resize(static_cast<std::size_t>(sequences * length * heads * V));
  result.present_state.resize(static_cast<std::size_t>(sequences * kv_heads * K * V));
  for (std::int64_t b = 0; b < sequences; ++b) {
    for (std::int64_t h = 0; h < kv_heads; ++h) {
      const auto state = [&](std::int64_t i, std::int64_t v) -> double& {
        return result.present_state[((b * kv_heads + h) * K + i) * V + v];
      };
      for (std::int64_t i = 0; i < K; ++i) {
        for (std::int64_t v = 0; v < V; ++v)
          state(i, v) = args.past_state ? to_float((*args.past_state)(b, h, i, v)) : 0;
      }
      for (std::int64_t t = 0; t < length; ++t) {
        const auto k = [&](std::int64_t i) -> double {
          return to_float(args.key(b, t, h / (kv_heads / key_heads) * K + i));
        };
        const auto factor = [&](std::int64_t i) -> double {
          if (!decays) return 1;
          const bool per_head = args.decay->extent(2) == kv_heads;
          return std::exp(
              static_cast<double>(to_float((*args.decay)(b, t, per_head ? h : h * K + i))));
        };
        const double beta =
            recalls ? to_float((*args.beta)(b, t, args.beta->extent(2) == 1 ? 0 : h)) : 1;
        for (std::int64_t v = 0; v < V; ++v) {
          double recalled = 0;
          for (std::int64_t i = 0; i < K; ++i) recalled += (state(i, v) *= factor(i)) * k(i);
          const double delta =
              beta * (to_float(args.value(b, t, h * V + v)) - (recalls ? recalled : 0));
          for (std::int64_t i = 0; i < K; ++i) state(i, v) += k(i) * delta;
          // Every query head that reads this state; with fewer query heads than states, one.
          for (std::int64_t out = 0; out < heads; ++out) {
            if (out / (heads / kv_heads) != h) continue;
            const std::int64_t query_head = out / (heads / q_heads);
            double sum = 0;
            for (std::int64_t i = 0; i < K; ++i)
              sum += state(i, v) * to_float(args.query(b, t, query_head * K + i));
            result.output[((b * length + t) * heads + out) * V + v] = scale * sum;
          }
        }
      }
    }
  }
  return result;
}

template LinearAttentionResult linear_attention(const LinearAttentionArgs<float>&);
template LinearAttentionResult linear_attention(const LinearAttentionArgs<Float16>&);
template LinearAttentionResult linear_attention(const LinearAttentionArgs<BFloat16>&);
template LinearAttentionResult linear_attention(const LinearAttentionArgs<Float16, Float16>&);
template LinearAttentionResult linear_attention(const LinearAttentionArgs<BFloat16, BFloat16>&);

}  // namespace deltaworks::reference

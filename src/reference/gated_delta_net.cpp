#include "reference/gated_delta_net.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace deltaworks::reference {

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return std::fmax(x, 0) + std::log1p(std::exp(-std::abs(x))); }

// The factor of column i in value head h at `token`.
template <class T, class G>
double decay_factor(const GatedDeltaNetArgs<T, G>& args, std::int64_t token, std::int64_t h,
                    std::int64_t i) {
  if (!args.decay && !args.decay_per_key) return 1;
  const double raw =
      args.decay ? to_float((*args.decay)(token, h)) : to_float((*args.decay_per_key)(token, h, i));
  if (args.gate_activation == GateActivation::kNone) return std::exp(raw);
  const double bias = args.dt_bias ? (*args.dt_bias)(h) : (*args.dt_bias_per_key)(h, i);
  const auto finite = [](double x) {  // an infinity never meets a zero in a product
    constexpr double kLargest = std::numeric_limits<float>::max();
    return std::clamp(x, -kLargest, kLargest);
  };
  const double x = finite(raw) + finite(bias);
  const double rate = finite(std::exp(static_cast<double>((*args.a_log)(h))));
  const double log_decay = args.gate_activation == GateActivation::kSoftplus
                               ? -rate * softplus(x)
                               : args.gate_lower_bound * sigmoid(rate * x);
  return std::exp(log_decay);
}

template <class T>
std::vector<double> head_of(const View<const T, 3>& x, std::int64_t token, std::int64_t head,
                            double epsilon) {
  std::vector<double> row;
  double squares = 0;
  for (std::int64_t i = 0; i < x.extent(2); ++i) {
    row.push_back(to_float(x(token, head, i)));
    squares += row.back() * row.back();
  }
  if (epsilon > 0) {
    for (double& element : row) element /= std::sqrt(squares + epsilon);
  }
  return row;
}

}  // namespace

template <class T, class G>
GatedDeltaNetResult gated_delta_net(const GatedDeltaNetArgs<T, G>& args) {
  const auto [tokens, value_heads, value_dim] = args.value.extents();
  const std::int64_t key_heads = args.key.extent(1), key_dim = args.key.extent(2);
  const std::int64_t sequences = args.cu_seqlens.extent(0) - 1,
                     capacity = args.state_update_capacity;
  const std::int64_t decays = value_heads * (args.decay_per_key ? key_dim : 1);
  const std::int64_t update_row =
      capacity * (decays + key_heads * key_dim + value_heads * value_dim);
  const bool recalls =
      args.update_rule == UpdateRule::kDelta || args.update_rule == UpdateRule::kGatedDelta;
  const double scale = args.scale != 0 ? args.scale : 1 / std::sqrt(static_cast<double>(key_dim));
  const double epsilon = !args.qk_l2_norm                                   ? 0
                         : args.gate_activation == GateActivation::kSigmoid ? 1e-6
                                                                            : 1e-12;

  GatedDeltaNetResult result;
  result.output.resize(tokens * value_heads * value_dim);
  result.final_state.resize(sequences * value_heads * value_dim * key_dim);
  result.state_update.resize(sequences * update_row);
  for (std::int64_t b = 0; b < sequences; ++b) {
    const std::int64_t start = args.cu_seqlens(b), length = args.cu_seqlens(b + 1) - start;
    const std::int64_t captured =
        capacity == 0 || !args.state_update_active
            ? 0
            : std::clamp<std::int64_t>((*args.capture_count)(b), 0, std::min(capacity, length));
    for (std::int64_t h = 0; h < value_heads; ++h) {
      const std::int64_t key_head = h / (value_heads / key_heads);
      double* const state = &result.final_state[(b * value_heads + h) * value_dim * key_dim];
      const auto S = [&](std::int64_t v, std::int64_t i) -> double& {
        return state[v * key_dim + i];
      };
      for (std::int64_t v = 0; v < value_dim; ++v) {
        for (std::int64_t i = 0; i < key_dim; ++i)
          S(v, i) = args.initial_state ? (*args.initial_state)(b, h, v, i) : 0;
      }
      for (std::int64_t t = 0; t < length; ++t) {
        const auto k = head_of(args.key, start + t, key_head, epsilon);
        const auto q = head_of(args.query, start + t, key_head, epsilon);
        double beta = args.beta ? to_float((*args.beta)(start + t, h)) : 1;
        if (args.beta_activation == BetaActivation::kSigmoid && args.beta) beta = sigmoid(beta);
        double* const update = &result.state_update[b * update_row];
        for (std::int64_t v = 0; v < value_dim; ++v) {
          double recalled = 0, out = 0;
          for (std::int64_t i = 0; i < key_dim; ++i) {
            recalled += (S(v, i) *= decay_factor(args, start + t, h, i)) * k[i];
          }
          const double delta =
              beta * (to_float(args.value(start + t, h, v)) - (recalls ? recalled : 0));
          for (std::int64_t i = 0; i < key_dim; ++i) out += (S(v, i) += k[i] * delta) * q[i];
          result.output[((start + t) * value_heads + h) * value_dim + v] = scale * out;
          if (t < captured) {
            update[capacity * (decays + key_heads * key_dim) + (t * value_heads + h) * value_dim +
                   v] = delta;
          }
        }
        if (t >= captured) continue;
        const std::int64_t columns = decays / value_heads;
        for (std::int64_t i = 0; i < columns; ++i) {
          update[(t * value_heads + h) * columns + i] = decay_factor(args, start + t, h, i);
        }
        std::copy(k.begin(), k.end(),
                  update + capacity * decays + (t * key_heads + key_head) * key_dim);
      }
    }
  }
  return result;
}

template GatedDeltaNetResult gated_delta_net(const GatedDeltaNetArgs<float>&);
template GatedDeltaNetResult gated_delta_net(const GatedDeltaNetArgs<Float16>&);
template GatedDeltaNetResult gated_delta_net(const GatedDeltaNetArgs<BFloat16>&);
template GatedDeltaNetResult gated_delta_net(const GatedDeltaNetArgs<Float16, Float16>&);
template GatedDeltaNetResult gated_delta_net(const GatedDeltaNetArgs<BFloat16, BFloat16>&);

}  // namespace deltaworks::reference

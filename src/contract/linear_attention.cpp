#include "contract/linear_attention.hpp"

#include <cmath>

#include "contract/checker.hpp"

namespace deltaworks::contract {

namespace {

void check_types(Checker& check, const LinearAttentionOperands& in) {
  const DType element = in.query.dtype;
  check.require(element != DType::kInt32,
                "query has type int32, expected float32, float16 or bfloat16");
  check.dtype("key", in.key, element);
  check.dtype("value", in.value, element);
  if (in.decay) check.dtype("decay", *in.decay, element);
  if (in.beta) check.dtype("beta", *in.beta, element);
  if (in.output) check.dtype("output", *in.output, element);
  const Operand& state = in.past_state ? in.past_state : in.present_state;
  if (!state) return;
  check.require(state->dtype == DType::kFloat32 || state->dtype == element,
                "{} has type {}, expected float32{}{}",
                in.past_state ? "past_state" : "present_state", name(state->dtype),
                element == DType::kFloat32 ? "" : " or ",
                element == DType::kFloat32 ? "" : name(element));
  if (in.present_state) check.dtype("present_state", *in.present_state, state->dtype);
}

void check_attributes(Checker& check, const LinearAttentionOperands& in,
                      LinearAttentionGeometry& g) {
  g.q_num_heads = in.q_num_heads;
  g.kv_num_heads = in.kv_num_heads;
  check.require(g.q_num_heads > 0, "q_num_heads is {}, expected 1 or more", g.q_num_heads);
  check.require(g.kv_num_heads > 0, "kv_num_heads is {}, expected 1 or more", g.kv_num_heads);
  check.require(in.update_rule <= UpdateRule::kGatedDelta, "update_rule is {}, expected 0 to {}",
                static_cast<int>(in.update_rule), static_cast<int>(UpdateRule::kGatedDelta));
  check.require(!std::isnan(in.scale), "scale is NaN, expected a number");
  if (!check.ok()) return;
  const bool even = g.q_num_heads >= g.kv_num_heads ? g.q_num_heads % g.kv_num_heads == 0
                                                    : g.kv_num_heads % g.q_num_heads == 0;
  check.require(even, "q_num_heads is {}, expected a multiple or a divisor of kv_num_heads = {}",
                g.q_num_heads, g.kv_num_heads);
  g.decays = in.update_rule == UpdateRule::kGated || in.update_rule == UpdateRule::kGatedDelta;
  g.recalls = in.update_rule == UpdateRule::kDelta || in.update_rule == UpdateRule::kGatedDelta;
}

// The last dim of a tensor [sequences, length, ·], kUnknown when it is open.
std::int64_t width_of(Checker& check, std::string_view argument, const Tensor& tensor,
                      LinearAttentionGeometry& g) {
  std::int64_t width = kUnknown;
  check.shape(argument, tensor, {&g.sequences, &g.length, &width});
  return width;
}

// The dim of each of `heads` heads in rows of `width`.
std::int64_t head_dim(Checker& check, std::string_view argument, std::int64_t width,
                      std::string_view attribute, std::int64_t heads) {
  if (width == kUnknown) return kUnknown;
  check.require(width > 0 && width % heads == 0,
                "{} has rows of {}, expected a positive multiple of {} = {}", argument, width,
                attribute, heads);
  return width / heads;
}

void check_key(Checker& check, std::int64_t width, LinearAttentionGeometry& g) {
  if (!check.ok() || width == kUnknown || g.key_dim == kUnknown) return;
  check.require(width > 0 && width % g.key_dim == 0,
                "key has rows of {}, expected a positive multiple of key_dim = {}", width,
                g.key_dim);
  if (!check.ok()) return;
  g.key_heads = width / g.key_dim;
  check.require(g.kv_num_heads % g.key_heads == 0,
                "key has {} heads of {}, expected a divisor of kv_num_heads = {}", g.key_heads,
                g.key_dim, g.kv_num_heads);
}

void check_gates(Checker& check, const LinearAttentionOperands& in, LinearAttentionGeometry& g) {
  check.require(in.decay || !g.decays, "decay is missing, expected it: update_rule is {}",
                g.recalls ? "gated_delta" : "gated");
  check.require(in.beta || !g.recalls, "beta is missing, expected it: update_rule is {}",
                g.decays ? "gated_delta" : "delta");
  if (in.decay && check.ok()) {
    const std::int64_t width = width_of(check, "decay", *in.decay, g);
    g.decay_per_key = width != g.kv_num_heads;
    if (width != kUnknown && g.key_dim != kUnknown) {
      check.require(width == g.kv_num_heads || width == g.kv_num_heads * g.key_dim,
                    "decay has rows of {}, expected kv_num_heads = {}, or {} for one per key",
                    width, g.kv_num_heads, g.kv_num_heads * g.key_dim);
    }
  }
  if (in.beta && check.ok()) {
    const std::int64_t width = width_of(check, "beta", *in.beta, g);
    g.beta_per_head = width != 1;
    check.require(width == kUnknown || width == 1 || width == g.kv_num_heads,
                  "beta has rows of {}, expected kv_num_heads = {}, or 1", width, g.kv_num_heads);
  }
}

}  // namespace

Outcome<LinearAttentionGeometry> linear_attention(std::string_view op,
                                                  const LinearAttentionOperands& in) {
  Checker check(op);
  LinearAttentionGeometry g;
  check_types(check, in);
  check_attributes(check, in, g);
  if (!check.ok()) return check.complaint();
  const std::int64_t query = width_of(check, "query", in.query, g);
  const std::int64_t key = width_of(check, "key", in.key, g);
  const std::int64_t value = width_of(check, "value", in.value, g);
  if (!check.ok()) return check.complaint();
  g.key_dim = head_dim(check, "query", query, "q_num_heads", g.q_num_heads);
  g.value_dim = head_dim(check, "value", value, "kv_num_heads", g.kv_num_heads);
  for (const auto& [argument, state] :
       {std::pair{"past_state", &in.past_state}, std::pair{"present_state", &in.present_state}}) {
    check.shape(argument, *state, {&g.sequences, &g.kv_num_heads, &g.key_dim, &g.value_dim});
  }
  check_key(check, key, g);
  check.require(g.key_dim == kUnknown || g.key_dim > 0, "key_dim is {}, expected 1 or more",
                g.key_dim);
  check.require(g.key_dim <= kMaxKeyDim, "query has key_dim {}, expected at most {}", g.key_dim,
                kMaxKeyDim);
  check.size("output", {g.sequences, g.length, g.output_heads(), g.value_dim});
  check.size("present_state", {g.sequences, g.kv_num_heads, g.key_dim, g.value_dim});
  if (!check.ok()) return check.complaint();
  check_gates(check, in, g);
  std::int64_t width = g.output_width();
  check.shape("output", in.output, {&g.sequences, &g.length, &width});
  if (!check.ok()) return check.complaint();
  return g;
}

}  // namespace deltaworks::contract

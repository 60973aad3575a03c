#include "contract/gated_delta_net.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "contract/checker.hpp"

namespace deltaworks::contract {

namespace {

// Dimensions of `tensor` from `first` on, behind the token dimension: [N, …] or [B, S, …].
void bind_tokens(Checker& check, std::string_view argument, const Tensor& tensor, bool batched,
                 GatedDeltaNetGeometry& g, std::initializer_list<std::int64_t*> inner) {
  if (!batched) {
    switch (inner.size()) {
      case 1: check.shape(argument, tensor, {&g.tokens, *inner.begin()}); return;
      default: check.shape(argument, tensor, {&g.tokens, *inner.begin(), *(inner.begin() + 1)});
    }
    return;
  }
  switch (inner.size()) {
    case 1: check.shape(argument, tensor, {&g.sequences, &g.length, *inner.begin()}); return;
    default:
      check.shape(argument, tensor,
                  {&g.sequences, &g.length, *inner.begin(), *(inner.begin() + 1)});
  }
}

void check_state(Checker& check, const GatedDeltaNetOperands& in, GatedDeltaNetGeometry& g) {
  check.together("slots_out", in.slots_out.has_value(), in.slots_in.has_value(),
                 "a state pool needs slots_in and slots_out");
  for (const auto& [argument, slots] :
       {std::pair{"slots_in", &in.slots_in}, std::pair{"slots_out", &in.slots_out},
        std::pair{"fresh", &in.fresh}}) {
    if (!*slots) continue;
    check.dtype(argument, **slots, DType::kInt32);
    check.shape(argument, **slots, {&g.sequences});
  }
  if (!in.initial_state) return;
  check.dtype("initial_state", *in.initial_state, DType::kFloat32);
  check.shape("initial_state", *in.initial_state,
              {in.slots_in ? &g.slots : &g.sequences, &g.value_heads, &g.value_dim, &g.key_dim});
}

// query alone: the head counts follow from the state.
void check_packed(Checker& check, const GatedDeltaNetOperands& in, GatedDeltaNetGeometry& g,
                  bool batched) {
  check.require(
      in.initial_state.has_value(),
      "initial_state is missing, expected it: without key and value it tells value_heads, "
      "value_dim and key_dim");
  check_state(check, in, g);
  std::int64_t row = kUnknown;
  bind_tokens(check, "query", in.query, batched, g, {&row});
  if (!check.ok() || row == kUnknown || g.value_heads == kUnknown || g.value_dim == kUnknown ||
      g.key_dim == kUnknown) {
    return;
  }
  const std::int64_t keys = row - g.value_heads * g.value_dim;
  check.require(g.key_dim > 0 && keys > 0 && keys % (2 * g.key_dim) == 0,
                "query has rows of {}, expected 2 · key_heads · {} + {} · {} as "
                "initial_state has it",
                row, g.key_dim, g.value_heads, g.value_dim);
  if (check.ok()) g.key_heads = keys / (2 * g.key_dim);
}

void check_separate(Checker& check, const GatedDeltaNetOperands& in, GatedDeltaNetGeometry& g,
                    bool batched) {
  bind_tokens(check, "query", in.query, batched, g, {&g.key_heads, &g.key_dim});
  check.dtype("key", *in.key, in.query.dtype);
  bind_tokens(check, "key", *in.key, batched, g, {&g.key_heads, &g.key_dim});
  check.dtype("value", *in.value, in.query.dtype);
  bind_tokens(check, "value", *in.value, batched, g, {&g.value_heads, &g.value_dim});
  check_state(check, in, g);
}

void check_sequences(Checker& check, const GatedDeltaNetOperands& in, GatedDeltaNetGeometry& g,
                     bool batched) {
  if (in.cu_seqlens) {
    if (batched) {
      check.fail(
          fmt::format("cu_seqlens is given, expected none beside query of shape "
                      "{}: its first dimension already counts sequences",
                      to_string(in.query)));
    }
    check.dtype("cu_seqlens", *in.cu_seqlens, DType::kInt32);
    std::int64_t offsets = g.sequences == kUnknown ? kUnknown : g.sequences + 1;
    check.shape("cu_seqlens", *in.cu_seqlens, {&offsets});
    check.require(offsets != 0, "cu_seqlens has shape [0], expected at least one element");
    if (offsets != kUnknown) g.sequences = offsets - 1;
    return;
  }
  if (batched) {
    if (g.sequences != kUnknown && g.length != kUnknown) g.tokens = g.sequences * g.length;
    return;
  }
  check.require(in.initial_state.has_value() && !in.slots_in,
                "cu_seqlens is missing, expected it or an initial_state that tells the sequences");
  if (!check.ok() || g.sequences == kUnknown || g.tokens == kUnknown) return;
  check.require(g.sequences > 0 ? g.tokens % g.sequences == 0 : g.tokens == 0,
                "query has {} tokens, expected a multiple of the {} sequences of "
                "initial_state when cu_seqlens is missing",
                g.tokens, g.sequences);
  if (check.ok()) g.length = g.sequences > 0 ? g.tokens / g.sequences : 0;
}

void check_gates(Checker& check, const GatedDeltaNetOperands& in, GatedDeltaNetGeometry& g,
                 bool batched) {
  const bool gated =
      in.update_rule == UpdateRule::kGated || in.update_rule == UpdateRule::kGatedDelta;
  const bool activated = in.gate_activation != GateActivation::kNone;
  check.require(gated || !in.decay, "decay is given, expected none: update_rule has no decay");
  check.require(!activated || in.decay.has_value(),
                "decay is missing, expected it: gate_activation works on it");
  const DType gate = in.decay ? in.decay->dtype : in.beta ? in.beta->dtype : DType::kFloat32;
  if (gate != DType::kFloat32)
    check.dtype(in.decay ? "decay" : "beta", in.decay ? *in.decay : *in.beta, in.query.dtype);
  if (in.decay) {
    const int per_head_rank = batched ? 3 : 2;
    g.decay_per_key = in.decay->rank == per_head_rank + 1;
    if (g.decay_per_key) {
      bind_tokens(check, "decay", *in.decay, batched, g, {&g.value_heads, &g.key_dim});
    } else {
      bind_tokens(check, "decay", *in.decay, batched, g, {&g.value_heads});
    }
  }
  if (in.beta) {
    check.dtype("beta", *in.beta, gate);
    bind_tokens(check, "beta", *in.beta, batched, g, {&g.value_heads});
  }
  for (const auto& [argument, operand] :
       {std::pair{"a_log", &in.a_log}, std::pair{"dt_bias", &in.dt_bias}}) {
    check.together(argument, operand->has_value(), activated,
                   activated ? "gate_activation needs it" : "gate_activation is none");
    if (*operand) check.dtype(argument, **operand, DType::kFloat32);
  }
  check.shape("a_log", in.a_log, {&g.value_heads});
  if (!check.ok() || !in.dt_bias) return;
  std::int64_t all =
      g.value_heads == kUnknown || g.key_dim == kUnknown ? kUnknown : g.value_heads * g.key_dim;
  const bool flat = g.decay_per_key && in.dt_bias->rank == 1 && all != kUnknown &&
                    in.dt_bias->dims[0] == all && all != g.value_heads;
  g.dt_bias_per_key = flat || (g.decay_per_key && in.dt_bias->rank == 2);
  if (flat) return;
  if (g.dt_bias_per_key) {
    check.shape("dt_bias", *in.dt_bias, {&g.value_heads, &g.key_dim});
  } else {
    check.shape("dt_bias", *in.dt_bias, {&g.value_heads});
  }
}

void check_capture(Checker& check, const GatedDeltaNetOperands& in, GatedDeltaNetGeometry& g) {
  g.capacity = in.state_update_capacity;
  check.require(g.capacity >= 0, "state_update_capacity is {}, expected 0 or more", g.capacity);
  check.together("capture_count", in.capture_count.has_value(), g.capacity > 0,
                 "it goes with a positive state_update_capacity");
  if (in.capture_count) {
    check.dtype("capture_count", *in.capture_count, DType::kInt32);
    check.shape("capture_count", *in.capture_count, {&g.sequences});
  }
  if (in.state_update_active) {
    std::int64_t one = 1;
    check.dtype("state_update_active", *in.state_update_active, DType::kInt32);
    check.shape("state_update_active", *in.state_update_active, {&one});
  }
}

void check_heads(Checker& check, const GatedDeltaNetGeometry& g) {
  if (g.key_heads != kUnknown && g.value_heads != kUnknown) {
    check.require(g.key_heads > 0 && g.value_heads > 0 && g.value_heads % g.key_heads == 0,
                  "value has {} heads, expected a positive multiple of the {} key heads",
                  g.value_heads, g.key_heads);
  }
  check.require(g.key_dim == kUnknown || g.key_dim > 0, "key_dim is {}, expected 1 or more",
                g.key_dim);
  check.require(g.value_dim == kUnknown || g.value_dim > 0, "value_dim is {}, expected 1 or more",
                g.value_dim);
  check.size("initial_state", {g.slots, g.value_heads, g.value_dim, g.key_dim});
  check.size("state_update", {g.sequences, g.capacity, g.value_heads, g.key_dim + g.value_dim});
}

template <class Enum>
Outcome<Enum> parse(std::string_view op, std::string_view attribute, std::string_view text,
                    std::initializer_list<std::pair<std::string_view, Enum>> values) {
  std::string expected;
  for (const auto& [word, value] : values) {
    if (word == text) return value;
    expected += fmt::format("{}{}", expected.empty() ? "" : ", ", word);
  }
  return fmt::format("{}: {} is \"{}\", expected one of {}", op, attribute, text, expected);
}

}  // namespace

Outcome<GatedDeltaNetGeometry> gated_delta_net(std::string_view op,
                                               const GatedDeltaNetOperands& in) {
  Checker check(op);
  GatedDeltaNetGeometry g;
  check.require(in.query.dtype != DType::kInt32,
                "query has type int32, expected float32, float16 or bfloat16");
  check.together("value", in.value.has_value(), in.key.has_value(),
                 "key and value come together, or both are packed into query");
  check.require(!std::isnan(in.scale), "scale is NaN, expected a number");
  check.require(in.update_rule <= UpdateRule::kGatedDelta, "update_rule is {}, expected 0 to {}",
                static_cast<int>(in.update_rule), static_cast<int>(UpdateRule::kGatedDelta));
  check.require(in.gate_activation <= GateActivation::kSigmoid,
                "gate_activation is {}, expected 0 to {}", static_cast<int>(in.gate_activation),
                static_cast<int>(GateActivation::kSigmoid));
  check.require(std::isfinite(in.gate_lower_bound) && in.gate_lower_bound <= 0,
                "gate_lower_bound is {}, expected a finite number of 0 or less",
                in.gate_lower_bound);
  check.require(in.chunk_size >= 1 && in.chunk_size <= std::numeric_limits<std::int32_t>::max(),
                "chunk_size is {}, expected 1 to 2147483647", in.chunk_size);
  if (!check.ok()) return check.complaint();
  const bool batched = in.query.rank == (in.key ? 4 : 3);
  if (in.key) {
    check_separate(check, in, g, batched);
  } else {
    check_packed(check, in, g, batched);
  }
  if (check.ok()) check_sequences(check, in, g, batched);
  if (check.ok()) check_gates(check, in, g, batched);
  if (check.ok()) check_capture(check, in, g);
  if (!in.slots_in) g.slots = g.sequences;
  if (check.ok()) check_heads(check, g);
  check.require(g.key_dim <= kMaxKeyDim, "key has key_dim {}, expected at most {}", g.key_dim,
                kMaxKeyDim);
  if (!check.ok()) return check.complaint();
  return g;
}

Outcome<GatedDeltaNetGeometry> replay_gated_delta_state(std::string_view op,
                                                        const ReplayGatedDeltaStateOperands& in) {
  Checker check(op);
  GatedDeltaNetGeometry g;
  g.key_heads = in.key_heads;
  g.capacity = in.state_update_capacity;
  check.dtype("initial_state", in.initial_state, DType::kFloat32);
  check.dtype("state_update", in.state_update, DType::kFloat32);
  check.dtype("count", in.count, DType::kInt32);
  check.shape("initial_state", in.initial_state,
              {&g.sequences, &g.value_heads, &g.value_dim, &g.key_dim});
  check.shape("count", in.count, {&g.sequences});
  check.require(g.capacity > 0, "state_update_capacity is {}, expected 1 or more", g.capacity);
  check.require(g.key_heads > 0, "key_heads is {}, expected 1 or more", g.key_heads);
  g.slots = g.sequences;
  if (check.ok()) check_heads(check, g);
  std::int64_t row = kUnknown;
  check.shape("state_update", in.state_update, {&g.sequences, &row});
  if (!check.ok()) return check.complaint();
  if (row == kUnknown || g.value_heads == kUnknown || g.value_dim == kUnknown ||
      g.key_dim == kUnknown) {
    return g;
  }
  const std::int64_t per_head = g.state_update_row();
  g.decay_per_key = true;
  const std::int64_t per_key = g.state_update_row();
  g.decay_per_key = row == per_key && per_key != per_head;
  check.require(row == per_head || row == per_key,
                "state_update has rows of {}, expected {}, or {} for per-key decay", row, per_head,
                per_key);
  if (!check.ok()) return check.complaint();
  return g;
}

Outcome<UpdateRule> parse_update_rule(std::string_view op, std::string_view text) {
  return parse<UpdateRule>(op, "update_rule", text,
                           {{"linear", UpdateRule::kLinear},
                            {"gated", UpdateRule::kGated},
                            {"delta", UpdateRule::kDelta},
                            {"gated_delta", UpdateRule::kGatedDelta}});
}

Outcome<GateActivation> parse_gate_activation(std::string_view op, std::string_view text) {
  return parse<GateActivation>(op, "gate_activation", text,
                               {{"none", GateActivation::kNone},
                                {"softplus", GateActivation::kSoftplus},
                                {"qwen", GateActivation::kSoftplus},
                                {"sigmoid", GateActivation::kSigmoid},
                                {"kda", GateActivation::kSigmoid}});
}

Outcome<BetaActivation> parse_beta_activation(std::string_view op, std::string_view text) {
  return parse<BetaActivation>(
      op, "beta_activation", text,
      {{"none", BetaActivation::kNone}, {"sigmoid", BetaActivation::kSigmoid}});
}

}  // namespace deltaworks::contract

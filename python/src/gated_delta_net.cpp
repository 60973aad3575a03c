#include "deltaworks/gated_delta_net.hpp"

#include <limits>
#include <vector>

#include "call.hpp"
#include "contract/engine.hpp"
#include "contract/gated_delta_net.hpp"
#include "module.hpp"

namespace deltaworks::python {

namespace {

constexpr const char* kOp = "gated_delta_net";
constexpr const char* kReplay = "replay_gated_delta_state";

enum Result { kOutput, kFinalState, kStateUpdate };

using Geometry = contract::GatedDeltaNetGeometry;

struct Attributes {
  UpdateRule update_rule;
  GateActivation gate_activation;
  BetaActivation beta_activation;
  float scale, gate_lower_bound;
  bool qk_l2_norm;
  std::int64_t capacity, chunk_size;
  Engine engine;

  explicit Attributes(const Call& call)
      : update_rule(
            contract::value_or_throw(contract::parse_update_rule(kOp, call.text("update_rule")))),
        gate_activation(contract::value_or_throw(
            contract::parse_gate_activation(kOp, call.text("gate_activation")))),
        beta_activation(contract::value_or_throw(
            contract::parse_beta_activation(kOp, call.text("beta_activation")))),
        scale(call.real("scale")),
        gate_lower_bound(call.real("gate_lower_bound")),
        qk_l2_norm(call.flag("qk_l2_norm")),
        capacity(call.integer("state_update_capacity")),
        chunk_size(call.integer("chunk_size")),
        engine(
            contract::value_or_throw(contract::parse_engine(kOp, "engine", call.text("engine")))) {}
};

// A truth value, or ONNX's tensor of one int32.
bool is_active(Call& call) {
  if (!call.is_array("state_update_active")) return call.flag("state_update_active");
  return call.view<std::int32_t, 1>("state_update_active")(0) != 0;
}

Geometry geometry_of(Call& call, const Attributes& attributes) {
  return contract::value_or_throw(contract::gated_delta_net(
      kOp, {.query = call.tensor("query"),
            .key = call.operand("key"),
            .value = call.operand("value"),
            .cu_seqlens = call.operand("cu_seqlens"),
            .decay = call.operand("decay"),
            .beta = call.operand("beta"),
            .initial_state = call.operand("initial_state"),
            .a_log = call.operand("a_log"),
            .dt_bias = call.operand("dt_bias"),
            .capture_count = call.operand("capture_count"),
            .state_update_active = call.is_array("state_update_active")
                                       ? call.operand("state_update_active")
                                       : std::nullopt,
            .slots_in = call.operand("slots_in"),
            .slots_out = call.operand("slots_out"),
            .fresh = call.operand("fresh"),
            .update_rule = attributes.update_rule,
            .gate_activation = attributes.gate_activation,
            .scale = attributes.scale,
            .gate_lower_bound = attributes.gate_lower_bound,
            .state_update_capacity = attributes.capacity,
            .chunk_size = attributes.chunk_size}));
}

// Offsets of sequences of one length.
std::vector<std::int32_t> uniform_offsets(const Geometry& g) {
  if (g.tokens > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidArgument(
        fmt::format("{}: query has {} tokens, expected less than 2^31", kOp, g.tokens));
  }
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(g.sequences + 1));
  for (std::int64_t b = 0; b <= g.sequences; ++b) {
    offsets[static_cast<std::size_t>(b)] = static_cast<std::int32_t>(b * g.length);
  }
  return offsets;
}

template <class T>
PackedQkv<T> query_key_value(Call& call, const Geometry& g) {
  if (call.has("key")) {
    return {call.view_as<T, 3>("query", {g.tokens, g.key_heads, g.key_dim}),
            call.view_as<T, 3>("key", {g.tokens, g.key_heads, g.key_dim}),
            call.view_as<T, 3>("value", {g.tokens, g.value_heads, g.value_dim})};
  }
  const std::int64_t row = 2 * g.key_heads * g.key_dim + g.value_heads * g.value_dim;
  return split_qkv<T>(call.view_as<T, 2>("query", {g.tokens, row}), g.key_heads, g.key_dim,
                      g.value_heads, g.value_dim);
}

template <class T, class G>
void fill_gates(Call& call, const Geometry& g, GatedDeltaNetArgs<T, G>& args) {
  if (call.has("decay") && g.decay_per_key) {
    args.decay_per_key = call.view_as<G, 3>("decay", {g.tokens, g.value_heads, g.key_dim});
  } else if (call.has("decay")) {
    args.decay = call.view_as<G, 2>("decay", {g.tokens, g.value_heads});
  }
  if (call.has("beta")) args.beta = call.view_as<G, 2>("beta", {g.tokens, g.value_heads});
  args.a_log = call.optional_view<float, 1>("a_log");
  if (g.dt_bias_per_key) {
    args.dt_bias_per_key = call.view_as<float, 2>("dt_bias", {g.value_heads, g.key_dim});
  } else {
    args.dt_bias = call.optional_view<float, 1>("dt_bias");
  }
}

template <class T, class G>
void fill_states(Call& call, const Geometry& g, GatedDeltaNetArgs<T, G>& args) {
  args.initial_state = call.optional_view<float, 4>("initial_state");
  args.slots_in = call.optional_view<std::int32_t, 1>("slots_in");
  args.slots_out = call.optional_view<std::int32_t, 1>("slots_out");
  args.fresh = call.optional_view<std::int32_t, 1>("fresh");
  if (args.slots_in && args.initial_state) {
    args.final_state = call.result_copied_from<float, 4>(kFinalState, "initial_state");
  } else if (args.slots_in) {
    if (!call.is_handed_in(kFinalState)) {
      throw InvalidArgument(
          fmt::format("{}: final_state is missing in out, expected it: without initial_state "
                      "nothing else tells "
                      "how many slots there are",
                      kOp));
    }
    args.final_state = call.handed_in(kFinalState).view<float, 4>();
  } else {
    args.final_state =
        call.result<float, 4>(kFinalState, {g.sequences, g.value_heads, g.value_dim, g.key_dim});
  }
  if (g.capacity > 0) {
    args.capture_count = call.view<std::int32_t, 1>("capture_count");
    args.state_update = call.result<float, 2>(kStateUpdate, {g.sequences, g.state_update_row()});
    args.state_update_capacity = g.capacity;
    args.state_update_active = is_active(call);
  } else {
    call.no_result(kStateUpdate, "state_update_capacity is 0");
  }
}

template <class T>
View<T, 3> output(Call& call, const Geometry& g) {
  const std::array<std::int64_t, 3> extents{g.tokens, g.value_heads, g.value_dim};
  const bool batched = call.tensor("query").rank == (call.has("key") ? 4 : 3);
  if (!batched) return call.result<T, 3>(kOutput, extents);
  const std::array<std::int64_t, 4> by_sequence{g.sequences, g.length, g.value_heads, g.value_dim};
  const Array& array = call.result(kOutput, tensor_of<T>(by_sequence));
  return {array.elements<T>(), extents};
}

template <class T, class G>
nb::tuple run(Call& call, const Geometry& g, const Attributes& attributes) {
  const auto qkv = query_key_value<T>(call, g);
  std::vector<std::int32_t> offsets;
  if (!call.has("cu_seqlens")) offsets = uniform_offsets(g);
  GatedDeltaNetArgs<T, G> args{
      .query = qkv.query,
      .key = qkv.key,
      .value = qkv.value,
      .cu_seqlens = call.has("cu_seqlens")
                        ? call.view<std::int32_t, 1>("cu_seqlens")
                        : View<const std::int32_t, 1>(offsets.data(), {g.sequences + 1}),
      .output = output<T>(call, g),
      .final_state = {},
      .update_rule = attributes.update_rule,
      .scale = attributes.scale,
      .gate_activation = attributes.gate_activation,
      .gate_lower_bound = attributes.gate_lower_bound,
      .beta_activation = attributes.beta_activation,
      .qk_l2_norm = attributes.qk_l2_norm,
      .engine = attributes.engine};
  fill_gates(call, g, args);
  fill_states(call, g, args);
  return call.run([&](const Cpu& device) { gated_delta_net(device, args); });
}

nb::tuple net(const nb::kwargs& arguments) {
  Call call(kOp, arguments, {"output", "final_state", "state_update"});
  const Attributes attributes(call);
  const Geometry geometry = geometry_of(call, attributes);
  const auto is_wide = [&](const char* gate) {
    return !call.has(gate) || call.tensor(gate).dtype == DType::kFloat32;
  };
  const bool wide = is_wide("decay") && is_wide("beta");
  return visit_element(call.tensor("query").dtype, [&]<class T>(T) {
    return wide ? run<T, float>(call, geometry, attributes) : run<T, T>(call, geometry, attributes);
  });
}

nb::tuple replay(const nb::kwargs& arguments) {
  Call call(kReplay, arguments, {"state"});
  const auto key_heads = call.integer("key_heads");
  const auto capacity = call.integer("state_update_capacity");
  const Geometry g = contract::value_or_throw(
      contract::replay_gated_delta_state(kReplay, {.initial_state = call.tensor("state"),
                                                   .state_update = call.tensor("state_update"),
                                                   .count = call.tensor("count"),
                                                   .key_heads = key_heads,
                                                   .state_update_capacity = capacity}));
  const ReplayGatedDeltaStateArgs args{
      .initial_state = call.view<float, 4>("state"),
      .state_update = call.view<float, 2>("state_update"),
      .count = call.view<std::int32_t, 1>("count"),
      .final_state = call.result<float, 4>(0, {g.sequences, g.value_heads, g.value_dim, g.key_dim}),
      .key_heads = key_heads,
      .state_update_capacity = capacity};
  return call.run([&](const Cpu& device) { replay_gated_delta_state(device, args); });
}

}  // namespace

void define_gated_delta_net(nb::module_& module) {
  module.def(kOp, &net);
  module.def(kReplay, &replay);
}

}  // namespace deltaworks::python

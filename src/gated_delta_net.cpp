#include "deltaworks/gated_delta_net.hpp"

#include <fmt/format.h>

#include "contract/gated_delta_net.hpp"
#include "contract/values.hpp"
#include "cpu/gated_delta_net.hpp"
#include "cpu/target.hpp"

namespace deltaworks {

namespace {

constexpr std::string_view kOp = "gated_delta_net";
constexpr std::string_view kReplay = "replay_gated_delta_state";

template <class T, class G>
contract::GatedDeltaNetGeometry geometry_of(const GatedDeltaNetArgs<T, G>& args) {
  if ((args.decay && args.decay_per_key) || (args.dt_bias && args.dt_bias_per_key)) {
    throw InvalidArgument(fmt::format("{}: {} is given per head and per key, expected one of them",
                                      kOp, args.decay_per_key ? "decay" : "dt_bias"));
  }
  const contract::Operand state = contract::describe(args.initial_state);
  contract::GatedDeltaNetGeometry geometry = contract::value_or_throw(contract::gated_delta_net(
      kOp, {.query = contract::describe(args.query),
            .key = contract::describe(args.key),
            .value = contract::describe(args.value),
            .cu_seqlens = contract::describe(args.cu_seqlens),
            .decay = args.decay ? contract::describe(args.decay)
                                : contract::describe(args.decay_per_key),
            .beta = contract::describe(args.beta),
            .initial_state = state,
            .a_log = contract::describe(args.a_log),
            .dt_bias = args.dt_bias ? contract::describe(args.dt_bias)
                                    : contract::describe(args.dt_bias_per_key),
            .capture_count = contract::describe(args.capture_count),
            .state_update_active = {},
            .slots_in = contract::describe(args.slots_in),
            .slots_out = contract::describe(args.slots_out),
            .fresh = contract::describe(args.fresh),
            .update_rule = args.update_rule,
            .gate_activation = args.gate_activation,
            .scale = args.scale,
            .gate_lower_bound = args.gate_lower_bound,
            .state_update_capacity = args.state_update_capacity}));
  contract::Checker check(kOp);
  auto& g = geometry;
  check.shape("output", contract::describe(args.output), {&g.tokens, &g.value_heads, &g.value_dim});
  check.shape("final_state", contract::describe(args.final_state),
              {&g.slots, &g.value_heads, &g.value_dim, &g.key_dim});
  check.together("state_update", args.state_update.has_value(), g.capacity > 0,
                 "it goes with a positive state_update_capacity");
  std::int64_t row = g.state_update_row();
  check.shape("state_update", contract::describe(args.state_update), {&g.sequences, &row});
  if (!check.ok()) throw InvalidArgument(check.complaint());
  return geometry;
}

template <class T, class G>
void check_memory(const GatedDeltaNetArgs<T, G>& args) {
  using contract::range_of;
  const auto each = [](const auto& visit, const auto&... named) {
    (visit(named.first, named.second), ...);
  };
  each([](const char* argument, const auto& view) { contract::check_memory(kOp, argument, view); },
       std::pair{"query", args.query}, std::pair{"key", args.key}, std::pair{"value", args.value},
       std::pair{"decay", args.decay}, std::pair{"decay", args.decay_per_key},
       std::pair{"beta", args.beta}, std::pair{"initial_state", args.initial_state},
       std::pair{"a_log", args.a_log}, std::pair{"dt_bias", args.dt_bias},
       std::pair{"dt_bias", args.dt_bias_per_key}, std::pair{"output", args.output},
       std::pair{"final_state", args.final_state}, std::pair{"state_update", args.state_update},
       std::pair{"cu_seqlens", args.cu_seqlens}, std::pair{"capture_count", args.capture_count},
       std::pair{"slots_in", args.slots_in}, std::pair{"slots_out", args.slots_out},
       std::pair{"fresh", args.fresh});
  contract::check_overlap(
      kOp,
      {range_of("query", args.query), range_of("key", args.key), range_of("value", args.value),
       range_of("decay", args.decay), range_of("decay", args.decay_per_key),
       range_of("beta", args.beta), range_of("initial_state", args.initial_state),
       range_of("a_log", args.a_log), range_of("dt_bias", args.dt_bias),
       range_of("dt_bias", args.dt_bias_per_key), range_of("cu_seqlens", args.cu_seqlens),
       range_of("capture_count", args.capture_count), range_of("slots_in", args.slots_in),
       range_of("slots_out", args.slots_out), range_of("fresh", args.fresh)},
      {range_of("output", args.output), range_of("final_state", args.final_state),
       range_of("state_update", args.state_update)},
      "initial_state", "final_state");
}

template <class T, class G>
void run(const Cpu& device, const GatedDeltaNetArgs<T, G>& args) {
  const auto geometry = geometry_of(args);
  check_memory(args);
  contract::check_cu_seqlens(kOp, args.cu_seqlens, geometry.tokens);
  if (args.slots_in) {
    const bool in_place =
        args.initial_state && args.initial_state->data() == args.final_state.data();
    contract::check_pool(kOp, *args.slots_in, *args.slots_out, args.fresh, geometry.slots,
                         in_place);
  }
  cpu::ensure_target();
  cpu::gated_delta_net(device, geometry, args);
}

}  // namespace

void gated_delta_net(const Cpu& device, const GatedDeltaNetArgs<float>& args) { run(device, args); }
void gated_delta_net(const Cpu& device, const GatedDeltaNetArgs<Float16>& args) {
  run(device, args);
}
void gated_delta_net(const Cpu& device, const GatedDeltaNetArgs<BFloat16>& args) {
  run(device, args);
}
void gated_delta_net(const Cpu& device, const GatedDeltaNetArgs<Float16, Float16>& args) {
  run(device, args);
}
void gated_delta_net(const Cpu& device, const GatedDeltaNetArgs<BFloat16, BFloat16>& args) {
  run(device, args);
}

void replay_gated_delta_state(const Cpu& device, const ReplayGatedDeltaStateArgs& args) {
  using contract::describe, contract::range_of;
  auto geometry = contract::value_or_throw(contract::replay_gated_delta_state(
      kReplay, {.initial_state = describe(args.initial_state),
                .state_update = describe(args.state_update),
                .count = describe(args.count),
                .key_heads = args.key_heads,
                .state_update_capacity = args.state_update_capacity}));
  contract::Checker check(kReplay);
  check.shape("final_state", describe(args.final_state),
              {&geometry.sequences, &geometry.value_heads, &geometry.value_dim, &geometry.key_dim});
  if (!check.ok()) throw InvalidArgument(check.complaint());
  contract::check_memory(kReplay, "initial_state", args.initial_state);
  contract::check_memory(kReplay, "state_update", args.state_update);
  contract::check_memory(kReplay, "count", args.count);
  contract::check_memory(kReplay, "final_state", args.final_state);
  contract::check_range(kReplay, "count", args.count, 0, args.state_update_capacity);
  contract::check_overlap(
      kReplay,
      {range_of("initial_state", args.initial_state), range_of("state_update", args.state_update),
       range_of("count", args.count)},
      {range_of("final_state", args.final_state)}, "initial_state", "final_state");
  cpu::ensure_target();
  cpu::replay_gated_delta_state(device, geometry, args);
}

}  // namespace deltaworks

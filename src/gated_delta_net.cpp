#include "deltaworks/gated_delta_net.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "contract/checker.hpp"
#include "contract/engine.hpp"
#include "contract/gated_delta_net.hpp"
#include "contract/memory.hpp"
#include "contract/values.hpp"
#include "cpu/gated_delta_net.hpp"
#include "cpu/target.hpp"
#include "cuda/gated_delta_net.hpp"
#include "trace.hpp"

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
  if (args.beta_activation > BetaActivation::kSigmoid) {
    throw InvalidArgument(fmt::format("{}: beta_activation is {}, expected 0 to {}", kOp,
                                      static_cast<int>(args.beta_activation),
                                      static_cast<int>(BetaActivation::kSigmoid)));
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
contract::CallMemory memory_of(const GatedDeltaNetArgs<T, G>& args) {
  contract::CallMemory memory(kOp);
  memory.add("query", args.query).add("key", args.key).add("value", args.value);
  memory.add("cu_seqlens", args.cu_seqlens).add("initial_state", args.initial_state);
  memory.add("decay", args.decay).add("decay_per_key", args.decay_per_key).add("beta", args.beta);
  memory.add("a_log", args.a_log).add("dt_bias", args.dt_bias);
  memory.add("dt_bias_per_key", args.dt_bias_per_key).add("slots_in", args.slots_in);
  memory.add("slots_out", args.slots_out).add("fresh", args.fresh);
  memory.add("capture_count", args.capture_count).add("output", args.output);
  memory.add("final_state", args.final_state).add("state_update", args.state_update);
  memory.check_apart({{"initial_state", "final_state"}});
  return memory;
}

// Kernels count what lies within a token, and the tokens, in 32 bits.
void check_cuda_extents(const contract::GatedDeltaNetGeometry& g) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto check = [&](std::string_view what, std::int64_t size) {
    if (size <= kMost) return;
    throw InvalidArgument(
        fmt::format("{}: {} is {}, expected at most {} on Cuda", kOp, what, size, kMost));
  };
  check("tokens", g.tokens);
  check("sequences", g.sequences);
  check("key_heads · key_dim", g.key_heads * g.key_dim);
  check("value_heads · value_dim", g.value_heads * g.value_dim);
  check("state_update_capacity", g.capacity);
}

// Chunked where any sequence's tokens are.
template <class T, class G>
const char* engine_name(const GatedDeltaNetArgs<T, G>& args,
                        const contract::GatedDeltaNetGeometry& g) {
  for (std::int64_t b = 0; b < g.sequences; ++b) {
    if (contract::chunked_tokens(args, g, b) > 0) return "chunked";
  }
  return "recurrent";
}

template <class T, class G>
void run(const Cpu& device, const GatedDeltaNetArgs<T, G>& args) {
  const auto geometry = geometry_of(args);
  memory_of(args);
  contract::check_cu_seqlens(kOp, args.cu_seqlens, geometry.tokens);
  if (args.slots_in) {
    const bool in_place =
        args.initial_state && args.initial_state->data() == args.final_state.data();
    contract::check_pool(kOp, *args.slots_in, *args.slots_out, args.fresh, geometry.slots,
                         in_place);
  }
  GatedDeltaNetArgs<T, G> chosen = args;
  chosen.engine = contract::chosen_engine(kOp, args.engine);
  cpu::ensure_target();
  const Trace trace(kOp, dtype_of<T>(),
                    {{"sequences", geometry.sequences},
                     {"tokens", geometry.tokens},
                     {"key_heads", geometry.key_heads},
                     {"value_heads", geometry.value_heads},
                     {"key_dim", geometry.key_dim},
                     {"value_dim", geometry.value_dim},
                     {"capacity", geometry.capacity}},
                    Trace::is_on() ? engine_name(chosen, geometry) : "");
  cpu::gated_delta_net(device, geometry, chosen);
}

template <class T, class G>
void run(const Cuda& device, const GatedDeltaNetArgs<T, G>& args) {
  const auto geometry = geometry_of(args);
  check_cuda_extents(geometry);
  memory_of(args);
  GatedDeltaNetArgs<T, G> chosen = args;
  chosen.engine = contract::chosen_engine(kOp, args.engine, Engine::kChunked);
  cuda::gated_delta_net(device, geometry, chosen);
}

contract::GatedDeltaNetGeometry geometry_of(const ReplayGatedDeltaStateArgs& args) {
  using contract::describe;
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
  return geometry;
}

contract::CallMemory memory_of(const ReplayGatedDeltaStateArgs& args) {
  contract::CallMemory memory(kReplay);
  memory.add("initial_state", args.initial_state).add("state_update", args.state_update);
  memory.add("count", args.count).add("final_state", args.final_state);
  memory.check_apart({{"initial_state", "final_state"}});
  return memory;
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

void gated_delta_net(const Cuda& device, const GatedDeltaNetArgs<float>& args) {
  run(device, args);
}
void gated_delta_net(const Cuda& device, const GatedDeltaNetArgs<Float16>& args) {
  run(device, args);
}
void gated_delta_net(const Cuda& device, const GatedDeltaNetArgs<BFloat16>& args) {
  run(device, args);
}
void gated_delta_net(const Cuda& device, const GatedDeltaNetArgs<Float16, Float16>& args) {
  run(device, args);
}
void gated_delta_net(const Cuda& device, const GatedDeltaNetArgs<BFloat16, BFloat16>& args) {
  run(device, args);
}

template <class T, class G>
std::vector<AccessRange> access_ranges(const GatedDeltaNetArgs<T, G>& args) {
  geometry_of(args);
  return memory_of(args).ranges();
}
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(const GatedDeltaNetArgs<float>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const GatedDeltaNetArgs<Float16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const GatedDeltaNetArgs<BFloat16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const GatedDeltaNetArgs<Float16, Float16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const GatedDeltaNetArgs<BFloat16, BFloat16>&);

void replay_gated_delta_state(const Cpu& device, const ReplayGatedDeltaStateArgs& args) {
  const contract::GatedDeltaNetGeometry geometry = geometry_of(args);
  memory_of(args);
  contract::check_range(kReplay, "count", args.count, 0, args.state_update_capacity);
  cpu::ensure_target();
  const Trace trace(kReplay, DType::kFloat32,
                    {{"sequences", geometry.sequences},
                     {"key_heads", geometry.key_heads},
                     {"value_heads", geometry.value_heads},
                     {"key_dim", geometry.key_dim},
                     {"value_dim", geometry.value_dim},
                     {"capacity", geometry.capacity}},
                    "replay");
  cpu::replay_gated_delta_state(device, geometry, args);
}

void replay_gated_delta_state(const Cuda& device, const ReplayGatedDeltaStateArgs& args) {
  const contract::GatedDeltaNetGeometry geometry = geometry_of(args);
  memory_of(args);
  cuda::replay_gated_delta_state(device, geometry, args);
}

std::vector<AccessRange> access_ranges(const ReplayGatedDeltaStateArgs& args) {
  geometry_of(args);
  return memory_of(args).ranges();
}

}  // namespace deltaworks

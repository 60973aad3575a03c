// com.microsoft::GatedDeltaNet
#include "deltaworks/gated_delta_net.hpp"

#include <fmt/format.h>

#include <limits>
#include <string>

#include "contract/engine.hpp"
#include "contract/gated_delta_net.hpp"
#include "contract/values.hpp"
#include "operator.hpp"

namespace deltaworks::ort {

namespace {

constexpr const char* kName = "GatedDeltaNet";

enum Input {
  kQuery,
  kKey,
  kValue,
  kCuSeqlens,
  kDecay,
  kBeta,
  kInitialState,
  kALog,
  kDtBias,
  kCaptureCount,
  kActive
};
enum Output { kOutput, kFinalState, kStateUpdate };

using Geometry = contract::GatedDeltaNetGeometry;

struct Attributes {
  UpdateRule update_rule;
  GateActivation gate_activation;
  BetaActivation beta_activation;
  float scale, gate_lower_bound;
  bool qk_l2_norm;
  std::int64_t capacity, chunk_size;
  Engine engine;

  explicit Attributes(const Node& node)
      : update_rule(contract::value_or_throw(
            contract::parse_update_rule(kName, node.attribute("update_rule", "gated_delta")))),
        gate_activation(contract::value_or_throw(
            contract::parse_gate_activation(kName, node.attribute("gate_activation", "none")))),
        beta_activation(contract::value_or_throw(
            contract::parse_beta_activation(kName, node.attribute("beta_activation", "none")))),
        scale(node.attribute("scale", 0.0f)),
        gate_lower_bound(node.attribute("gate_lower_bound", -5.0f)),
        qk_l2_norm(node.attribute("qk_l2_norm", std::int64_t{0}) != 0),
        capacity(state_update_capacity(node)),
        chunk_size(node.attribute("chunk_size", std::int64_t{64})),
        engine(contract::chosen_engine(kName, node.engine)) {}
};

// The forms differ in rank. A graph that leaves the rank of one of these operands open is asked
// about none of them; the run is.
template <class Source>
bool is_open(const Source& source) {
  for (const Input index : {kQuery, kKey, kValue, kDecay, kBeta, kDtBias}) {
    if (source.has_input(index) && !source.knows_rank(index)) return true;
  }
  return false;
}

template <class Source>
Geometry geometry_of(const Attributes& attributes, const Source& source) {
  const bool open = is_open(source);
  const int token_dims = source.has_input(kCuSeqlens) ? 1 : 2;  // when open
  const auto operand = [&](Input index, int rank) {
    contract::Operand known = source.input(index, rank);
    if (open && known) {
      known->rank = rank;
      known->dims.fill(contract::kUnknown);
    }
    return known;
  };
  return contract::value_or_throw(contract::gated_delta_net(
      kName, {.query = *operand(kQuery, token_dims + (source.has_input(kKey) ? 2 : 1)),
              .key = operand(kKey, token_dims + 2),
              .value = operand(kValue, token_dims + 2),
              .cu_seqlens = source.input(kCuSeqlens, 1),
              .decay = operand(kDecay, token_dims + 1),
              .beta = operand(kBeta, token_dims + 1),
              .initial_state = source.input(kInitialState, 4),
              .a_log = source.input(kALog, 1),
              .dt_bias = operand(kDtBias, 1),
              .capture_count = source.input(kCaptureCount, 1),
              .state_update_active = source.input(kActive, 1),
              .slots_in = {},
              .slots_out = {},
              .fresh = {},
              .update_rule = attributes.update_rule,
              .gate_activation = attributes.gate_activation,
              .scale = attributes.scale,
              .gate_lower_bound = attributes.gate_lower_bound,
              .state_update_capacity = attributes.capacity,
              .chunk_size = attributes.chunk_size}));
}

// Offsets of sequences of one length.
View<const std::int32_t, 1> uniform_offsets(Call& call, const Geometry& g) {
  if (g.tokens > std::numeric_limits<std::int32_t>::max()) {
    throw InvalidArgument(fmt::format("query has {} tokens, expected less than 2^31", g.tokens));
  }
  const std::size_t bytes = static_cast<std::size_t>(g.sequences + 1) * sizeof(std::int32_t);
  auto* const offsets = static_cast<std::int32_t*>(call.scratch(bytes));
  for (std::int64_t b = 0; b <= g.sequences; ++b) {
    offsets[b] = static_cast<std::int32_t>(b * g.length);
  }
  return {offsets, {g.sequences + 1}};
}

template <class T>
PackedQkv<T> query_key_value(const Call& call, const Geometry& g) {
  if (call.has_input(kKey)) {
    return {{call.data<T>(kQuery), {g.tokens, g.key_heads, g.key_dim}},
            {call.data<T>(kKey), {g.tokens, g.key_heads, g.key_dim}},
            {call.data<T>(kValue), {g.tokens, g.value_heads, g.value_dim}}};
  }
  const std::int64_t row = 2 * g.key_heads * g.key_dim + g.value_heads * g.value_dim;
  return split_qkv<T>({call.data<T>(kQuery), {g.tokens, row}}, g.key_heads, g.key_dim,
                      g.value_heads, g.value_dim);
}

template <class T, class G>
void fill_gates(const Call& call, const Geometry& g, GatedDeltaNetArgs<T, G>& args) {
  if (call.has_input(kDecay) && g.decay_per_key) {
    args.decay_per_key =
        View<const G, 3>(call.data<G>(kDecay), {g.tokens, g.value_heads, g.key_dim});
  } else if (call.has_input(kDecay)) {
    args.decay = View<const G, 2>(call.data<G>(kDecay), {g.tokens, g.value_heads});
  }
  if (call.has_input(kBeta)) {
    args.beta = View<const G, 2>(call.data<G>(kBeta), {g.tokens, g.value_heads});
  }
  args.a_log = call.optional_view<float, 1>(kALog);
  if (call.has_input(kDtBias) && g.dt_bias_per_key) {
    args.dt_bias_per_key =
        View<const float, 2>(call.data<float>(kDtBias), {g.value_heads, g.key_dim});
  } else {
    args.dt_bias = call.optional_view<float, 1>(kDtBias);
  }
}

template <class T, class G>
class GatedDeltaNet final : public Kernel {
 public:
  explicit GatedDeltaNet(const Node& node)
      : attributes_(node), known_(geometry_of(attributes_, node)) {}

  void compute(Call& call) const override {
    const Geometry g = geometry_of(attributes_, call);
    const auto qkv = query_key_value<T>(call, g);
    const auto output =
        call.shape(kQuery).rank == (call.has_input(kKey) ? 4 : 3)
            ? call.output<T, 4>(kOutput, {g.sequences, g.length, g.value_heads, g.value_dim}).data()
            : call.output<T, 3>(kOutput, {g.tokens, g.value_heads, g.value_dim}).data();
    GatedDeltaNetArgs<T, G> args{
        .query = qkv.query,
        .key = qkv.key,
        .value = qkv.value,
        .cu_seqlens = call.has_input(kCuSeqlens) ? call.view<std::int32_t, 1>(kCuSeqlens)
                                                 : uniform_offsets(call, g),
        .output = {output, {g.tokens, g.value_heads, g.value_dim}},
        .final_state = call.output<float, 4>(kFinalState,
                                             {g.sequences, g.value_heads, g.value_dim, g.key_dim}),
        .initial_state = call.optional_view<float, 4>(kInitialState),
        .update_rule = attributes_.update_rule,
        .scale = attributes_.scale,
        .gate_activation = attributes_.gate_activation,
        .gate_lower_bound = attributes_.gate_lower_bound,
        .beta_activation = attributes_.beta_activation,
        .qk_l2_norm = attributes_.qk_l2_norm,
        .engine = attributes_.engine};
    fill_gates(call, g, args);
    fill_capture(call, g, args);
    gated_delta_net(call.device(), args);
  }

  Plan plan() const override {
    const Geometry& g = known_;
    return {{{"sequences", g.sequences},
             {"tokens", g.tokens},
             {"key_heads", g.key_heads},
             {"value_heads", g.value_heads},
             {"key_dim", g.key_dim, contract::kMaxKeyDim},
             {"value_dim", g.value_dim},
             {"capacity", g.capacity}},
            "recurrent",
            bytes_of({g.value_heads, g.value_dim, g.key_dim}, sizeof(float)),
            "sequence",
            contract::chunked_tokens(g, attributes_.engine, contract::kChunkTokens, 0),
            g.capacity > 0};
  }

 private:
  void fill_capture(Call& call, const Geometry& g, GatedDeltaNetArgs<T, G>& args) const {
    const auto update =
        call.optional_output<float, 2>(kStateUpdate, {g.sequences, g.state_update_row()});
    if (g.capacity == 0 || !update) return;
    args.state_update = update;
    args.state_update_capacity = g.capacity;
    args.capture_count = call.view<std::int32_t, 1>(kCaptureCount);
    args.state_update_active = !call.has_input(kActive) || *call.data<std::int32_t>(kActive) != 0;
  }

  Attributes attributes_;
  Geometry known_;  // as the graph tells it
};

template <class T, class G>
Operator variant() {
  constexpr auto kType = element_type<T>(), kGate = element_type<G>(),
                 kReal = element_type<float>(), kInt = element_type<std::int32_t>();
  return {kName,
          {{kType},
           {kType, true},
           {kType, true},
           {kInt, true},
           {kGate, true},
           {kGate, true},
           {kReal, true},
           {kReal, true},
           {kReal, true},
           {kInt, true},
           {kInt, true}},
          {{kType}, {kReal, true}, {kReal, true}},
          [](const Node& node) -> std::unique_ptr<Kernel> {
            return std::make_unique<GatedDeltaNet<T, G>>(node);
          },
          in_place<kInitialState, kFinalState>};
}

}  // namespace

std::vector<Operator> gated_delta_net_operators() {
  return {variant<float, float>(), variant<Float16, float>(), variant<BFloat16, float>(),
          variant<Float16, Float16>(), variant<BFloat16, BFloat16>()};
}

}  // namespace deltaworks::ort

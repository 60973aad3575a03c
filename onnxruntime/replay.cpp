// deltaworks::ConvStateReplay and deltaworks::GatedDeltaStateReplay: a batch, one count a sequence.
#include "contract/gated_delta_net.hpp"
#include "contract/values.hpp"
#include "contract/varlen_causal_conv.hpp"
#include "operator.hpp"

namespace deltaworks::ort {

namespace {

enum Input { kState, kStateUpdate, kCount };

template <class T>
class ConvStateReplay final : public Kernel {
 public:
  explicit ConvStateReplay(const Node& node) : known_(geometry(node)) {}

  void compute(Call& call) const override {
    const auto g = geometry(call);
    replay_conv_state(call.device(),
                      ReplayConvStateArgs<T>{.initial_state = call.view<T, 3>(kState),
                                             .state_update = call.view<T, 3>(kStateUpdate),
                                             .count = call.view<std::int32_t, 1>(kCount),
                                             .final_state = call.output<T, 3>(
                                                 0, {g.sequences, g.channels, g.history})});
  }

  Plan plan() const override {
    const auto& g = known_;
    return {.geometry = {{"sequences", g.sequences},
                         {"channels", g.channels},
                         {"capacity", g.capacity}},
            .engine = "replay"};  // the state is that of the node it replays
  }

 private:
  template <class Source>
  static contract::ReplayConvStateGeometry geometry(const Source& source) {
    return contract::value_or_throw(contract::replay_conv_state(
        "ConvStateReplay", {.initial_state = *source.input(kState, 3),
                            .state_update = *source.input(kStateUpdate, 3),
                            .count = *source.input(kCount, 1)}));
  }

  contract::ReplayConvStateGeometry known_;  // as the graph tells it
};

class GatedDeltaStateReplay final : public Kernel {
 public:
  explicit GatedDeltaStateReplay(const Node& node)
      : key_heads_(node.required_attribute("key_heads")),
        capacity_(node.required_attribute("state_update_capacity")),
        known_(geometry(node)) {}

  void compute(Call& call) const override {
    const auto g = geometry(call);
    replay_gated_delta_state(call.device(),
                             {.initial_state = call.view<float, 4>(kState),
                              .state_update = call.view<float, 2>(kStateUpdate),
                              .count = call.view<std::int32_t, 1>(kCount),
                              .final_state = call.output<float, 4>(
                                  0, {g.sequences, g.value_heads, g.value_dim, g.key_dim}),
                              .key_heads = key_heads_,
                              .state_update_capacity = capacity_});
  }

  Plan plan() const override {
    const auto& g = known_;
    return {.geometry = {{"sequences", g.sequences},
                         {"key_heads", g.key_heads},
                         {"value_heads", g.value_heads},
                         {"key_dim", g.key_dim},
                         {"value_dim", g.value_dim},
                         {"capacity", g.capacity}},
            .engine = "replay"};
  }

 private:
  template <class Source>
  contract::GatedDeltaNetGeometry geometry(const Source& source) const {
    return contract::value_or_throw(contract::replay_gated_delta_state(
        "GatedDeltaStateReplay", {.initial_state = *source.input(kState, 4),
                                  .state_update = *source.input(kStateUpdate, 2),
                                  .count = *source.input(kCount, 1),
                                  .key_heads = key_heads_,
                                  .state_update_capacity = capacity_}));
  }

  std::int64_t key_heads_, capacity_;
  contract::GatedDeltaNetGeometry known_;  // as the graph tells it
};

template <class T, class Replay>
Operator variant(const char* name) {
  constexpr auto kType = element_type<T>();
  return {
      name,
      {{kType}, {kType}, {element_type<std::int32_t>()}},
      {{kType}},
      [](const Node& node) -> std::unique_ptr<Kernel> { return std::make_unique<Replay>(node); },
      in_place<kState, 0>};
}

}  // namespace

std::vector<Operator> replay_operators() {
  return {variant<float, ConvStateReplay<float>>("ConvStateReplay"),
          variant<Float16, ConvStateReplay<Float16>>("ConvStateReplay"),
          variant<BFloat16, ConvStateReplay<BFloat16>>("ConvStateReplay"),
          variant<float, GatedDeltaStateReplay>("GatedDeltaStateReplay")};
}

}  // namespace deltaworks::ort

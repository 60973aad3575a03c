// A draft of four tokens is verified in one call that captures; the last two are then taken back.
// The state afterwards has the very bits of a state that only ever saw the first two.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "deltaworks/gated_delta_net.hpp"

namespace {

constexpr std::int64_t kHeads = 4, kDim = 64, kDraft = 4;
using State = std::vector<float>;

struct Draft {  // random projections of kDraft tokens
  std::vector<float> query = values(kDim), key = values(kDim), value = values(kDim),
                     beta = values(1);

  static std::vector<float> values(std::int64_t width) {
    static std::mt19937 generator(1);
    std::uniform_real_distribution<float> distribution(0, 1);
    std::vector<float> values(static_cast<std::size_t>(kDraft * kHeads * width));
    for (float& value : values) value = distribution(generator);
    return values;
  }
};

// Runs the first `tokens` tokens of the draft from a zero state. With a capsule, captures them all.
State run(const Draft& draft, std::int32_t tokens, std::vector<float>* capsule = nullptr) {
  const std::int32_t cu_seqlens[] = {0, tokens};
  State state(kHeads * kDim * kDim), output(static_cast<std::size_t>(tokens * kHeads * kDim));
  deltaworks::GatedDeltaNetArgs<float> args{.query = {draft.query.data(), {tokens, kHeads, kDim}},
                                            .key = {draft.key.data(), {tokens, kHeads, kDim}},
                                            .value = {draft.value.data(), {tokens, kHeads, kDim}},
                                            .cu_seqlens = {cu_seqlens, {2}},
                                            .output = {output.data(), {tokens, kHeads, kDim}},
                                            .final_state = {state.data(), {1, kHeads, kDim, kDim}},
                                            .beta = {{draft.beta.data(), {tokens, kHeads}}},
                                            .update_rule = deltaworks::UpdateRule::kDelta,
                                            .qk_l2_norm = true};
  if (capsule != nullptr) {  // per token and head: a factor, a key and a delta
    capsule->resize(kDraft * kHeads * (1 + 2 * kDim));
    args.capture_count = {{&tokens, {1}}};
    args.state_update = {{capsule->data(), {1, static_cast<std::int64_t>(capsule->size())}}};
    args.state_update_capacity = kDraft;
  }
  deltaworks::gated_delta_net(deltaworks::Cpu{}, args);
  return state;
}

}  // namespace

int main() {
  const Draft draft;
  std::vector<float> capsule;
  run(draft, kDraft, &capsule);  // all four; the model's logits now tell that two were right

  State replayed(kHeads * kDim * kDim);  // as it was before the draft
  const deltaworks::View<float, 4> state(replayed.data(), {1, kHeads, kDim, kDim});
  const std::int32_t accepted = 2;
  deltaworks::replay_gated_delta_state(
      deltaworks::Cpu{},
      {.initial_state = state,
       .state_update = {capsule.data(), {1, static_cast<std::int64_t>(capsule.size())}},
       .count = {&accepted, {1}},
       .final_state = state,  // in place
       .key_heads = kHeads,
       .state_update_capacity = kDraft});

  const State expected = run(draft, accepted);
  const bool same = std::memcmp(replayed.data(), expected.data(), replayed.size() * 4) == 0;
  std::printf("capsule %zu bytes for %ld tokens, state %zu bytes: %s\n", capsule.size() * 4,
              static_cast<long>(kDraft), replayed.size() * 4,
              same ? "replay equals having run, bit for bit" : "replay DIFFERS");
  return same ? 0 : 1;
}

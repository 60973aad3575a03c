// CUDA graphs, captured once: a decode step, the verification of four drafted tokens, and the replay of as
// many as were right. Taking back two of the four leaves the bits of two decode steps.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "deltaworks/gated_delta_net.hpp"

using namespace deltaworks;

constexpr std::int64_t kKeyHeads = 16, kHeads = 32, kDim = 128, kDraft = 4, kAccepted = 2;
constexpr std::int64_t kKeys = kKeyHeads * kDim, kValues = kHeads * kDim, kState = kValues * kDim;
constexpr std::int64_t kRow = 2 * kKeys + kValues + 2 * kHeads;  // query, key, value, decay, beta
constexpr std::int64_t kCapsule = kDraft * (kHeads + kKeys + kValues);

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

std::vector<float> random_values(std::int64_t size) {
  static std::mt19937 engine(1);
  std::normal_distribution<float> draw;
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& value : values) value = draw(engine);
  return values;
}

template <class T>
T* on_gpu(const std::vector<T>& values) {  // until the program ends
  void* memory = nullptr;
  check(cudaMalloc(&memory, values.size() * sizeof(T)));
  check(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyDefault));
  return static_cast<T*>(memory);
}

template <class Record>
cudaGraphExec_t capture(cudaStream_t stream, const Record& record) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  record(Cuda{stream});
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&exec, graph, 0));
  return exec;
}

int main() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));
  const auto start = random_values(kState);
  float *decoded = on_gpu(start), *verified = on_gpu(start), *ahead = on_gpu(start);
  float *draft = on_gpu(random_values(kDraft * kRow)), *token = on_gpu(random_values(kRow)),
        *rates = on_gpu(random_values(2 * kHeads)),
        *output = on_gpu(random_values(kDraft * kValues)),
        *capsule = on_gpu(random_values(kCapsule));
  std::int32_t *one = on_gpu<std::int32_t>({0, 1}), *all = on_gpu<std::int32_t>({0, kDraft}),
               *captured = on_gpu<std::int32_t>({kDraft}), *accepted = on_gpu<std::int32_t>({0});

  const auto args = [&](const float* rows, std::int64_t tokens, float* from, float* to) {
    const float* const decay = rows + 2 * kKeys + kValues;
    return GatedDeltaNetArgs<float>{.query = {rows, {tokens, kKeyHeads, kDim}, kRow},
                                    .key = {rows + kKeys, {tokens, kKeyHeads, kDim}, kRow},
                                    .value = {rows + 2 * kKeys, {tokens, kHeads, kDim}, kRow},
                                    .cu_seqlens = {tokens == 1 ? one : all, {2}},
                                    .output = {output, {tokens, kHeads, kDim}},
                                    .final_state = {to, {1, kHeads, kDim, kDim}},
                                    .initial_state = {{from, {1, kHeads, kDim, kDim}}},
                                    .decay = {{decay, {tokens, kHeads}, kRow}},
                                    .beta = {{decay + kHeads, {tokens, kHeads}, kRow}},
                                    .a_log = {{rates, {kHeads}}},
                                    .dt_bias = {{rates + kHeads, {kHeads}}},
                                    .gate_activation = GateActivation::kSoftplus,
                                    .beta_activation = BetaActivation::kSigmoid,
                                    .qk_l2_norm = true};
  };
  const auto decode = capture(stream, [&](const Cuda& device) {
    gated_delta_net(device, args(token, 1, decoded, decoded));  // in place
  });
  const auto verify = capture(stream, [&](const Cuda& device) {
    auto call = args(draft, kDraft, verified, ahead);
    call.capture_count = {{captured, {1}}};
    call.state_update = {{capsule, {1, kCapsule}}};
    call.state_update_capacity = kDraft;
    gated_delta_net(device, call);
  });
  const auto replay = capture(stream, [&](const Cuda& device) {
    const View<float, 4> state(verified, {1, kHeads, kDim, kDim});
    replay_gated_delta_state(device, {.initial_state = state,
                                      .state_update = {capsule, {1, kCapsule}},
                                      .count = {accepted, {1}},
                                      .final_state = state,
                                      .key_heads = kKeyHeads,
                                      .state_update_capacity = kDraft});
  });

  check(cudaGraphLaunch(verify, stream));
  const std::int32_t count = kAccepted;  // the model's logits tell, now
  check(cudaMemcpyAsync(accepted, &count, sizeof count, cudaMemcpyDefault, stream));
  check(cudaGraphLaunch(replay, stream));
  for (std::int64_t i = 0; i < kAccepted; ++i) {
    const float* const row = draft + i * kRow;
    check(cudaMemcpyAsync(token, row, kRow * sizeof(float), cudaMemcpyDefault, stream));
    check(cudaGraphLaunch(decode, stream));
  }
  check(cudaStreamSynchronize(stream));
  std::vector<float> expected(kState), actual(kState);
  check(cudaMemcpy(expected.data(), decoded, kState * sizeof(float), cudaMemcpyDefault));
  check(cudaMemcpy(actual.data(), verified, kState * sizeof(float), cudaMemcpyDefault));
  int changed = 0, same = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    changed += std::memcmp(&expected[i], &start[i], sizeof(float)) != 0;
    same += std::memcmp(&expected[i], &actual[i], sizeof(float)) == 0;
  }
  std::printf("%s: two decode steps change %d of %d numbers of the state\n", cuda_device().c_str(),
              changed, static_cast<int>(kState));
  std::printf("verification and replay of two tokens: %d have the same bits\n", same);
  return changed > 0 && same == kState ? 0 : 1;
}

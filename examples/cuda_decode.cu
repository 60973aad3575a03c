// CUDA graphs: the verification of a draft of four tokens, the replay of as many as were right, and for
// each token its decode step. Taking back two drafts leaves the bits of two decode steps.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "deltaworks/gated_delta_net.hpp"

namespace {

constexpr std::int64_t kHeads = 4, kDim = 64, kDraft = 4, kState = kHeads * kDim * kDim;
constexpr std::int64_t kRow =
    kDraft * kHeads * (1 + 2 * kDim);  // of a capsule: factors, keys, deltas

template <class T>
T* to_gpu(const std::vector<T>& values) {
  T* memory = nullptr;
  cudaMalloc(&memory, values.size() * sizeof(T));
  cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  return memory;
}

float* random_tokens(std::int64_t width) {
  static std::mt19937 generator(1);
  std::uniform_real_distribution<float> distribution(0, 1);
  std::vector<float> values(static_cast<std::size_t>(kDraft * kHeads * width));
  for (float& value : values) value = distribution(generator);
  return to_gpu(values);
}

template <class Record>
cudaGraphExec_t capture(cudaStream_t stream, const Record& record) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  record(deltaworks::Cuda{stream});
  cudaStreamEndCapture(stream, &graph);
  cudaGraphInstantiate(&exec, graph, 0);
  return exec;
}

std::vector<float> state_of(cudaStream_t stream, const float* state) {
  std::vector<float> values(kState);
  cudaStreamSynchronize(stream);
  cudaMemcpy(values.data(), state, kState * sizeof(float), cudaMemcpyDeviceToHost);
  return values;
}

}  // namespace

int main() {
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  const float *query = random_tokens(kDim), *key = random_tokens(kDim),
              *value = random_tokens(kDim), *beta = random_tokens(1);
  float *decoded = to_gpu(std::vector<float>(kState)),
        *verified = to_gpu(std::vector<float>(kState)),
        *scratch = to_gpu(std::vector<float>(kState)), *capsule = to_gpu(std::vector<float>(kRow)),
        *output = to_gpu(std::vector<float>(kDraft * kHeads * kDim));
  std::int32_t *one = to_gpu<std::int32_t>({0, 1}), *all = to_gpu<std::int32_t>({0, kDraft}),
               *count = to_gpu<std::int32_t>({kDraft}), *accepted = to_gpu<std::int32_t>({0});

  // Tokens first … first + tokens of the draft, from one state to another.
  const auto args = [&](std::int64_t first, std::int64_t tokens, const float* from, float* to) {
    const std::int64_t at = first * kHeads * kDim;
    return deltaworks::GatedDeltaNetArgs<float>{.query = {query + at, {tokens, kHeads, kDim}},
                                                .key = {key + at, {tokens, kHeads, kDim}},
                                                .value = {value + at, {tokens, kHeads, kDim}},
                                                .cu_seqlens = {tokens == 1 ? one : all, {2}},
                                                .output = {output + at, {tokens, kHeads, kDim}},
                                                .final_state = {to, {1, kHeads, kDim, kDim}},
                                                .initial_state = {{from, {1, kHeads, kDim, kDim}}},
                                                .beta = {{beta + first * kHeads, {tokens, kHeads}}},
                                                .update_rule = deltaworks::UpdateRule::kDelta,
                                                .qk_l2_norm = true};
  };
  const auto decode = [&](std::int64_t token) {
    return capture(stream, [&](const deltaworks::Cuda& device) {
      deltaworks::gated_delta_net(device, args(token, 1, decoded, decoded));  // in place
    });
  };
  const auto verify = capture(stream, [&](const deltaworks::Cuda& device) {
    auto call = args(0, kDraft, verified, scratch);
    call.capture_count = {{count, {1}}};
    call.state_update = {{capsule, {1, kRow}}};
    call.state_update_capacity = kDraft;
    deltaworks::gated_delta_net(device, call);
  });
  const auto replay = capture(stream, [&](const deltaworks::Cuda& device) {
    const deltaworks::View<float, 4> state(verified, {1, kHeads, kDim, kDim});
    deltaworks::replay_gated_delta_state(device, {.initial_state = state,
                                                  .state_update = {capsule, {1, kRow}},
                                                  .count = {accepted, {1}},
                                                  .final_state = state,
                                                  .key_heads = kHeads,
                                                  .state_update_capacity = kDraft});
  });

  const std::int32_t right = 2;  // the model's logits tell
  cudaGraphLaunch(verify, stream);
  cudaMemcpyAsync(accepted, &right, sizeof(right), cudaMemcpyHostToDevice, stream);
  cudaGraphLaunch(replay, stream);
  for (std::int32_t token = 0; token < right; ++token) cudaGraphLaunch(decode(token), stream);
  const auto expected = state_of(stream, decoded), actual = state_of(stream, verified);
  const bool same = std::memcmp(actual.data(), expected.data(), kState * sizeof(float)) == 0;
  std::printf("%s: %s\n", deltaworks::cuda_device().c_str(),
              same ? "replay equals decoding, bit for bit" : "replay DIFFERS");
  return same && cudaGetLastError() == cudaSuccess ? 0 : 1;
}

/// The gated delta rule with carried state, capture and replay.
#pragma once

#include <cstdint>
#include <vector>

#include "deltaworks/access.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/dtype.hpp"
#include "deltaworks/export.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks {

enum class UpdateRule : std::uint8_t { kLinear, kGated, kDelta, kGatedDelta };
enum class GateActivation : std::uint8_t { kNone, kSoftplus, kSigmoid };
enum class BetaActivation : std::uint8_t { kNone, kSigmoid };

/// How a call computes. Where the arguments say kAuto, the environment variable DELTAWORKS_ENGINE (auto, recurrent or
/// chunked; read once a process) decides, and where that says auto or nothing, kRecurrent runs on Cpu, kChunked on Cuda.
/// (In ONNX Runtime the session's configuration entry deltaworks.engine is the argument.) kRecurrent serves every
/// sequence token by token: any split of it has the same bits.
///
/// On Cpu, kChunked serves the first length − length mod 16 tokens of a sequence in chunks of 16 tokens, 1.2 (AVX2) to 1.6
/// (AVX-512) times as fast, if there is one decay per head (or none), key_dim is at most 256, and the sequence captures
/// nothing; kRecurrent serves all else, the last tokens of the sequence too. The choice depends on nothing else. Chunks
/// count from the start of a call's sequence: a split at a multiple of 16 changes no bit, any other is within tolerance.
///
/// On Cuda, kChunked serves sequences of more than 16 tokens whole, on GPUs of compute capability 9.0 in a build for them, if
/// T has 16 bits, key_dim is 128, value_dim a multiple of 64, there is one decay per head (or none), and the call
/// captures nothing; kRecurrent serves all else. A split at a multiple of 64 into parts of more than 16 tokens changes no
/// bit, any other is within tolerance. A value that is not finite changes no earlier result; later ones that it reaches
/// are NaN.
enum class Engine : std::uint8_t { kAuto, kRecurrent, kChunked };

/// One call. T is the type of query, key, value and output; G that of decay and beta: float or T.
/// value_heads = n · key_heads; value head h uses key head h / n.
template <class T, class G = float>
struct GatedDeltaNetArgs {
  View<const T, 3> query;                  ///< [tokens, key_heads, key_dim]
  View<const T, 3> key;                    ///< [tokens, key_heads, key_dim]
  View<const T, 3> value;                  ///< [tokens, value_heads, value_dim]
  View<const std::int32_t, 1> cu_seqlens;  ///< [sequences + 1]: 0, never decreasing, tokens
  View<T, 3> output;                       ///< [tokens, value_heads, value_dim]
  View<float, 4> final_state;              ///< [sequences, value_heads, value_dim, key_dim]
  OptionalView<const float, 4>
      initial_state{};               ///< like final_state, may be the same memory; absent: zeros
  OptionalView<const G, 2> decay{};  ///< [tokens, value_heads] natural log, or the gate's input
  OptionalView<const G, 3> decay_per_key{};  ///< [tokens, value_heads, key_dim], instead of decay
  OptionalView<const G, 2> beta{};           ///< [tokens, value_heads]; absent: 1
  OptionalView<const float, 1> a_log{};      ///< [value_heads], with a gate activation
  OptionalView<const float, 1> dt_bias{};    ///< [value_heads], with a gate activation
  OptionalView<const float, 2>
      dt_bias_per_key{};  ///< [value_heads, key_dim], instead, with decay_per_key
  OptionalView<const std::int32_t, 1> slots_in{};  ///< [sequences]: state pool rows; negative: skip
  OptionalView<const std::int32_t, 1>
      slots_out{};  ///< [sequences]: with slots_in, states are [slots, …]
  OptionalView<const std::int32_t, 1> fresh{};  ///< [sequences]: non-zero starts from zeros, unread
  OptionalView<const std::int32_t, 1>
      capture_count{};                    ///< [sequences], exactly when state_update is given
  OptionalView<float, 2> state_update{};  ///< [sequences, row] as below
  std::int64_t state_update_capacity = 0;
  bool state_update_active = true;  ///< false: state_update becomes all zeros
  UpdateRule update_rule = UpdateRule::kGatedDelta;
  float scale = 0;  ///< 0: 1 / sqrt(key_dim)
  GateActivation gate_activation = GateActivation::kNone;
  float gate_lower_bound = -5;  ///< of the sigmoid gate; <= 0
  BetaActivation beta_activation = BetaActivation::kNone;
  bool qk_l2_norm = false;
  Engine engine = Engine::kAuto;
};

/// Gated delta rule (Yang, Kautz, Hatamizadeh, arXiv:2412.06464). Per value head with state S
/// [value_dim, key_dim], for each token, in float32:
///   q, k   = x · rsqrt(sum x² + 1e-12)     with qk_l2_norm (1e-6 with the sigmoid gate)
///   g      = decay;  softplus gate: −exp(a_log) · softplus(decay + dt_bias);
///            sigmoid gate: gate_lower_bound · sigmoid(exp(a_log) · (decay + dt_bias))
///   a      = exp(g);  r = S k;  p = S q
///   delta  = beta · (value − a r)          (beta · value for the linear and gated rules)
///   S      = round(a S) + round(k deltaᵀ)  two roundings, as ONNX Runtime's CPU kernel has them
///   output = scale · (a p + (q · k) delta), rounded once to T
/// An infinity in a gate counts as the largest finite number: gates of numbers never give NaN.
/// key_dim is at most 2048.
///
/// Every sum has 8 partial sums (index mod 8, ascending, fma) and one tree,
/// ((0+4) + (2+6)) + ((1+5) + (3+7)), so that AVX2 and AVX-512 give the same bits. Token order
/// within a sequence is fixed: one call over n tokens gives the bits of n calls (with kRecurrent), whatever
/// the batch or the threads. On CUDA partial sum l has the indices i with i / 4 mod 8 = l, and the state update
/// is fused, S = fma(k, delta, round(a S)), as ONNX Runtime's CUDA kernel has it.
///
/// state_update holds, per sequence, factors a [capacity, value_heads] (per-key decay: [capacity,
/// value_heads, key_dim]), keys k [capacity, key_heads, key_dim] and deltas [capacity, value_heads,
/// value_dim] of the first clamp(capture_count, 0, min(capacity, length)) tokens, zeros elsewhere.
///
/// Throws InvalidArgument when an argument breaks this contract; nothing is written then.
/// Source: ONNX Runtime, com.microsoft::GatedDeltaNet.
DELTAWORKS_EXPORT void gated_delta_net(const Cpu& device, const GatedDeltaNetArgs<float>& args);
DELTAWORKS_EXPORT void gated_delta_net(const Cpu& device, const GatedDeltaNetArgs<Float16>& args);
DELTAWORKS_EXPORT void gated_delta_net(const Cpu& device, const GatedDeltaNetArgs<BFloat16>& args);
DELTAWORKS_EXPORT void gated_delta_net(const Cpu& device,
                                       const GatedDeltaNetArgs<Float16, Float16>& args);
DELTAWORKS_EXPORT void gated_delta_net(const Cpu& device,
                                       const GatedDeltaNetArgs<BFloat16, BFloat16>& args);
DELTAWORKS_EXPORT void gated_delta_net(const Cuda& device, const GatedDeltaNetArgs<float>& args);
DELTAWORKS_EXPORT void gated_delta_net(const Cuda& device, const GatedDeltaNetArgs<Float16>& args);
DELTAWORKS_EXPORT void gated_delta_net(const Cuda& device, const GatedDeltaNetArgs<BFloat16>& args);
DELTAWORKS_EXPORT void gated_delta_net(const Cuda& device,
                                       const GatedDeltaNetArgs<Float16, Float16>& args);
DELTAWORKS_EXPORT void gated_delta_net(const Cuda& device,
                                       const GatedDeltaNetArgs<BFloat16, BFloat16>& args);

/// The memory that such a call would read and write (deltaworks/access.hpp).
template <class T, class G>
DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(const GatedDeltaNetArgs<T, G>& args);

/// query, key and value as slices of one packed matrix [tokens, 2 · key_heads · key_dim +
/// value_heads · value_dim].
template <class T>
struct PackedQkv {
  View<const T, 3> query, key, value;
};
template <class T>
PackedQkv<T> split_qkv(View<const T, 2> packed, std::int64_t key_heads, std::int64_t key_dim,
                       std::int64_t value_heads, std::int64_t value_dim) {
  const std::int64_t tokens = packed.extent(0), keys = key_heads * key_dim,
                     stride = packed.row_stride();
  return {{packed.data(), {tokens, key_heads, key_dim}, stride},
          {packed.data() + keys, {tokens, key_heads, key_dim}, stride},
          {packed.data() + 2 * keys, {tokens, value_heads, value_dim}, stride}};
}

struct ReplayGatedDeltaStateArgs {
  View<const float, 4>
      initial_state;  ///< [sequences, value_heads, value_dim, key_dim]: before the captured call
  View<const float, 2>
      state_update;  ///< as gated_delta_net wrote it; per-key decay is told by the width
  View<const std::int32_t, 1> count;  ///< [sequences], each in 0 … state_update_capacity
  View<float, 4> final_state;         ///< like initial_state; may be the same memory
  std::int64_t key_heads;
  std::int64_t state_update_capacity;
};

/// The state as it was after the first count[b] captured tokens, bit for bit: per token
/// S = round(a S) + round(k deltaᵀ); on CUDA S = fma(k, delta, round(a S)). count = 0 copies the bytes.
/// Throws InvalidArgument when an argument breaks this contract; nothing is written then.
DELTAWORKS_EXPORT void replay_gated_delta_state(const Cpu& device,
                                                const ReplayGatedDeltaStateArgs& args);
DELTAWORKS_EXPORT void replay_gated_delta_state(const Cuda& device,
                                                const ReplayGatedDeltaStateArgs& args);
DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(const ReplayGatedDeltaStateArgs& args);

}  // namespace deltaworks

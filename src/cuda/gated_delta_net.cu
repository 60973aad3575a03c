// Which kernel a call gets. Those of the recurrent engine sum in one order, so that the choice among
// them changes no bit: it follows from the geometry, the card and where the operands lie. The chunked
// engine's bits are its own: that a call has it follows from what every place and batch has in common.
#include "cuda/gated_delta_net.hpp"

#include <cmath>
#include <limits>

#include "cuda/early_launch.cuh"
#include "cuda/gated_delta_net_chunked.hpp"
#include "cuda/gated_delta_net_decode.cuh"
#include "cuda/gated_delta_net_general.cuh"
#include "cuda/gated_delta_net_rows.cuh"
#include "cuda/gated_delta_net_verify.cuh"
#include "cuda/heads_grid.hpp"
#include "cuda/launch.hpp"

namespace deltaworks::cuda {

namespace {

constexpr float kEpsilon = 1e-12f, kSigmoidGateEpsilon = 1e-6f;

template <class T, std::size_t Rank>
T* data_of(const OptionalView<T, Rank>& view) {
  return view ? view->data() : nullptr;
}
template <class T, std::size_t Rank>
std::int64_t stride_of(const OptionalView<T, Rank>& view) {
  return view ? view->row_stride() : 0;
}

template <class T, class G>
void describe_gates(const GatedDeltaNetArgs<T, G>& args, GatedDeltaNetCall<T>& call) {
  call.is_per_key = args.decay_per_key.has_value();  // whose data may be null without tokens
  call.dt_bias_per_key = args.dt_bias_per_key.has_value();
  call.gates_are_float = std::is_same_v<G, float>;
  call.decay = data_of(args.decay);
  call.decay_per_key = data_of(args.decay_per_key);
  call.decay_stride = args.decay ? stride_of(args.decay) : stride_of(args.decay_per_key);
  call.beta = data_of(args.beta);
  call.beta_stride = stride_of(args.beta);
  call.a_log = data_of(args.a_log);
  call.dt_bias = call.dt_bias_per_key ? data_of(args.dt_bias_per_key) : data_of(args.dt_bias);
  call.gate_activation = args.gate_activation;
  call.gate_lower_bound = args.gate_lower_bound;
  call.sigmoid_beta = args.beta_activation == BetaActivation::kSigmoid;
}

template <class T, class G>
GatedDeltaNetCall<T> call_of(const Cuda& device, const contract::GatedDeltaNetGeometry& geometry,
                             const GatedDeltaNetArgs<T, G>& args) {
  const auto small = [](std::int64_t extent) { return static_cast<std::int32_t>(extent); };
  GatedDeltaNetCall<T> call{};
  describe_gates(args, call);
  call.query = args.query.data();
  call.key = args.key.data();
  call.value = args.value.data();
  call.output = args.output.data();
  call.query_stride = args.query.row_stride();
  call.key_stride = args.key.row_stride();
  call.value_stride = args.value.row_stride();
  call.output_stride = args.output.row_stride();
  call.initial_state = data_of(args.initial_state);
  call.initial_stride = stride_of(args.initial_state);
  call.final_state = args.final_state.data();
  call.final_stride = args.final_state.row_stride();
  call.state_update = data_of(args.state_update);
  call.update_stride = stride_of(args.state_update);
  call.cu_seqlens = args.cu_seqlens;
  call.capture_count = or_null(args.capture_count);
  call.pool = {or_null(args.slots_in), or_null(args.slots_out), or_null(args.fresh),
               geometry.slots};
  call.faults = device.faults;
  call.tokens = small(geometry.tokens);
  call.sequences = small(geometry.sequences);
  call.key_heads = small(geometry.key_heads);
  call.value_heads = small(geometry.value_heads);
  call.heads_per_key = small(geometry.heads_per_key());
  call.key_dim = small(geometry.key_dim);
  call.value_dim = small(geometry.value_dim);
  call.capacity = small(geometry.capacity);
  call.captures = geometry.capacity > 0 && args.state_update_active;
  call.recalls =
      args.update_rule == UpdateRule::kDelta || args.update_rule == UpdateRule::kGatedDelta;
  call.scale = args.scale != 0 ? args.scale : 1 / std::sqrt(static_cast<float>(geometry.key_dim));
  if (args.qk_l2_norm) {
    call.epsilon =
        args.gate_activation == GateActivation::kSigmoid ? kSigmoidGateEpsilon : kEpsilon;
  }
  return call;
}

// Keys, queries and states start where 16-byte loads and bulk copies may.
template <class T, class G>
bool is_wide(const GatedDeltaNetArgs<T, G>& args) {
  return is_aligned(args.query) && is_aligned(args.key) && is_aligned(args.value) &&
         is_aligned(args.final_state) && (!args.initial_state || is_aligned(*args.initial_state));
}

int attribute(cudaDeviceAttr what) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&value, what, device));
  return value;
}

// False where this build's kernel would trap.
template <bool kCaptures, class T>
bool launch_verify(const Cuda& device, const contract::GatedDeltaNetGeometry& geometry,
                   const GatedDeltaNetCall<T>& call, std::int64_t items) {
  const auto kernel = verify_kernel<T, kCaptures>;
  if (!is_compiled_for(kernel, kBulkCopyMajor)) return false;
  // Short chunks leave room for more blocks.
  const bool is_short = geometry.tokens <= geometry.sequences * kVerifyChunk / 2;
  const int chunk = is_short ? kVerifyChunk / 2 : kVerifyChunk;
  const int bytes = VerifyMemory<T>::bytes(chunk);
  int blocks = 0;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             VerifyMemory<T>::bytes(kVerifyChunk)));
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kVerifyThreads,
                                                      static_cast<std::size_t>(bytes)));
  const std::int64_t resident =
      static_cast<std::int64_t>(blocks) * attribute(cudaDevAttrMultiProcessorCount);
  const LaunchSize size{static_cast<unsigned>(std::min(items, resident)), kVerifyThreads,
                        static_cast<unsigned>(bytes)};
  launch(device, size, call.has_chunked, kernel, call, chunk, static_cast<std::uint32_t>(items));
  return true;
}

// False where the kernel cannot serve the call, or a step of one token has no use for it.
template <class T>
bool launch_verify(const Cuda& device, const contract::GatedDeltaNetGeometry& geometry,
                   const GatedDeltaNetCall<T>& call) {
  if (geometry.tokens <= geometry.sequences || geometry.value_dim % kVerifyRows != 0) return false;
  const std::int64_t items =
      geometry.sequences * geometry.value_heads * (geometry.value_dim / kVerifyRows);
  if (items > std::numeric_limits<std::int32_t>::max()) return false;
  // Bytes from one token's output to the next, in 32 bits.
  if (geometry.tokens > 1 && call.output_stride > std::numeric_limits<std::int32_t>::max() / 4) {
    return false;
  }
  if (attribute(cudaDevAttrComputeCapabilityMajor) < kBulkCopyMajor) return false;
  return geometry.capacity > 0 ? launch_verify<true>(device, geometry, call, items)
                               : launch_verify<false>(device, geometry, call, items);
}

// False where no sequence is the chunked engine's.
template <class T>
bool launch_chunked(const Cuda& device, const contract::GatedDeltaNetGeometry& geometry,
                    const GatedDeltaNetCall<T>& call, Engine engine, bool wide) {
  if constexpr (std::is_same_v<T, float>) {
    return false;
  } else {
    if (engine != Engine::kChunked || call.captures || geometry.decay_per_key) return false;
    if (geometry.tokens <= kLongest) return false;
    const std::int64_t row_blocks = geometry.value_dim / kChunkRows;
    if (geometry.value_dim % kChunkRows != 0 ||
        geometry.sequences * geometry.value_heads * row_blocks >
            std::numeric_limits<std::int32_t>::max()) {
      return false;
    }
    if (attribute(cudaDevAttrComputeCapabilityMajor) != 9 ||
        attribute(cudaDevAttrComputeCapabilityMinor) != 0) {
      return false;
    }
    return launch_chunked(device, call, wide);
  }
}

// False where the kernel cannot serve the call.
template <class T>
bool launch_decode(const Cuda& device, const contract::GatedDeltaNetGeometry& geometry,
                   const GatedDeltaNetCall<T>& call) {
  const auto step = decode_step_of(call);
  if (!step) return false;
  const dim3 blocks(static_cast<unsigned>(geometry.value_dim / kDecodeRows),
                    static_cast<unsigned>(geometry.value_heads),
                    static_cast<unsigned>(geometry.sequences));
  const auto kernel = is_usual(call) ? decode_kernel<true, T> : decode_kernel<false, T>;
  kernel<<<blocks, kDecodeThreads, 0, device.stream>>>({*step, call});
  check(cudaGetLastError());
  return true;
}

template <class T>
void launch_rows(const Cuda& device, const contract::GatedDeltaNetGeometry& geometry,
                 const GatedDeltaNetCall<T>& call, bool wide) {
  const HeadsGrid grid{.row_blocks = ceil_div(geometry.value_dim, kRowsOfBlock),
                       .heads = geometry.value_heads,
                       .sequences = geometry.sequences};
  const auto start = [&](auto kernel) { launch(device, grid, kRowsThreads, 0, kernel, call); };
  if (geometry.decay_per_key) {
    start(wide ? rows_kernel<true, true, T> : rows_kernel<true, false, T>);
  } else {
    start(wide ? rows_kernel<false, true, T> : rows_kernel<false, false, T>);
  }
}

}  // namespace

template <class T, class G>
void gated_delta_net(const Cuda& device, const contract::GatedDeltaNetGeometry& geometry,
                     const GatedDeltaNetArgs<T, G>& args) {
  if (geometry.sequences == 0) return;
  GatedDeltaNetCall<T> call = call_of(device, geometry, args);
  if (geometry.key_dim == kKeyDim && geometry.tokens > 0) {
    const bool wide = is_wide(args);
    call.has_chunked = launch_chunked(device, geometry, call, args.engine, wide);
    if (wide && !geometry.decay_per_key && launch_verify(device, geometry, call)) return;
    if (wide && launch_decode(device, geometry, call)) return;
    launch_rows(device, geometry, call, wide);
    return;
  }
  const HeadsGrid grid{.row_blocks = ceil_div(geometry.value_dim, kGeneralRows),
                       .heads = geometry.value_heads,
                       .sequences = geometry.sequences};
  // One more than is read: nvcc loads elements in pairs, also where the second does not count.
  const int bytes = static_cast<int>((3 * geometry.key_dim + 1) * sizeof(float));
  launch(device, grid, kGeneralThreads, bytes, general_kernel<T>, call);
}

template void gated_delta_net(const Cuda&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<float>&);
template void gated_delta_net(const Cuda&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<Float16>&);
template void gated_delta_net(const Cuda&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<BFloat16>&);
template void gated_delta_net(const Cuda&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<Float16, Float16>&);
template void gated_delta_net(const Cuda&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<BFloat16, BFloat16>&);

}  // namespace deltaworks::cuda

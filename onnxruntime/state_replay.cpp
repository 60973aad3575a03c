// com.microsoft::ConvStateReplay and com.microsoft::GatedDeltaNetStateReplay: states and captures
// lie somewhere inside rank-1 buffers, and `metadata` says where.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "deltaworks/gated_delta_net.hpp"
#include "deltaworks/varlen_causal_conv.hpp"
#include "operator.hpp"

namespace deltaworks::ort {

namespace {

enum Input { kSource, kCapture, kDestination, kMetadata };

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

// The product of non-negative extents, or kLargest beyond int64.
std::int64_t elements(std::initializer_list<std::int64_t> extents) {
  std::int64_t product = 1;
  if (std::find(extents.begin(), extents.end(), 0) != extents.end()) return 0;
  for (const std::int64_t extent : extents) {
    if (product > kLargest / extent) return kLargest;
    product *= extent;
  }
  return product;
}

template <std::size_t kFields>
struct Metadata {
  std::array<std::int64_t, kFields> values;

  Metadata(const Call& call, const std::array<const char*, kFields>& names) {
    const contract::Tensor& shape = call.shape(kMetadata);
    if (shape.rank != 1 || shape.dims[0] != static_cast<std::int64_t>(kFields)) {
      throw InvalidArgument(
          fmt::format("metadata has shape {}, expected [{}]", contract::to_string(shape), kFields));
    }
    std::copy_n(call.data<std::int64_t>(kMetadata), kFields, values.begin());
    for (std::size_t i = 0; i < kFields; ++i) {
      if (values[i] >= 0) continue;
      throw InvalidArgument(
          fmt::format("metadata: {} is {}, expected 0 or more", names[i], values[i]));
    }
  }
};

void require_range(const char* what, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  throw InvalidArgument(fmt::format(
      "metadata: {} is {}, expected {}", what, value,
      high == kLargest ? fmt::format("at least {}", low) : fmt::format("{} to {}", low, high)));
}

void require_rank_one(const char* what, const contract::Tensor& tensor) {
  if (tensor.rank == 1) return;
  throw InvalidArgument(
      fmt::format("{} has shape {}, expected rank 1", what, contract::to_string(tensor)));
}

// The part of a buffer that metadata names, or an error.
template <class T>
T* part(const char* what, T* buffer, std::int64_t size, std::int64_t offset, std::int64_t count) {
  if (count <= size && offset <= size - count) return buffer + offset;
  throw InvalidArgument(fmt::format("metadata: {} elements from {} lie outside {} of {} elements",
                                    count, offset, what, size));
}

template <class T>
bool overlap(const T* a, std::int64_t a_size, const T* b, std::int64_t b_size) {
  return a_size > 0 && b_size > 0 && std::less<>()(a, b + b_size) && std::less<>()(b, a + a_size);
}

// The buffers of a call. The output is the destination, whose other elements stay as they are.
template <class T>
struct Buffers {
  const T* source;
  const T* capture;
  T* destination;
  std::int64_t source_size, capture_size, destination_size;

  Buffers(Call& call, const char* capture_name)
      : source(call.data<T>(kSource)),
        capture(call.data<T>(kCapture)),
        source_size(call.shape(kSource).dims[0]),
        capture_size(call.shape(kCapture).dims[0]),
        destination_size(call.shape(kDestination).dims[0]) {
    require_rank_one("source_backing", call.shape(kSource));
    require_rank_one(capture_name, call.shape(kCapture));
    require_rank_one("destination_backing", call.shape(kDestination));
    destination = call.output<T, 1>(0, {destination_size}).data();
    for (const auto& [name, data, size] : {std::tuple{"source_backing", source, source_size},
                                           std::tuple{capture_name, capture, capture_size}}) {
      if (!overlap<T>(destination, destination_size, data, size)) continue;
      throw InvalidArgument(
          fmt::format("destination_out overlaps {}, expected separate memory", name));
    }
  }

  // Takes over what the caller did not bind in place. Called when nothing can fail any more.
  void keep_the_rest(const T* before) const {
    if (before == destination || destination_size == 0) return;
    std::memcpy(destination, before, static_cast<std::size_t>(destination_size) * sizeof(T));
  }
};

template <class T>
class ConvStateReplay final : public Kernel {
 public:
  Plan plan() const override { return {.engine = "replay"}; }
  void compute(Call& call) const override {
    const Metadata<8> metadata(
        call, {"source_offset_bytes", "destination_offset_bytes", "capture_offset_bytes",
               "batch_size", "channels", "history_width", "capacity", "kept_count"});
    const auto [source_at, destination_at, capture_at, batch, channels, width, capacity, kept] =
        metadata.values;
    require_range("channels", channels, 1, kLargest);
    require_range("kept_count", kept, 0, capacity);
    require_range("batch_size", batch, 0, std::numeric_limits<std::int32_t>::max());
    const auto in_elements = [](const char* what, std::int64_t bytes) {
      constexpr std::int64_t kSize = sizeof(T);
      if (bytes % kSize == 0) return bytes / kSize;
      throw InvalidArgument(
          fmt::format("metadata: {} is {}, expected a multiple of {}", what, bytes, kSize));
    };
    const Buffers<T> buffers(call, "capture_backing");
    const std::int64_t state = elements({batch, channels, width});
    const T* const source = part("source_backing", buffers.source, buffers.source_size,
                                 in_elements("source_offset_bytes", source_at), state);
    const T* const capture = part("capture_backing", buffers.capture, buffers.capture_size,
                                  in_elements("capture_offset_bytes", capture_at),
                                  elements({batch, capacity, channels}));
    T* const destination =
        part("destination_backing", buffers.destination, buffers.destination_size,
             in_elements("destination_offset_bytes", destination_at), state);
    buffers.keep_the_rest(call.data<T>(kDestination));
    if (state == 0) return;
    const std::vector<std::int32_t> counts(static_cast<std::size_t>(batch),
                                           static_cast<std::int32_t>(kept));
    replay_conv_state(call.device(), ReplayConvStateArgs<T>{
                                         .initial_state = {source, {batch, channels, width}},
                                         .state_update = {capture, {batch, capacity, channels}},
                                         .count = {counts.data(), {batch}},
                                         .final_state = {destination, {batch, channels, width}}});
  }
};

// A capsule: three sections, in most cases one after the other.
struct Capsule {
  std::int64_t decay_at, key_at, delta_at, value_heads, value_dim, key_dim, key_heads, capacity,
      kept;

  bool is_per_key() const {
    return key_at - decay_at == elements({capacity, value_heads, key_dim});
  }
  std::int64_t decays() const {
    return elements({capacity, value_heads, is_per_key() ? key_dim : 1});
  }
  std::int64_t keys() const { return elements({capacity, key_heads, key_dim}); }
  std::int64_t deltas() const { return elements({capacity, value_heads, value_dim}); }
  std::int64_t state() const { return elements({value_heads, value_dim, key_dim}); }
  // Value head h reads key head h · Hk / Hv, which groups of equal size express without copies.
  bool has_groups() const { return value_heads % key_heads == 0; }
  bool is_dense() const {
    return key_at == decay_at + decays() && delta_at == key_at + keys() && has_groups();
  }
};

// The capsule as one row, keys repeated per value head where the groups differ in size.
View<const float, 2> gather(Call& call, const Buffers<float>& buffers, const Capsule& c) {
  const auto section = [&](std::int64_t offset, std::int64_t count) {
    return part("capsule_backing", buffers.capture, buffers.capture_size, offset, count);
  };
  const float* const decay = section(c.decay_at, c.decays());
  const float* const key = section(c.key_at, c.keys());
  const float* const delta = section(c.delta_at, c.deltas());
  if (c.is_dense()) return {decay, {1, c.decays() + c.keys() + c.deltas()}};
  const std::int64_t heads = c.has_groups() ? c.key_heads : c.value_heads;
  const std::int64_t size = c.decays() + c.capacity * heads * c.key_dim + c.deltas();
  auto* const row =
      static_cast<float*>(call.scratch(static_cast<std::size_t>(size) * sizeof(float)));
  float* end = std::copy_n(decay, c.decays(), row);
  for (std::int64_t slot = 0; slot < c.capacity; ++slot) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t from = slot * c.key_heads + head * c.key_heads / heads;
      end = std::copy_n(key + from * c.key_dim, c.key_dim, end);
    }
  }
  std::copy_n(delta, c.deltas(), end);
  return {row, {1, size}};
}

class GatedDeltaNetStateReplay final : public Kernel {
 public:
  Plan plan() const override { return {.engine = "replay"}; }
  void compute(Call& call) const override {
    const Metadata<11> metadata(
        call, {"source_offset", "destination_offset", "decay_offset", "key_offset", "delta_offset",
               "Hv", "Dv", "Dk", "Hk", "capacity", "kept_count"});
    const auto [source_at, destination_at, decay_at, key_at, delta_at, value_heads, value_dim,
                key_dim, key_heads, capacity, kept] = metadata.values;
    for (const auto& [name, value] :
         {std::pair{"Hv", value_heads}, std::pair{"Dv", value_dim}, std::pair{"Dk", key_dim},
          std::pair{"Hk", key_heads}, std::pair{"capacity", capacity}}) {
      require_range(name, value, 1, std::numeric_limits<std::int32_t>::max());
    }
    require_range("kept_count", kept, 1, capacity);
    const Capsule capsule{decay_at, key_at,    delta_at, value_heads, value_dim,
                          key_dim,  key_heads, capacity, kept};
    const Buffers<float> buffers(call, "capsule_backing");
    const float* const source =
        part("source_backing", buffers.source, buffers.source_size, source_at, capsule.state());
    float* const destination = part("destination_backing", buffers.destination,
                                    buffers.destination_size, destination_at, capsule.state());
    const View<const float, 2> row = gather(call, buffers, capsule);
    const auto count = static_cast<std::int32_t>(kept);
    buffers.keep_the_rest(call.data<float>(kDestination));
    const View<float, 4>::Extents extents{1, value_heads, value_dim, key_dim};
    replay_gated_delta_state(call.device(),
                             {.initial_state = {source, extents},
                              .state_update = row,
                              .count = {&count, {1}},
                              .final_state = {destination, extents},
                              .key_heads = capsule.has_groups() ? key_heads : value_heads,
                              .state_update_capacity = capacity});
  }
};

// Its geometry lies in metadata, which comes with a run.
template <class T, class Replay>
Operator variant(const char* name) {
  constexpr auto kType = element_type<T>();
  return {name,
          {{kType}, {kType}, {kType}, {element_type<std::int64_t>()}},
          {{kType}},
          [](const Node&) -> std::unique_ptr<Kernel> { return std::make_unique<Replay>(); },
          in_place<kDestination, 0>};
}

}  // namespace

std::vector<Operator> state_replay_operators() {
  return {variant<float, ConvStateReplay<float>>("ConvStateReplay"),
          variant<Float16, ConvStateReplay<Float16>>("ConvStateReplay"),
          variant<BFloat16, ConvStateReplay<BFloat16>>("ConvStateReplay"),
          variant<float, GatedDeltaNetStateReplay>("GatedDeltaNetStateReplay")};
}

}  // namespace deltaworks::ort

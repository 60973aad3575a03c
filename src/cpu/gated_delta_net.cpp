// The recurrent engine: token by token; the state is read from memory once and written once for up
// to kMaxBlock tokens.
//
// A task owns one value head of one sequence, or in a longer sequence all value heads of a key
// head. State rows are independent, so a task works through them in tiles that stay in L1 while all
// tokens of a block pass: the update of one token and the two sums of the next share one sweep
// (load, multiply, multiply, add, store, two fma). Lanes run along the key dimension: the layout of
// the state.
#include "cpu/gated_delta_net.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gated_delta_net.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "cpu/gated_delta_net_block-inl.h"
#include "cpu/gated_delta_net_tile-inl.h"
#include "cpu/load-inl.h"
#include "cpu/sum-inl.h"

#ifndef DELTAWORKS_CPU_GATED_DELTA_NET_KERNELS_
#define DELTAWORKS_CPU_GATED_DELTA_NET_KERNELS_
namespace deltaworks::cpu {

// One instruction set's kernels: all tokens of value head h of sequence b.
template <class T, class G = float>
using RunHead = void (*)(const GatedDeltaNetArgs<T, G>& args,
                         const contract::GatedDeltaNetGeometry& geometry, std::int64_t b,
                         std::int64_t h);

struct GatedDeltaNetKernels {
  std::tuple<RunHead<float>, RunHead<Float16>, RunHead<BFloat16>, RunHead<Float16, Float16>,
             RunHead<BFloat16, BFloat16>>
      run_head;
  void (*replay_head)(const ReplayGatedDeltaStateArgs& args,
                      const contract::GatedDeltaNetGeometry& geometry, std::int64_t b,
                      std::int64_t h);
};

}  // namespace deltaworks::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kTileFloats = 4096;  // 16 KiB, half of a small L1
constexpr std::int64_t kMaxTileRows = 32;
constexpr std::int64_t kMaxLoneRows = 256;  // of a token that is alone: it does not stay in a tile

static_assert(kMaxTileRows % kRows == 0 && kMaxLoneRows % kRows == 0);
static_assert(kMaxLoneRows <= kMaxBlock * kMaxTileRows);

// The tokens that pass over a head's rows together.
struct Steps {
  const Token* token;
  std::int64_t count;
  float* deltas;  // of the capsule, from the first of these tokens on
  std::int64_t deltas_stride, captured;
  bool recalls;
  float scale;
};

// What a task reads and writes besides the state and the capsule.
template <class T>
struct Head {
  const T* value;  // of the first token
  T* output;
  std::int64_t value_stride, output_stride;
};

// One token of a group of rows: its deltas, and its outputs in place of its values.
template <bool kPerKey>
HWY_INLINE void finish(const Token& token, const Sums& sums, bool recalls, float scale,
                       float* delta, float* value) {
  for (std::int64_t part = 0; part < kRowParts; ++part) {
    auto recalled = sums.recalled[part], queried = sums.queried[part];
    if constexpr (!kPerKey) {
      const auto factor = hn::Set(d_rows, token.factor);
      recalled = hn::Mul(factor, recalled);
      queried = hn::Mul(factor, queried);
    }
    const std::int64_t row = part * (kRows / kRowParts);
    auto wanted = hn::LoadU(d_rows, value + row);
    if (recalls) wanted = hn::Sub(wanted, recalled);
    const auto change = hn::Mul(hn::Set(d_rows, token.beta), wanted);
    hn::StoreU(change, d_rows, delta + row);
    const auto read = hn::Add(queried, hn::Mul(hn::Set(d_rows, token.key_query), change));
    hn::StoreU(hn::Mul(hn::Set(d_rows, scale), read), d_rows, value + row);
  }
}

// Scratch of a tile: its state, and its values, which become its outputs. The values of a token lie far apart in
// memory (24 KiB with 48 heads of 128), where every one would map to the same cache sets.
struct Tile {
  static constexpr std::int64_t kLargest = std::max(kRows * contract::kMaxKeyDim, kTileFloats);
  HWY_ALIGN float state[kLargest];
  HWY_ALIGN float value[kMaxBlock * kMaxTileRows];
  HWY_ALIGN float delta[kMaxLoneRows];
};

// One group of rows at step t: sums for token t, after the update of token t − 1.
template <bool kPerKey>
HWY_INLINE void step(const InState& state, float* group, bool whole, std::int64_t padded,
                     const Token* token, std::int64_t t, std::int64_t count, const float* delta,
                     Sums& sums) {
  const InTile tile{group};
  const Token &now = token[std::max<std::int64_t>(t - 1, 0)], &next = token[std::min(t, count - 1)];
  if (t > 0 && t < count) {
    sweep<true, true, kPerKey>(tile, tile, padded, now, delta, next, sums);
  } else if (t == 0 && !whole) {
    sweep<false, true, kPerKey>(tile, Nowhere{}, padded, now, delta, next, sums);
  } else if (t == 0 && count > 1) {
    sweep<false, true, kPerKey>(state, tile, padded, now, delta, next, sums);
  } else if (t == 0) {
    sweep<false, true, kPerKey>(state, Nowhere{}, padded, now, delta, next, sums);
  } else if (!whole) {
    sweep<true, false, kPerKey>(tile, tile, padded, now, delta, next, sums);
  } else if (count > 1) {
    sweep<true, false, kPerKey>(tile, state, padded, now, delta, next, sums);
  } else {
    update_rows<kPerKey>(state, now, delta);
  }
}

// Rows of the state, and the tokens that pass over them; `deltas` begins at the first row.
struct Pass {
  const float* from;
  float* to;
  std::int64_t rows, key_dim;
  Steps steps;
};

// Whether run_lone_token serves the whole groups of a block: it has one token, and whole vectors.
HWY_INLINE bool is_lone(std::int64_t count, std::int64_t key_dim) {
  return count == 1 && key_dim % std::max<std::int64_t>(8, kStripLanes) == 0;
}

// The token of a call that has no other, over whole groups of rows. A group is updated while the
// one after the next is summed, so that its deltas have long been ready.
// kKeyDim, or 0 for any: a constant turns sixteen row pointers into one.
template <bool kPerKey, std::int64_t kKeyDim>
HWY_NOINLINE void run_lone_token(const Pass& pass, std::int64_t groups, Tile& tile) {
  constexpr std::int64_t kLag = 2;
  Sums sums;
  const std::int64_t key_dim = kKeyDim > 0 ? kKeyDim : pass.key_dim;
  const auto state = [&pass, key_dim](std::int64_t group) {
    const std::int64_t offset = group * kRows * key_dim;
    return InState{pass.from + offset, pass.to + offset, key_dim};
  };
  const Token& token = *pass.steps.token;
  for (std::int64_t group = 0; group < groups + kLag; ++group) {
    const std::int64_t ready = group - kLag;
    const float* const delta = tile.delta + std::max<std::int64_t>(ready, 0) * kRows;
    if (group >= groups) {
      if (ready >= 0) update_rows<kPerKey>(state(ready), token, delta);
      continue;
    }
    if (ready >= 0) {
      sum_and_update<kPerKey>(state(group), state(ready), token, delta, sums);
    } else {
      sweep<false, true, kPerKey>(state(group), Nowhere{}, key_dim, token, delta, token, sums);
    }
    const std::int64_t row = group * kRows;
    finish<kPerKey>(token, sums, pass.steps.recalls, pass.steps.scale, tile.delta + row,
                    tile.value + row);
  }
}

// All tokens of a block over a tile of rows. Within a token the groups are independent: while one adds its partials, the
// next one sweeps.
template <bool kPerKey>
HWY_NOINLINE void run_tile(const Pass& pass, Tile& tile) {
  const std::int64_t padded = (pass.key_dim + 7) / 8 * 8;
  const std::int64_t done = is_lone(pass.steps.count, pass.key_dim) ? pass.rows / kRows * kRows : 0;
  if (done > 0) {
    const auto run =
        pass.key_dim == 128 ? run_lone_token<kPerKey, 128> : run_lone_token<kPerKey, 0>;
    run(pass, done / kRows, tile);
  }
  Sums sums;
  for (std::int64_t t = 0; t <= pass.steps.count; ++t) {
    for (std::int64_t row = done; row < pass.rows; row += kRows) {
      const std::int64_t offset = row * pass.key_dim, rows = std::min(kRows, pass.rows - row);
      const InState state{pass.from + offset, pass.to + offset, pass.key_dim};
      const bool whole = rows == kRows && padded == pass.key_dim;
      float* const group = tile.state + (row - done) * padded;
      float* const delta = tile.delta + row;
      if (t == 0 && !whole) read_ragged(state.from, rows, pass.key_dim, group);
      step<kPerKey>(state, group, whole, padded, pass.steps.token, t, pass.steps.count, delta,
                    sums);
      if (t == pass.steps.count && !whole) write_ragged(group, rows, pass.key_dim, state.to);
      if (t == pass.steps.count) continue;
      float* const value = tile.value + t * kMaxTileRows + row;
      finish<kPerKey>(pass.steps.token[t], sums, pass.steps.recalls, pass.steps.scale, delta,
                      value);
    }
    if (t < std::min(pass.steps.captured, pass.steps.count)) {
      std::copy_n(tile.delta, pass.rows, pass.steps.deltas + t * pass.steps.deltas_stride);
    }
  }
}

template <class T>
void run_block(const float* from, float* to, std::int64_t value_dim, std::int64_t key_dim,
               const Head<T>& head, const Steps& steps) {
  Tile tile;
  const std::int64_t padded = (key_dim + 7) / 8 * 8;
  const std::int64_t tile_rows =
      is_lone(steps.count, key_dim)
          ? kMaxLoneRows
          : std::clamp<std::int64_t>(kTileFloats / padded / kRows * kRows, kRows, kMaxTileRows);
  for (std::int64_t row = 0; row < value_dim; row += tile_rows) {
    const std::int64_t rows = std::min(tile_rows, value_dim - row);
    const auto size = static_cast<std::size_t>(rows);
    for (std::int64_t t = 0; t < steps.count; ++t) {
      float* const value = tile.value + t * kMaxTileRows;
      convert(head.value + t * head.value_stride + row, value, size);
      std::fill(value + rows, value + (rows + kRows - 1) / kRows * kRows, 0.0f);
    }
    Pass pass{from + row * key_dim, to + row * key_dim, rows, key_dim, steps};
    if (steps.captured > 0) pass.steps.deltas += row;
    if (steps.token[0].decays != nullptr) {
      run_tile<true>(pass, tile);
    } else {
      run_tile<false>(pass, tile);
    }
    for (std::int64_t t = 0; t < steps.count; ++t) {
      convert(tile.value + t * kMaxTileRows, head.output + t * head.output_stride + row, size);
    }
  }
}

// One sequence of a call.
struct Sequence {
  std::int64_t b, start, length;
  bool is_skipped, starts_from_zero;
  std::int64_t slot_in, slot_out;
};

template <class T, class G>
Sequence sequence_of(const GatedDeltaNetArgs<T, G>& args, std::int64_t b) {
  const std::int64_t start = args.cu_seqlens(b), length = args.cu_seqlens(b + 1) - start;
  const std::int64_t in = args.slots_in ? (*args.slots_in)(b) : b;
  const std::int64_t out = args.slots_out ? (*args.slots_out)(b) : b;
  const bool from_zero = !args.initial_state || (args.fresh && (*args.fresh)(b) != 0);
  return {b, start, length, in < 0 || out < 0, from_zero, in, out};
}

// Where one head's parts of a sequence's capsule lie, and how many tokens go there.
struct Capsule {
  float* decays = nullptr;
  float* keys = nullptr;
  float* deltas = nullptr;
  std::int64_t captured = 0;
};

template <class T, class G>
Capsule capsule_of(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
                   const Sequence& sequence, std::int64_t h) {
  if (g.capacity == 0) return {};
  const std::int64_t columns = g.decay_per_key ? g.key_dim : 1;
  const std::int64_t key_head = h / g.heads_per_key();
  float* const row = args.state_update->row(sequence.b);
  const std::int64_t limit =
      args.state_update_active && !sequence.is_skipped ? std::min(g.capacity, sequence.length) : 0;
  return {row + h * columns, row + g.capacity * g.decays() + key_head * g.key_dim,
          row + g.capacity * (g.decays() + g.key_heads * g.key_dim) + h * g.value_dim,
          std::clamp<std::int64_t>((*args.capture_count)(sequence.b), 0, limit)};
}

// Zeros in all slots: tokens that are captured overwrite them. The group's first head owns the shared keys.
template <class T, class G>
void clear_capsule(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
                   const Sequence& sequence, std::int64_t h) {
  const Capsule capsule = capsule_of(args, g, sequence, h);
  for (std::int64_t slot = 0; slot < g.capacity; ++slot) {
    std::fill_n(capsule.decays + slot * g.decays(), g.decays() / g.value_heads, 0.0f);
    std::fill_n(capsule.deltas + slot * g.value_heads * g.value_dim, g.value_dim, 0.0f);
    if (h % g.heads_per_key() == 0) {
      std::fill_n(capsule.keys + slot * g.key_heads * g.key_dim, g.key_dim, 0.0f);
    }
  }
}

void capture_gates_and_keys(const contract::GatedDeltaNetGeometry& g, std::int64_t h,
                            const Capsule& capsule, std::int64_t first, const Token* token,
                            std::int64_t count) {
  for (std::int64_t t = 0; t < count && first + t < capsule.captured; ++t) {
    float* const decays = capsule.decays + (first + t) * g.decays();
    if (g.decay_per_key) {
      gather(token[t].decays, g.key_dim, decays);
    } else {
      *decays = token[t].factor;
    }
    if (h % g.heads_per_key() == 0) {
      gather(token[t].key, g.key_dim, capsule.keys + (first + t) * g.key_heads * g.key_dim);
    }
  }
}

// All that a head of a sequence without tokens does, and what one that starts from zero does first.
template <class T, class G>
void open_state(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
                const Sequence& sequence, std::int64_t h) {
  const std::int64_t size = g.value_dim * g.key_dim;
  float* const to = args.final_state.row(sequence.slot_out) + h * size;
  if (sequence.starts_from_zero) {
    std::fill_n(to, size, 0.0f);
  } else if (sequence.length == 0) {
    const float* const from = args.initial_state->row(sequence.slot_in) + h * size;
    if (from != to) std::copy_n(from, size, to);
  }
}

template <class T>
void skip_head(const View<T, 3>& output, const Sequence& sequence, std::int64_t h) {
  for (std::int64_t t = 0; t < sequence.length; ++t) {
    std::fill_n(&output(sequence.start + t, h, 0), output.extent(2), from_float<T>(0.0f));
  }
}

// Tokens first … first + count − 1 of a sequence for value head h; their keys and
// gates are in the block.
template <class T, class G>
void run_block_of(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
                  const Sequence& sequence, std::int64_t h, std::int64_t first, std::int64_t count,
                  Block& block) {
  const std::int64_t start = sequence.start + first, size = g.value_dim * g.key_dim;
  const std::int64_t deltas_stride = g.value_heads * g.value_dim;
  const Capsule capsule = capsule_of(args, g, sequence, h);
  const bool captures = first < capsule.captured;
  float* const to = args.final_state.row(sequence.slot_out) + h * size;
  const float* const from = first > 0 || sequence.starts_from_zero
                                ? to
                                : args.initial_state->row(sequence.slot_in) + h * size;
  capture_gates_and_keys(g, h, capsule, first, block.token, count);
  const Head<T> head{.value = args.value.row(start) + h * g.value_dim,
                     .output = args.output.row(start) + h * g.value_dim,
                     .value_stride = args.value.row_stride(),
                     .output_stride = args.output.row_stride()};
  const Steps steps{
      .token = block.token,
      .count = count,
      .deltas = captures ? capsule.deltas + first * deltas_stride : nullptr,
      .deltas_stride = deltas_stride,
      .captured = captures ? capsule.captured - first : 0,
      .recalls =
          args.update_rule == UpdateRule::kDelta || args.update_rule == UpdateRule::kGatedDelta,
      .scale = args.scale != 0 ? args.scale : 1.0f / std::sqrt(static_cast<float>(g.key_dim))};
  run_block(from, to, g.value_dim, g.key_dim, head, steps);
}

// The head of a task does the work of all value heads that share its key head where that saves more
// than it costs in tasks: for many tokens, and when there are tasks enough for the threads.
HWY_INLINE bool shares_keys(const contract::GatedDeltaNetGeometry& g, const Sequence& sequence) {
  constexpr std::int64_t kManyTokens = 16, kManyTasks = 16;
  return sequence.length >= kManyTokens || g.sequences * g.key_heads >= kManyTasks;
}

// Blocks of tokens of value heads h … end − 1, which share a key head.
template <class T, class G>
void run_heads(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
               const Sequence& sequence, std::int64_t h, std::int64_t end) {
  const std::int64_t vectors = g.decay_per_key ? 3 : 2;
  const std::int64_t longest = std::min(kMaxBlock, kScratch / (vectors * token_vector(g.key_dim)));
  Block block;
  Gates gates;
  for (std::int64_t first = 0; first < sequence.length; first += longest) {
    const std::int64_t start = sequence.start + first;
    const std::int64_t count = std::min(longest, sequence.length - first);
    const std::int64_t at_once = kMaxBlock / count;
    prepare_keys(args, start, count, h / g.heads_per_key(), block);
    for (std::int64_t head = h; head < end; ++head) {
      const std::int64_t place = (head - h) % at_once;
      if (place == 0) prepare_gates(args, start, count, head, std::min(at_once, end - head), gates);
      choose_gates(args, start, count, head, place, gates, block);
      run_block_of(args, g, sequence, head, first, count, block);
    }
  }
}

// Value head h of sequence b, or all heads that share its key head.
template <class T, class G>
void run_head(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
              std::int64_t b, std::int64_t h) {
  const Sequence sequence = sequence_of(args, b);
  const bool shares = shares_keys(g, sequence);
  if (shares && h % g.heads_per_key() != 0) return;
  const std::int64_t end = shares ? h + g.heads_per_key() : h + 1;
  for (std::int64_t head = h; head < end; ++head) {
    clear_capsule(args, g, sequence, head);
    if (sequence.is_skipped) {
      skip_head(args.output, sequence, head);
    } else {
      open_state(args, g, sequence, head);
    }
  }
  if (!sequence.is_skipped) run_heads(args, g, sequence, h, end);
}

// Replay of one value head: the update of each slot, rounded as the engine rounds it.
void replay_head(const ReplayGatedDeltaStateArgs& args, const contract::GatedDeltaNetGeometry& g,
                 std::int64_t b, std::int64_t h) {
  const std::int64_t size = g.value_dim * g.key_dim, columns = g.decay_per_key ? g.key_dim : 1;
  const float* from = args.initial_state.row(b) + h * size;
  float* const to = args.final_state.row(b) + h * size;
  const float* const row = args.state_update.row(b);
  const float* const keys = row + g.capacity * g.decays() + h / g.heads_per_key() * g.key_dim;
  const float* const deltas =
      row + g.capacity * (g.decays() + g.key_heads * g.key_dim) + h * g.value_dim;
  if (args.count(b) == 0 && from != to) std::copy_n(from, size, to);
  for (std::int64_t slot = 0; slot < args.count(b); ++slot, from = to) {
    const float* const decays = row + slot * g.decays() + h * columns;
    const float* const key = keys + slot * g.key_heads * g.key_dim;
    const float* const delta = deltas + slot * g.value_heads * g.value_dim;
    for (std::int64_t v = 0; v < g.value_dim; ++v) {
      const Eight change = set8(delta[v]);
      for (std::int64_t i = 0; i < g.key_dim; i += 8) {
        const auto n = static_cast<std::size_t>(g.key_dim - i);
        const Eight factor = g.decay_per_key ? load8_n(decays + i, n) : set8(*decays);
        const Eight s = mul8(factor, load8_n(from + v * g.key_dim + i, n));
        store8_n(add8(s, mul8(load8_n(key + i, n), change)), to + v * g.key_dim + i, n);
      }
    }
  }
}

const cpu::GatedDeltaNetKernels& kernels() {
  static constexpr cpu::GatedDeltaNetKernels kKernels{
      {run_head<float, float>, run_head<Float16, float>, run_head<BFloat16, float>,
       run_head<Float16, Float16>, run_head<BFloat16, BFloat16>},
      replay_head};
  return kKernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaworks {

HWY_EXPORT(kernels);

namespace cpu {

namespace {

// Multiplications under which a thread's wake-up costs more than it saves.
constexpr std::int64_t kWorthSplitting = 1 << 17;

ParallelFor for_work(const Cpu& device, std::int64_t work) {
  return work < kWorthSplitting ? ParallelFor{} : device.parallel_for;
}

}  // namespace

template <class T, class G>
void gated_delta_net(const Cpu& device, const contract::GatedDeltaNetGeometry& g,
                     const GatedDeltaNetArgs<T, G>& args) noexcept {
  const auto run_head = std::get<RunHead<T, G>>(HWY_DYNAMIC_DISPATCH(kernels)().run_head);
  const std::int64_t work = (g.tokens + g.sequences) * g.value_heads * g.value_dim * g.key_dim;
  for_work(device, work)(g.sequences * g.value_heads, [&](std::int64_t task) {
    run_head(args, g, task / g.value_heads, task % g.value_heads);
  });
}

void replay_gated_delta_state(const Cpu& device, const contract::GatedDeltaNetGeometry& g,
                              const ReplayGatedDeltaStateArgs& args) noexcept {
  const auto replay_head = HWY_DYNAMIC_DISPATCH(kernels)().replay_head;
  const std::int64_t work =
      g.sequences * g.value_heads * g.value_dim * g.key_dim * (g.capacity + 1);
  for_work(device, work)(g.sequences * g.value_heads, [&](std::int64_t task) {
    replay_head(args, g, task / g.value_heads, task % g.value_heads);
  });
}

template void gated_delta_net(const Cpu&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<float>&) noexcept;
template void gated_delta_net(const Cpu&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<Float16>&) noexcept;
template void gated_delta_net(const Cpu&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<BFloat16>&) noexcept;
template void gated_delta_net(const Cpu&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<Float16, Float16>&) noexcept;
template void gated_delta_net(const Cpu&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<BFloat16, BFloat16>&) noexcept;

}  // namespace cpu
}  // namespace deltaworks
#endif

// The tokens of a block over the rows of a head, tile by tile; or a lone token over the rows of
// several heads.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "contract/gated_delta_net.hpp"
#include "cpu/gated_delta_net_block-inl.h"
#include "cpu/gated_delta_net_lanes-inl.h"
#include "cpu/gated_delta_net_tile-inl.h"
#include "cpu/load-inl.h"

#if defined(DELTAWORKS_CPU_GATED_DELTA_NET_PASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_GATED_DELTA_NET_PASS_INL_H_
#undef DELTAWORKS_CPU_GATED_DELTA_NET_PASS_INL_H_
#else
#define DELTAWORKS_CPU_GATED_DELTA_NET_PASS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kTileFloats = 4096;  // 16 KiB, half of a small L1
// With lanes along the key dimension tile, state rows, the next tile's and all keys lie in L1: a verification of eight
// tokens takes 1.04 to 1.08 times as long with twice the tile.
constexpr std::int64_t kKeyLaneTileFloats = kTileFloats / 2;
constexpr std::int64_t kMaxTileRows = 32;
constexpr std::int64_t kMaxLaneColumns = 512;
constexpr std::int64_t kMaxLoneRows = 1024;  // of a token that is alone: they need not stay in L1

static_assert(kMaxTileRows % kRows == 0 && kMaxLoneRows % kRows == 0);
static_assert(kMaxLoneRows <= kMaxBlock * kMaxTileRows);

// How the tokens of a block pass over rows: one alone from memory to memory, or several over a tile in L1, with lanes
// along the key dimension or along the rows.
enum class Form { kLone, kKeyLanes, kRowLanes };

// For `left` tokens of a sequence, which may be more than a block holds.
HWY_INLINE Form form_of(std::int64_t left, std::int64_t value_dim, std::int64_t key_dim) {
  // Transposing both ways costs as much as the horizontal sums of 16 tokens.
  constexpr std::int64_t kManyTokens = 16;
  if (left == 1 && key_dim % std::max<std::int64_t>(8, kStripLanes) == 0) return Form::kLone;
  const bool whole = value_dim % kLaneRows == 0 && key_dim % 8 == 0 && key_dim <= kMaxLaneColumns;
  return kHasRowLanes && whole && left >= kManyTokens ? Form::kRowLanes : Form::kKeyLanes;
}

// The tokens that pass over a head's rows together.
struct Steps {
  Form form;
  const Token* token;  // one for each head when there are several, which then have one token
  std::int64_t count, head_rows;
  float* deltas;  // of the capsule, from the first of these tokens on
  std::int64_t deltas_stride, captured;
  bool recalls;
  float scale;
};

// Keys and queries of the next block, or of the next key head, of which each tile's tokens fetch some bytes: rows of a key
// head lie pages apart (8 KiB with 16 heads of 128), where no processor fetches by itself. Half of their preparation's time.
struct Ahead {
  const char *key, *query;
  std::int64_t key_stride, query_stride, tokens;  // strides in bytes
  std::int64_t begin, end;                        // bytes of a row

  HWY_INLINE void fetch(std::int64_t t) const {
    for (std::int64_t i = begin; i < end && t < tokens; i += kCacheLine) {
      fetch_to_l2(key + t * key_stride + i);
      fetch_to_l2(query + t * query_stride + i);
    }
  }
};

// What a task reads and writes besides the state and the capsule.
template <class T>
struct Head {
  const T* value;  // of the first token
  T* output;
  std::int64_t value_stride, output_stride;
  const T* next_value;  // of the first token that passes when these have passed
  T* next_output;
  Ahead ahead;

  // The part for rows row … row + rows − 1.
  Head tile(std::int64_t row, std::int64_t rows, std::int64_t all_rows) const {
    Head part = *this;
    part.value += row;
    part.output += row;
    if (row + rows < all_rows) {
      part.next_value = part.value + rows;
      part.next_output = part.output + rows;
    }
    const auto line_at = [&](std::int64_t r) {
      const std::int64_t at = ahead.begin + (ahead.end - ahead.begin) * r / all_rows;
      return at / kCacheLine * kCacheLine;
    };
    part.ahead.begin = line_at(row);
    part.ahead.end = line_at(row + rows);
    return part;
  }
};

// One token of a group of rows: its deltas and its outputs, which may take the place of its values.
template <bool kPerKey>
HWY_INLINE void finish(const Token& token, const Sums& sums, bool recalls, float scale,
                       float* delta, const float* value, float* output) {
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
    hn::StoreU(hn::Mul(hn::Set(d_rows, scale), read), d_rows, output + row);
  }
}

// Scratch of a tile: its state, and its values, which become its outputs. The values of a token lie far apart in
// memory (24 KiB with 48 heads of 128), where every one would map to the same cache sets.
struct Tile {
  static constexpr std::int64_t kLargest = std::max(kRows * contract::kMaxKeyDim, kTileFloats);
  static_assert(kLaneRows * kMaxLaneColumns <= kLargest && kMaxTileRows % kLaneRows == 0);
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
  if (t > 0 && t < count && padded != state.key_dim) {
    sweep<true, false, kPerKey>(tile, tile, padded, now, delta, next, sums);
    clear_padding(group, state.key_dim);
    sweep<false, true, kPerKey>(tile, Nowhere{}, padded, now, delta, next, sums);
  } else if (t > 0 && t < count) {
    sweep<true, true, kPerKey>(tile, tile, padded, now, delta, next, sums);
  } else if (t == 0 && !whole) {
    sweep<false, true, kPerKey>(tile, Nowhere{}, padded, now, delta, next, sums);
  } else if (t == 0) {
    sweep<false, true, kPerKey>(state, tile, padded, now, delta, next, sums);
  } else if (!whole) {
    sweep<true, false, kPerKey>(tile, tile, padded, now, delta, next, sums);
  } else if (padded % 16 == 0) {
    update_state<kPerKey>(tile, state, now, delta);
  } else {
    sweep<true, false, kPerKey>(tile, state, padded, now, delta, next, sums);
  }
}

// Rows of the state, and the tokens that pass over them; `deltas` begins at the first row.
struct Pass {
  const float* from;
  float* to;
  std::int64_t rows, key_dim;
  Steps steps;
};

// The share of token `t` of the rows behind this tile that the next tile reads and writes in place of rows
// row … row + rows − 1, `lines` cache lines a token. All at once they would wait for each other: eight tokens from cold
// memory take 1.2 times as long.
HWY_INLINE void fetch_next_tile(const Pass& pass, std::int64_t row, std::int64_t rows,
                                std::int64_t lines, std::int64_t t) {
  constexpr std::int64_t kLine = kCacheLine / static_cast<std::int64_t>(sizeof(float));
  const std::int64_t offset = (pass.rows + row) * pass.key_dim;
  const std::int64_t end = std::min(rows * pass.key_dim, (t + 1) * lines * kLine);
  for (std::int64_t i = t * lines * kLine; i < end; i += kLine) {
    fetch_to_l1(pass.from + offset + i);
    if (pass.from != pass.to) fetch_to_l1(pass.to + offset + i);
  }
}

HWY_INLINE std::int64_t lines_per_token(const Pass& pass, std::int64_t rows) {
  const std::int64_t bytes = rows * pass.key_dim * static_cast<std::int64_t>(sizeof(float));
  return (bytes / kCacheLine + pass.steps.count) / pass.steps.count;
}

// A call of memcpy for so few would cost a capturing call 3 %.
HWY_INLINE void copy_rows(const float* from, std::int64_t rows, float* to) {
  for (std::int64_t row = 0; row < rows; row += kRows) {
    const std::int64_t n = std::min(kRows, rows - row);
    if (n == kRows) {
      for (std::int64_t part = 0; part < kRows; part += kRows / kRowParts) {
        hn::StoreU(hn::LoadU(d_rows, from + row + part), d_rows, to + row + part);
      }
    } else {
      std::copy_n(from + row, n, to + row);
    }
  }
}

// The token of a call that has no other, over whole groups of rows of one or more heads. A group is
// updated while the one after the next is summed, so that its deltas have long been ready.
// kKeyDim, or 0 for any: a constant turns sixteen row pointers into one.
template <bool kPerKey, std::int64_t kKeyDim>
HWY_NOINLINE void run_lone_token(const Pass& pass, std::int64_t groups, const Head<float>& head,
                                 Tile& tile) {
  constexpr std::int64_t kLag = 2;
  Sums sums;
  const std::int64_t key_dim = kKeyDim > 0 ? kKeyDim : pass.key_dim;
  const auto state = [&pass, key_dim](std::int64_t group) {
    const std::int64_t offset = group * kRows * key_dim;
    return InStream{{pass.from + offset, pass.to + offset, key_dim}};
  };
  const auto token_of = [&pass](std::int64_t group) -> const Token& {
    return pass.steps.token[group * kRows / pass.steps.head_rows];
  };
  for (std::int64_t group = 0; group < groups + kLag; ++group) {
    const std::int64_t ready = group - kLag;
    const float* const delta = tile.delta + std::max<std::int64_t>(ready, 0) * kRows;
    if (group >= groups) {
      if (ready >= 0) update_rows<kPerKey>(state(ready), token_of(ready), delta);
      continue;
    }
    const Token& token = token_of(group);
    if (ready >= 0) {
      sum_and_update<kPerKey>(state(group), token, state(ready), token_of(ready), delta, sums);
    } else {
      sweep<false, true, kPerKey>(state(group), Nowhere{}, key_dim, token, delta, token, sums);
    }
    const std::int64_t row = group * kRows;
    finish<kPerKey>(token, sums, pass.steps.recalls, pass.steps.scale, tile.delta + row,
                    head.value + row, head.output + row);
  }
}

// All tokens of a block over a tile of rows. Within a token the groups are independent: while one adds its partials, the
// next one sweeps.
template <bool kPerKey, std::int64_t kKeyDim>
HWY_NOINLINE void run_tile_of(const Pass& pass, const Head<float>& head, Tile& tile) {
  const std::int64_t key_dim = kKeyDim > 0 ? kKeyDim : pass.key_dim;
  const std::int64_t padded = (key_dim + 7) / 8 * 8;
  const std::int64_t done = pass.steps.form == Form::kLone ? pass.rows / kRows * kRows : 0;
  if (done > 0) {
    const auto run =
        pass.key_dim == 128 ? run_lone_token<kPerKey, 128> : run_lone_token<kPerKey, 0>;
    run(pass, done / kRows, head, tile);
  }
  Sums sums;
  const std::int64_t lines = lines_per_token(pass, kRows);
  for (std::int64_t t = 0; t <= pass.steps.count; ++t) {
    for (std::int64_t row = done; row < pass.rows; row += kRows) {
      const std::int64_t offset = row * key_dim, rows = std::min(kRows, pass.rows - row);
      const InState state{pass.from + offset, pass.to + offset, key_dim};
      const bool whole = rows == kRows && padded == key_dim;
      float* const group = tile.state + (row - done) * padded;
      float* const delta = tile.delta + row;
      if (t == 0 && !whole) read_ragged(state.from, rows, key_dim, group);
      step<kPerKey>(state, group, whole, padded, pass.steps.token, t, pass.steps.count, delta,
                    sums);
      if (t == pass.steps.count && !whole) write_ragged(group, rows, key_dim, state.to);
      if (t == pass.steps.count) continue;
      if (done == 0) fetch_next_tile(pass, row, kRows, lines, t);
      finish<kPerKey>(pass.steps.token[t], sums, pass.steps.recalls, pass.steps.scale, delta,
                      head.value + t * head.value_stride + row,
                      head.output + t * head.output_stride + row);
    }
    if (t == pass.steps.count) continue;
    head.ahead.fetch(t);
    if (t < pass.steps.captured) {
      copy_rows(tile.delta, pass.rows, pass.steps.deltas + t * pass.steps.deltas_stride);
    }
  }
}

template <bool kPerKey>
HWY_INLINE void run_tile(const Pass& pass, const Head<float>& head, Tile& tile) {
  const auto run = pass.key_dim == 128 ? run_tile_of<kPerKey, 128> : run_tile_of<kPerKey, 0>;
  run(pass, head, tile);
}

// The deltas of a group's rows for one token, and its outputs.
template <bool kPerKey, class T>
HWY_INLINE void finish_lanes(const Token& token, const LaneSums& sums, bool recalls, float scale,
                             const T* value, T* output, float* delta) {
  for (int v = 0; v < kLaneVectors; ++v) {
    auto recalled = sums.recalled[v], queried = sums.queried[v];
    if constexpr (!kPerKey) {
      const auto factor = hn::Set(d_strip, token.factor);
      recalled = hn::Mul(factor, recalled);
      queried = hn::Mul(factor, queried);
    }
    const std::int64_t row = v * kStripLanes;
    auto wanted = load_float(d_strip, value + row);
    if (recalls) wanted = hn::Sub(wanted, recalled);
    const auto change = hn::Mul(hn::Set(d_strip, token.beta), wanted);
    hn::StoreU(change, d_strip, delta + row);
    const auto read = hn::Add(queried, hn::Mul(hn::Set(d_strip, token.key_query), change));
    store_float(hn::Mul(hn::Set(d_strip, scale), read), d_strip, output + row);
  }
}

// The lines of a group's values and outputs that later tokens need. Into L2 a tile ahead; into L1 only four tokens ahead,
// for rows that lie pages apart share one L1 set. Without it a call of 1024 tokens takes 1.6 times as long.
template <class T>
HWY_INLINE void fetch_rows(const Head<T>& head, std::int64_t t, std::int64_t row) {
  constexpr std::int64_t kLine = kCacheLine / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t r = row; r < row + kLaneRows; r += kLine) {
    fetch_to_l2(head.next_value + t * head.value_stride + r);
    fetch_to_l2(head.next_output + t * head.output_stride + r);
    fetch_to_l1(head.value + (t + 4) * head.value_stride + r);
    fetch_to_l1(head.output + (t + 4) * head.output_stride + r);
  }
}

// All tokens of a block over a tile of whole groups, lanes along the rows.
template <bool kPerKey, class T>
HWY_NOINLINE void run_row_lanes(const Pass& pass, const Head<T>& head, Tile& tile) {
  const std::int64_t key_dim = pass.key_dim, count = pass.steps.count;
  const Token* const token = pass.steps.token;
  const std::int64_t lines = lines_per_token(pass, kLaneRows);
  for (std::int64_t row = 0; row < pass.rows; row += kLaneRows) {
    read_lanes(pass.from + row * key_dim, key_dim, tile.state + row * key_dim);
  }
  for (std::int64_t t = 0; t < count; ++t) {
    for (std::int64_t row = 0; row < pass.rows; row += kLaneRows) {
      float *const group = tile.state + row * key_dim, *const delta = tile.delta + row;
      const LaneSums sums =
          t == 0 ? sweep_lanes<false, true, kPerKey>(group, key_dim, token[t], delta, token[t])
                 : sweep_lanes<true, true, kPerKey>(group, key_dim, token[t - 1], delta, token[t]);
      finish_lanes<kPerKey>(token[t], sums, pass.steps.recalls, pass.steps.scale,
                            head.value + t * head.value_stride + row,
                            head.output + t * head.output_stride + row, delta);
      fetch_rows(head, t, row);
      fetch_next_tile(pass, row, kLaneRows, lines, t);
    }
    head.ahead.fetch(t);
    if (t < pass.steps.captured) {
      copy_rows(tile.delta, pass.rows, pass.steps.deltas + t * pass.steps.deltas_stride);
    }
  }
  const Token& last = token[count - 1];
  for (std::int64_t row = 0; row < pass.rows; row += kLaneRows) {
    float* const group = tile.state + row * key_dim;
    sweep_lanes<true, false, kPerKey>(group, key_dim, last, tile.delta + row, last);
    write_lanes(group, key_dim, pass.to + row * key_dim);
  }
}

// Rows of a tile as float32 for all tokens of a block, with the outputs in their place, where groups of rows cannot pass in
// the operands' own memory: other types, or rows that fill no group.
template <bool kPerKey, class T>
HWY_INLINE void run_converted(const Pass& pass, const Head<T>& head, Tile& tile) {
  const auto size = static_cast<std::size_t>(pass.rows);
  Head<float> converted{};
  converted.ahead = head.ahead;
  converted.value = converted.output = tile.value;
  converted.value_stride = converted.output_stride = kMaxTileRows;
  for (std::int64_t t = 0; t < pass.steps.count; ++t) {
    float* const value = tile.value + t * kMaxTileRows;
    convert(head.value + t * head.value_stride, value, size);
    std::fill(value + pass.rows, value + (pass.rows + kRows - 1) / kRows * kRows, 0.0f);
  }
  run_tile<kPerKey>(pass, converted, tile);
  for (std::int64_t t = 0; t < pass.steps.count; ++t) {
    convert(tile.value + t * kMaxTileRows, head.output + t * head.output_stride, size);
  }
}

template <bool kPerKey, class T>
HWY_INLINE void run_rows(const Pass& pass, const Head<T>& head, Tile& tile) {
  if (pass.steps.form == Form::kRowLanes) {
    run_row_lanes<kPerKey>(pass, head, tile);
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (pass.rows % kRows == 0) {
      run_tile<kPerKey>(pass, head, tile);
      return;
    }
  }
  run_converted<kPerKey>(pass, head, tile);
}

HWY_INLINE std::int64_t tile_rows_of(Form form, std::int64_t key_dim) {
  if (form == Form::kLone) return kMaxLoneRows;
  const std::int64_t padded = (key_dim + 7) / 8 * 8;
  const std::int64_t group = form == Form::kRowLanes ? kLaneRows : kRows;
  const std::int64_t floats = form == Form::kRowLanes ? kTileFloats : kKeyLaneTileFloats;
  return std::clamp(floats / padded / group * group, group, kMaxTileRows);
}

template <class T>
void run_block(const float* from, float* to, std::int64_t all_rows, std::int64_t key_dim,
               const Head<T>& head, const Steps& steps) {
  Tile tile;
  const std::int64_t tile_rows = tile_rows_of(steps.form, key_dim);
  for (std::int64_t row = 0; row < all_rows; row += tile_rows) {
    const std::int64_t rows = std::min(tile_rows, all_rows - row);
    Pass pass{from + row * key_dim, to + row * key_dim, rows, key_dim, steps};
    if (steps.captured > 0) pass.steps.deltas += row;
    const Head<T> part = head.tile(row, rows, all_rows);
    if (steps.token[0].decays != nullptr) {
      run_rows<true>(pass, part, tile);
    } else {
      run_rows<false>(pass, part, tile);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

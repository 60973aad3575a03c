// The chunked engine: sixteen tokens at a time, in the WY form (Yang, Wang, Zhang, Shen, Kim, arXiv:2406.06484; with
// decays arXiv:2412.06464).
//
// A task owns the value heads of one key head of one sequence: they share keys, queries and their products. While the
// chunks pass, the state lies in final_state panel by panel, each column by column, so that no chunk transposes
// anything but its keys.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "contract/gated_delta_net.hpp"
#include "cpu/gated_delta_net_block-inl.h"
#include "cpu/gated_delta_net_chunked_tile-inl.h"
#include "cpu/load-inl.h"
#include "cpu/math-inl.h"
#include "cpu/sum-inl.h"
#include "deltaworks/gated_delta_net.hpp"

#if defined(DELTAWORKS_CPU_GATED_DELTA_NET_CHUNKED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_GATED_DELTA_NET_CHUNKED_INL_H_
#undef DELTAWORKS_CPU_GATED_DELTA_NET_CHUNKED_INL_H_
#else
#define DELTAWORKS_CPU_GATED_DELTA_NET_CHUNKED_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {
namespace chunked {

static_assert(kMaxKeyDim % kTile == 0);

// What the value heads of a key head share in a chunk, and the memory of one panel at a time.
struct ChunkScratch {
  HWY_ALIGN float keys[kMaxKeyDim * kColumns];  // [i][column]: sixteen keys, then sixteen queries
  HWY_ALIGN float products[kColumns][kChunk];   // of columns with keys
  HWY_ALIGN float rows[kChunk * kMaxKeyDim];    // keys or queries, token by token
  HWY_ALIGN float state[kMaxKeyDim * kPanelRows];
  ChunkGates gates;
  Panel panel;
  FetchList ahead;
};

// Whole chunks of a sequence, for value heads head … end − 1 of one key head. States are those of value head 0.
struct Chunks {
  std::int64_t start, tokens, key_head, head, end;
  const float* from;
  float* to;
};

// A head's state, whose panels lie in the final state column by column when they fit there.
struct State {
  std::int64_t value_dim, key_dim, padded_key_dim;

  bool fits() const {
    return value_dim % kPanelRows == 0 && key_dim % std::max<std::int64_t>(8, kLanes) == 0;
  }
  std::int64_t size() const { return value_dim * key_dim; }
};

// Panel in the scratch memory, from rows first … of a state in row order.
inline void read_rows(const State& state, const float* from, std::int64_t rows, float* panel) {
  if (state.fits()) {
    transpose(from, state.key_dim, kPanelRows, state.key_dim, panel, kPanelRows);
    return;
  }
  std::fill_n(panel, state.padded_key_dim * kPanelRows, 0.0f);
  for (std::int64_t row = 0; row < rows; ++row, from += state.key_dim) {
    for (std::int64_t i = 0; i < state.key_dim; ++i) panel[i * kPanelRows + row] = from[i];
  }
}

inline void write_rows(const State& state, const float* panel, std::int64_t rows, float* to) {
  for (std::int64_t row = 0; row < rows; ++row, to += state.key_dim) {
    for (std::int64_t i = 0; i < state.key_dim; ++i) to[i] = panel[i * kPanelRows + row];
  }
}

// Before the first chunk, and after the last one. In place: a panel's memory is that of its rows.
inline void to_panels(const State& state, const Chunks& chunks, ChunkScratch& scratch) {
  const std::int64_t size = kPanelRows * state.key_dim;
  for (std::int64_t i = chunks.head * state.size(); i < chunks.end * state.size(); i += size) {
    read_rows(state, chunks.from + i, kPanelRows, scratch.state);
    std::copy_n(scratch.state, size, chunks.to + i);
  }
}

inline void to_rows(const State& state, const Chunks& chunks, ChunkScratch& scratch) {
  const std::int64_t size = kPanelRows * state.key_dim;
  for (std::int64_t i = chunks.head * state.size(); i < chunks.end * state.size(); i += size) {
    transpose(chunks.to + i, kPanelRows, state.key_dim, kPanelRows, scratch.state, state.key_dim);
    std::copy_n(scratch.state, size, chunks.to + i);
  }
}

// Sixteen rows from `first` on, normalised and scaled, as columns from `column` on.
template <class T>
void prepare_columns(const View<const T, 3>& x, std::int64_t first, std::int64_t key_head,
                     float epsilon, float scale, std::int64_t column, const State& state,
                     ChunkScratch& scratch) {
  for (std::int64_t t = 0; t < kChunk; ++t) {
    const T* const from = x.row(first + t) + key_head * state.key_dim;
    for (std::int64_t i = 0; i < state.key_dim; i += 8) {
      store8(load8_n(from + i, static_cast<std::size_t>(state.key_dim - i)),
             scratch.rows + t * state.padded_key_dim + i);
    }
  }
  float* const keys = scratch.keys + column;
  transpose(scratch.rows, state.padded_key_dim, kChunk, state.padded_key_dim, keys, kColumns);
  normalise_columns(keys, state.padded_key_dim, epsilon, scale);
}

// The log decays of sixteen tokens. Less than −2000 has the factor 0 whatever a chunk adds to it, and infinities have no
// differences.
template <class T, class G>
void log_decays(const GatedDeltaNetArgs<T, G>& args, std::int64_t first, std::int64_t h,
                float* log_decays) {
  std::fill_n(log_decays, kChunk, 0.0f);
  if (!args.decay) return;
  for (std::int64_t t = 0; t < kChunk; ++t) log_decays[t] = to_float((*args.decay)(first + t, h));
  const V a_log = hn::Set(d, args.a_log ? (*args.a_log)(h) : 0);
  const V dt_bias = hn::Set(d, args.dt_bias ? (*args.dt_bias)(h) : 0);
  for (std::int64_t t = 0; t < kChunk; t += kLanes) {
    const V g = log_decay(d, args, hn::Load(d, log_decays + t), a_log, dt_bias);
    hn::Store(at_least(d, g, hn::Set(d, -2000.0f)), d, log_decays + t);
  }
}

// A sum of log decays in double, as two floats: differences of them are as exact as differences of doubles, where a
// float alone would lose what follows a −1000 (4e-5 of an output).
struct DecaySums {
  HWY_ALIGN float high[kChunk];
  HWY_ALIGN float low[kChunk];
};

// exp(later − sums) of the lanes from s on
HWY_INLINE V decay_between(const DecaySums& sums, float later_high, float later_low,
                           std::int64_t s) {
  const V high = hn::Sub(hn::Set(d, later_high), hn::Load(d, sums.high + s));
  const V low = hn::Sub(hn::Set(d, later_low), hn::Load(d, sums.low + s));
  return exp(d, hn::Add(high, low));
}

// Every decay is that of a later token since an earlier one: a log decay of at most 0 gives no factor above 1. What lies
// above the diagonals stays unread.
template <class T, class G>
void prepare_chunk_gates(const GatedDeltaNetArgs<T, G>& args, std::int64_t first, std::int64_t h,
                         ChunkScratch& scratch) {
  ChunkGates& gates = scratch.gates;
  HWY_ALIGN float decays[kChunk];
  log_decays(args, first, h, decays);
  update_rates(args, first, kChunk, h, 1, gates.rate);
  DecaySums sums;
  double sum = 0;
  for (std::int64_t t = 0; t < kChunk; ++t) {
    sum += decays[t];
    sums.high[t] = static_cast<float>(sum);
    sums.low[t] = static_cast<float>(sum - sums.high[t]);
  }
  const float last_high = sums.high[kChunk - 1], last_low = sums.low[kChunk - 1];
  for (std::int64_t s = 0; s < kChunk; s += kLanes) {
    const V since_start = hn::Add(hn::Load(d, sums.high + s), hn::Load(d, sums.low + s));
    hn::Store(exp(d, since_start), d, gates.from_start + s);
    hn::Store(decay_between(sums, last_high, last_low, s), d, gates.to_end + s);
  }
  for (std::int64_t t = 0; t < kChunk; ++t) {
    const V rate = hn::Set(d, gates.rate[t]);
    for (std::int64_t s = 0; s <= t; s += kLanes) {
      const V decay = decay_between(sums, sums.high[t], sums.low[t], s);
      const V keys = hn::Load(d, scratch.products[t] + s);
      const V queries = hn::Load(d, scratch.products[kChunk + t] + s);
      hn::Store(hn::Mul(rate, hn::Mul(decay, keys)), d, gates.recall[t] + s);
      hn::Store(hn::Mul(decay, queries), d, gates.read[t] + s);
    }
  }
}

// Where a panel's values and outputs lie: of sixteen tokens from `first` on, in columns of rows first_row … of a head.
struct Place {
  std::int64_t first, column, rows;
};

// The panel after `now`, at most as wide; behind the last one it has no rows.
inline Place following(const Chunks& chunks, const State& state, const Place& now) {
  const std::int64_t begin = chunks.head * state.value_dim, end = chunks.end * state.value_dim;
  Place next = now;
  next.column += now.rows;
  if (next.column == end && now.first + kChunk < chunks.start + chunks.tokens) {
    next.first += kChunk;
    next.column = begin;
  }
  next.rows = std::min(now.rows, end - next.column);
  return next;
}

// The values and outputs of the next panel, and this panel's share of the next chunk's keys and queries: all in rows so
// far apart that the processor's own prefetching does not find them. First lines first: each is in a page of its own.
template <class T, class G>
void fetch_ahead(const GatedDeltaNetArgs<T, G>& args, const Chunks& chunks, const State& state,
                 const Place& now, const Place& next, FetchList& ahead) {
  constexpr std::int64_t kSize = sizeof(T), kLine = 64 / kSize;
  ahead.clear();
  const std::int64_t value_stride = args.value.row_stride() * kSize,
                     output_stride = args.output.row_stride() * kSize;
  const T* const value = args.value.row(next.first) + next.column;
  const T* const output = args.output.row(next.first) + next.column;
  for (std::int64_t line = 0; line < next.rows; line += kLine) {
    ahead.add(value + line, value_stride, kChunk);
    ahead.add(output + line, output_stride, kChunk);
  }
  const std::int64_t soon = now.first + kChunk;
  if (soon >= chunks.start + chunks.tokens) return;
  const std::int64_t columns = (chunks.end - chunks.head) * state.value_dim;
  const std::int64_t done = now.column - chunks.head * state.value_dim;
  const std::int64_t begin = done * kChunk / columns, end = (done + now.rows) * kChunk / columns;
  const std::int64_t key_column = chunks.key_head * state.key_dim;
  for (const View<const T, 3>& x : {args.key, args.query}) {
    const T* const row = x.row(soon + begin) + key_column;
    for (std::int64_t line = 0; line < state.key_dim; line += kLine) {
      ahead.add(row + line, x.row_stride() * kSize, end - begin);
    }
  }
}

// One token's values of a panel; zeros behind those of a narrow one. Whole panels without a loop: 2 % of a call.
template <class T>
HWY_INLINE void load_row(const T* from, std::int64_t rows, float* to) {
  if (rows == kPanelRows) {
    hn::Store(load_float(d, from), d, to);
    hn::Store(load_float(d, from + kLanes), d, to + kLanes);
  } else {
    convert(from, to, static_cast<std::size_t>(rows));
    std::fill(to + rows, to + kPanelRows, 0.0f);
  }
}

template <class T>
HWY_INLINE void store_row(const float* from, std::int64_t rows, T* to) {
  if (rows == kPanelRows) {
    store_float(hn::Load(d, from), d, to);
    store_float(hn::Load(d, from + kLanes), d, to + kLanes);
  } else {
    convert(from, to, static_cast<std::size_t>(rows));
  }
}

// One chunk over a panel.
template <class T, class G>
void run_panel(const GatedDeltaNetArgs<T, G>& args, const Place& place, std::int64_t key_dim,
               float* state, ChunkScratch& scratch) {
  const bool recalls =
      args.update_rule == UpdateRule::kDelta || args.update_rule == UpdateRule::kGatedDelta;
  Panel& panel = scratch.panel;
  for (std::int64_t t = 0; t < kChunk; ++t) {
    load_row(args.value.row(place.first + t) + place.column, place.rows, panel.value[t]);
  }
  multiply(scratch.keys, state, key_dim, recalls ? 0 : kChunk, scratch.ahead, panel);
  if (recalls) {
    solve<true>(scratch.gates, panel);
  } else {
    solve<false>(scratch.gates, panel);
  }
  read_out(scratch.gates, panel);
  update(scratch.keys, scratch.gates.from_start[kChunk - 1], panel, key_dim, state);
  for (std::int64_t t = 0; t < kChunk; ++t) {
    store_row(panel.value[t], place.rows, args.output.row(place.first + t) + place.column);
  }
}

// The panels of one value head in one chunk.
template <class T, class G>
void run_head_chunk(const GatedDeltaNetArgs<T, G>& args, const Chunks& chunks, const State& state,
                    std::int64_t first, std::int64_t h, ChunkScratch& scratch) {
  const bool is_first = first == chunks.start;
  for (std::int64_t row = 0; row < state.value_dim; row += kPanelRows) {
    const Place place{first, h * state.value_dim + row,
                      std::min(kPanelRows, state.value_dim - row)};
    fetch_ahead(args, chunks, state, place, following(chunks, state, place), scratch.ahead);
    const std::int64_t offset = place.column * state.key_dim;
    float* const panel = state.fits() ? chunks.to + offset : scratch.state;
    if (!state.fits()) {
      read_rows(state, (is_first ? chunks.from : chunks.to) + offset, place.rows, panel);
    }
    run_panel(args, place, state.padded_key_dim, panel, scratch);
    if (!state.fits()) write_rows(state, panel, place.rows, chunks.to + offset);
  }
}

template <class T, class G>
void run_chunks(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
                const Chunks& chunks) {
  const State state{g.value_dim, g.key_dim, (g.key_dim + 7) / 8 * 8};
  const float epsilon = norm_epsilon(args);
  const float scale =
      args.scale != 0 ? args.scale : 1.0f / std::sqrt(static_cast<float>(g.key_dim));
  ChunkScratch scratch;
  if (state.fits()) to_panels(state, chunks, scratch);
  for (std::int64_t first = chunks.start; first < chunks.start + chunks.tokens; first += kChunk) {
    prepare_columns(args.key, first, chunks.key_head, epsilon, 1, 0, state, scratch);
    prepare_columns(args.query, first, chunks.key_head, epsilon, scale, kChunk, state, scratch);
    multiply_keys(scratch.keys, state.padded_key_dim, scratch.products);
    for (std::int64_t h = chunks.head; h < chunks.end; ++h) {
      prepare_chunk_gates(args, first, h, scratch);
      run_head_chunk(args, chunks, state, first, h, scratch);
    }
  }
  if (state.fits()) to_rows(state, chunks, scratch);
}

}  // namespace chunked
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

// What the chunked engine does with one chunk of tokens and one panel of state rows: products, solution, update.
//
// Lanes run over state rows. A panel is two vectors of rows, stored column by column: every product is then a broadcast
// key times a vector of rows, and no sum crosses lanes. Each sum has one accumulator that takes its terms in ascending
// order, so every width with fma gives the same bits.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "contract/engine.hpp"
#include "cpu/transpose-inl.h"

#if defined(DELTAWORKS_CPU_GATED_DELTA_NET_CHUNKED_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_GATED_DELTA_NET_CHUNKED_TILE_INL_H_
#undef DELTAWORKS_CPU_GATED_DELTA_NET_CHUNKED_TILE_INL_H_
#else
#define DELTAWORKS_CPU_GATED_DELTA_NET_CHUNKED_TILE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {
namespace chunked {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr D d;
constexpr std::int64_t kLanes = hn::MaxLanes(d);

constexpr std::int64_t kChunk = contract::kChunkTokens;
constexpr std::int64_t kPanelRows = 2 * kLanes;
constexpr std::int64_t kMaxKeyDim = contract::kMaxChunkedKeyDim;
constexpr std::int64_t kColumns =
    2 * kChunk;  // of a chunk's keys and queries: 16 keys, then 16 queries
// Broadcasts that share two vectors: with two accumulators each, as many chains as hide the latency of fma, and as few
// as 16 registers hold.
constexpr std::int64_t kTile = HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3 ? 4 : 8;

// The coefficients of one value head in one chunk. G is the sum of log decays from the chunk's first token on.
struct ChunkGates {
  HWY_ALIGN float recall[kChunk][kChunk];  // [t][s], s < t: beta_t exp(G_t − G_s) k_t · k_s
  HWY_ALIGN float read[kChunk]
                      [kChunk];  // [t][s], s <= t: exp(G_t − G_s) q_t · k_s, q with the scale
  HWY_ALIGN float rate[kChunk];  // beta_t
  HWY_ALIGN float from_start[kChunk];  // exp(G_t)
  HWY_ALIGN float to_end[kChunk];      // exp(G_15 − G_t)
};

// One panel's vectors: element [t][row]. The products are of keys and queries with the state before the chunk.
struct Panel {
  HWY_ALIGN float product[kColumns][kPanelRows];
  HWY_ALIGN float value[kChunk][kPanelRows];  // then the outputs
  HWY_ALIGN float delta[kChunk][kPanelRows];
  HWY_ALIGN float change[kChunk][kPanelRows];  // delta with the decay to the end of the chunk
};

// Cache lines that the next panel and the next chunk will need, fetched while this panel multiplies: spread over all of
// it, since the state's own lines pass through the same buffers, but some at once, so that their pages are found at the
// same time (one by one they cost 1 to 7 % more).
class FetchList {
 public:
  FetchList() { std::fill_n(lines_, kMaxKeyDim, this); }
  void clear() { count_ = 0; }
  // `rows` lines, one every `stride` bytes.
  void add(const void* line, std::int64_t stride, std::int64_t rows) {
    const char* at = static_cast<const char*>(line);
    rows = std::min(rows, kMaxKeyDim - count_);
    for (std::int64_t r = 0; r < rows; ++r, at += stride) lines_[count_ + r] = at;
    count_ += rows;
  }
  // As many as multiply fetches; those behind the added ones are older.
  const void* const* lines() const { return lines_; }

 private:
  const void* lines_[kMaxKeyDim];
  std::int64_t count_ = 0;
};

constexpr std::int64_t kFetches = kTile / 4;  // of a tile for eight columns of state

// to[r][·] = Σ_i keys[i][r] · state[i][·] for kTile columns r
HWY_INLINE void multiply_tile(const float* keys, const float* state, std::int64_t key_dim,
                              const void* const* ahead, float* to) {
  V sum[kTile][2];
  for (std::int64_t r = 0; r < kTile; ++r) sum[r][0] = sum[r][1] = hn::Zero(d);
  for (std::int64_t step = 0; step < key_dim / 8; ++step) {
    for (std::int64_t f = 0; step % 2 == 0 && f < 2 * kFetches; ++f) {
      hwy::Prefetch(static_cast<const char*>(ahead[step * kFetches + f]));
    }
    for (std::int64_t i = 0; i < 8; ++i, keys += kColumns, state += kPanelRows) {
      const V a = hn::LoadU(d, state), b = hn::LoadU(d, state + kLanes);
      for (std::int64_t r = 0; r < kTile; ++r) {
        const V key = hn::Set(d, keys[r]);
        sum[r][0] = hn::MulAdd(key, a, sum[r][0]);
        sum[r][1] = hn::MulAdd(key, b, sum[r][1]);
      }
    }
  }
  for (std::int64_t r = 0; r < kTile; ++r) {
    hn::Store(sum[r][0], d, to + r * kPanelRows);
    hn::Store(sum[r][1], d, to + r * kPanelRows + kLanes);
  }
}

// Products of columns first … 31 with the state; key_dim is a multiple of eight.
HWY_NOINLINE void multiply(const float* keys, const float* state, std::int64_t key_dim,
                           std::int64_t first, const FetchList& ahead, Panel& panel) {
  const void* const* lines = ahead.lines();
  for (std::int64_t r = first; r < kColumns; r += kTile, lines += key_dim / 8 * kFetches) {
    multiply_tile(keys + r, state, key_dim, lines, panel.product[r]);
  }
}

// Four tokens of two vectors.
struct Four {
  V x[4][2];
};

HWY_INLINE void store_four(const Four& four, float (*to)[kPanelRows]) {
  for (int t = 0; t < 4; ++t) {
    hn::Store(four.x[t][0], d, to[t]);
    hn::Store(four.x[t][1], d, to[t] + kLanes);
  }
}

// four[t] += sign · Σ_{s < end} coefficients[t][s] · delta[s]
template <bool kSubtract>
HWY_INLINE void add_deltas(const float (*coefficients)[kChunk], const float (*delta)[kPanelRows],
                           std::int64_t begin, std::int64_t end, int first_token, Four& four) {
  for (std::int64_t s = begin; s < end; ++s) {
    const V a = hn::Load(d, delta[s]), b = hn::Load(d, delta[s] + kLanes);
    for (int t = first_token; t < 4; ++t) {
      const V c = hn::Set(d, coefficients[t][s]);
      four.x[t][0] = kSubtract ? hn::NegMulAdd(c, a, four.x[t][0]) : hn::MulAdd(c, a, four.x[t][0]);
      four.x[t][1] = kSubtract ? hn::NegMulAdd(c, b, four.x[t][1]) : hn::MulAdd(c, b, four.x[t][1]);
    }
  }
}

// Forward substitution: delta_t = beta_t (value_t − exp(G_t) k_t · S) − Σ_{s < t} recall[t][s] delta_s.
template <bool kRecalls>
HWY_NOINLINE void solve(const ChunkGates& gates, Panel& panel) {
  for (std::int64_t first = 0; first < kChunk; first += 4) {
    Four four;
    for (int t = 0; t < 4; ++t) {
      const std::int64_t token = first + t;
      const V rate = hn::Set(d, gates.rate[token]), decay = hn::Set(d, gates.from_start[token]);
      for (int half = 0; half < 2; ++half) {
        V wanted = hn::Load(d, panel.value[token] + half * kLanes);
        if (kRecalls) {
          const V recalled = hn::Load(d, panel.product[token] + half * kLanes);
          wanted = hn::NegMulAdd(decay, recalled, wanted);
        }
        four.x[t][half] = hn::Mul(rate, wanted);
      }
    }
    if (kRecalls) {
      const auto* const recall = gates.recall + first;
      add_deltas<true>(recall, panel.delta, 0, first, 0, four);
      for (int s = 0; s < 3; ++s) {
        for (int t = s + 1; t < 4; ++t) {
          const V c = hn::Set(d, recall[t][first + s]);
          four.x[t][0] = hn::NegMulAdd(c, four.x[s][0], four.x[t][0]);
          four.x[t][1] = hn::NegMulAdd(c, four.x[s][1], four.x[t][1]);
        }
      }
    }
    store_four(four, panel.delta + first);
    for (int t = 0; t < 4; ++t) {
      const V decay = hn::Set(d, gates.to_end[first + t]);
      four.x[t][0] = hn::Mul(decay, four.x[t][0]);
      four.x[t][1] = hn::Mul(decay, four.x[t][1]);
    }
    store_four(four, panel.change + first);
  }
}

// output_t = exp(G_t) q_t · S + Σ_{s <= t} read[t][s] delta_s, in place of the values.
HWY_NOINLINE void read_out(const ChunkGates& gates, Panel& panel) {
  for (std::int64_t first = 0; first < kChunk; first += 4) {
    Four four;
    for (int t = 0; t < 4; ++t) {
      const V decay = hn::Set(d, gates.from_start[first + t]);
      const float* const queried = panel.product[kChunk + first + t];
      four.x[t][0] = hn::Mul(decay, hn::Load(d, queried));
      four.x[t][1] = hn::Mul(decay, hn::Load(d, queried + kLanes));
    }
    const auto* const read = gates.read + first;
    add_deltas<false>(read, panel.delta, 0, first + 1, 0, four);
    add_deltas<false>(read, panel.delta, first + 1, first + 2, 1, four);
    add_deltas<false>(read, panel.delta, first + 2, first + 3, 2, four);
    add_deltas<false>(read, panel.delta, first + 3, first + 4, 3, four);
    store_four(four, panel.value + first);
  }
}

// state[i][·] = decay · state[i][·] + Σ_t keys[i][t] change[t][·]; key_dim is a multiple of kTile.
HWY_NOINLINE void update(const float* keys, float decay, const Panel& panel, std::int64_t key_dim,
                         float* state) {
  const V factor = hn::Set(d, decay);
  for (std::int64_t i = 0; i < key_dim; i += kTile) {
    V sum[kTile][2];
    for (std::int64_t r = 0; r < kTile; ++r) {
      sum[r][0] = hn::Mul(factor, hn::LoadU(d, state + r * kPanelRows));
      sum[r][1] = hn::Mul(factor, hn::LoadU(d, state + r * kPanelRows + kLanes));
    }
    for (std::int64_t t = 0; t < kChunk; ++t) {
      const V a = hn::Load(d, panel.change[t]), b = hn::Load(d, panel.change[t] + kLanes);
      for (std::int64_t r = 0; r < kTile; ++r) {
        const V key = hn::Set(d, keys[r * kColumns + t]);
        sum[r][0] = hn::MulAdd(key, a, sum[r][0]);
        sum[r][1] = hn::MulAdd(key, b, sum[r][1]);
      }
    }
    for (std::int64_t r = 0; r < kTile; ++r) {
      hn::StoreU(sum[r][0], d, state + r * kPanelRows);
      hn::StoreU(sum[r][1], d, state + r * kPanelRows + kLanes);
    }
    keys += kTile * kColumns;
    state += kTile * kPanelRows;
  }
}

// Sixteen columns times scale and, where epsilon is not 0, rsqrt(sum x² + epsilon): the same bits as norm_factor(), but a
// row at a time waits for its own sum (2 % of a call).
HWY_NOINLINE void normalise_columns(float* columns, std::int64_t key_dim, float epsilon,
                                    float scale) {
  for (std::int64_t p = 0; p < kChunk; p += kLanes) {
    float* const x = columns + p;
    V factor = hn::Set(d, scale);
    if (epsilon > 0) {
      V sum[8];
      for (V& partial : sum) partial = hn::Zero(d);
      for (std::int64_t i = 0; i < key_dim * kColumns; i += 8 * kColumns) {
        for (int n = 0; n < 8; ++n) {
          const V element = hn::Load(d, x + i + n * kColumns);
          sum[n] = hn::MulAdd(element, element, sum[n]);
        }
      }
      const V even = hn::Add(hn::Add(sum[0], sum[4]), hn::Add(sum[2], sum[6]));
      const V odd = hn::Add(hn::Add(sum[1], sum[5]), hn::Add(sum[3], sum[7]));
      const V root = hn::Sqrt(hn::Add(hn::Add(even, odd), hn::Set(d, epsilon)));
      factor = hn::Mul(hn::Div(hn::Set(d, 1.0f), root), factor);
    }
    for (std::int64_t i = 0; i < key_dim * kColumns; i += kColumns) {
      hn::Store(hn::Mul(hn::Load(d, x + i), factor), d, x + i);
    }
  }
}

// products[c][s] = column c · key s for the keys s of the chunk
HWY_NOINLINE void multiply_keys(const float* keys, std::int64_t key_dim,
                                float (*products)[kChunk]) {
  constexpr std::int64_t kParts = kChunk / kLanes,
                         kCount = 2 * kTile / kParts > 0 ? 2 * kTile / kParts : 1;
  for (std::int64_t c = 0; c < kColumns; c += kCount) {
    V sum[kCount][kParts];
    for (std::int64_t r = 0; r < kCount; ++r) {
      for (std::int64_t p = 0; p < kParts; ++p) sum[r][p] = hn::Zero(d);
    }
    const float* from = keys;
    for (std::int64_t i = 0; i < key_dim; ++i, from += kColumns) {
      V key[kParts];
      for (std::int64_t p = 0; p < kParts; ++p) key[p] = hn::Load(d, from + p * kLanes);
      for (std::int64_t r = 0; r < kCount; ++r) {
        const V x = hn::Set(d, from[c + r]);
        for (std::int64_t p = 0; p < kParts; ++p) sum[r][p] = hn::MulAdd(x, key[p], sum[r][p]);
      }
    }
    for (std::int64_t r = 0; r < kCount; ++r) {
      for (std::int64_t p = 0; p < kParts; ++p) {
        hn::Store(sum[r][p], d, products[c + r] + p * kLanes);
      }
    }
  }
}

// to[column][row] = from[row][column]; rows are a multiple of the lanes, columns of four.
HWY_NOINLINE void transpose(const float* from, std::int64_t from_stride, std::int64_t rows,
                            std::int64_t columns, float* to, std::int64_t to_stride) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) to[c * to_stride + r] = from[r * from_stride + c];
  }
#else
  for (std::int64_t r = 0; r < rows; r += kLanes) {
    for (std::int64_t c = 0; c < columns; c += 4) {
      V x[4];
      for (int j = 0; j < 4; ++j) {
        x[j] = load_blocks(d, from + (r + j) * from_stride + c, from_stride);
      }
      transpose_blocks(d, x);
      for (int j = 0; j < 4; ++j) hn::StoreU(x[j], d, to + (c + j) * to_stride + r);
    }
  }
#endif
}

}  // namespace chunked
}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

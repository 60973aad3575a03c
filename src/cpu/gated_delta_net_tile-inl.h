// A tile of state rows and the sweeps of the recurrent engine over it.
//
// A vector of 16 lanes holds eight columns of two rows, one of 8 lanes eight columns of one row: every row keeps its
// own eight partial sums, so the width changes no bit. Rows go in groups of four strips; inside a tile a group's strips
// of one column block lie side by side, so a sweep is one stream of whole vectors.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/load-inl.h"
#include "cpu/sum-inl.h"

#if defined(DELTAWORKS_CPU_GATED_DELTA_NET_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_GATED_DELTA_NET_TILE_INL_H_
#undef DELTAWORKS_CPU_GATED_DELTA_NET_TILE_INL_H_
#else
#define DELTAWORKS_CPU_GATED_DELTA_NET_TILE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kCacheLine = 64;

HWY_INLINE void fetch_to_l1(const void* line) { hwy::Prefetch(static_cast<const char*>(line)); }
// Highway has no such hint: a locality of 2 is all levels but the first.
HWY_INLINE void fetch_to_l2(const void* line) { __builtin_prefetch(line, 0, 2); }

using DStrip = hn::CappedTag<float, 16>;
using VStrip = hn::Vec<DStrip>;
constexpr DStrip d_strip;
constexpr std::int64_t kStripLanes = hn::MaxLanes(d_strip);
constexpr std::int64_t kStripRows = kStripLanes == 16 ? 2 : 1;
constexpr std::int64_t kStripParts = kStripLanes >= 8 ? 1 : 8 / kStripLanes;
constexpr std::int64_t kStripSize = 8 * kStripRows;
constexpr int kStrips = 4;  // with two sums each, eight chains hide the latency of fma
constexpr std::int64_t kRows = kStrips * kStripRows;
constexpr std::int64_t kGroupSize = kStrips * kStripSize;  // floats of a group in one column block

// Eight columns of row s and, with 16 lanes, of row s + 4.
struct Strip {
  VStrip part[kStripParts];
};

HWY_INLINE Strip load_strip(const float* from) {
  Strip s;
  for (std::int64_t p = 0; p < kStripParts; ++p) {
    s.part[p] = hn::LoadU(d_strip, from + p * kStripLanes);
  }
  return s;
}

HWY_INLINE void store_strip(const Strip& s, float* to) {
  for (std::int64_t p = 0; p < kStripParts; ++p) {
    hn::StoreU(s.part[p], d_strip, to + p * kStripLanes);
  }
}

// rows[0] in the first eight lanes, rows[1], where there is one, in the others. A template, so that a target without
// halves does not compile them.
template <std::int64_t kN>
HWY_INLINE Strip join_rows(const Eight (&rows)[kN]) {
  Strip s;
  if constexpr (kN == 2) {
    s.part[0] = Combine(d_strip, rows[1].part[0], rows[0].part[0]);
  } else {
    for (std::int64_t p = 0; p < kStripParts; ++p) s.part[p] = rows[0].part[p];
  }
  return s;
}

template <class S, std::int64_t kN>
HWY_INLINE void split_rows(const S& s, Eight (&rows)[kN]) {
  if constexpr (kN == 2) {
    rows[0].part[0] = LowerHalf(d8, s.part[0]);
    rows[1].part[0] = UpperHalf(d8, s.part[0]);
  } else {
    for (std::int64_t p = 0; p < kStripParts; ++p) rows[0].part[p] = s.part[p];
  }
}

// The eight elements of a token's vector that go with eight columns, for every row of a strip.
HWY_INLINE Strip load_columns(const float* from) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // One load. Of Combine g++ 12 makes an insertion, which takes a turn of the multiplications' ports; the elements twice
  // in memory take twice the room in L1, and eight tokens 1.05 times as long.
  return {{VStrip{_mm512_broadcast_f32x8(_mm256_loadu_ps(from))}}};
#else
  Eight rows[kStripRows];
  for (std::int64_t i = 0; i < kStripRows; ++i) rows[i] = load8(from);
  return join_rows(rows);
#endif
}

// x in all lanes of row s, x4 in those of row s + 4
HWY_INLINE Strip set_strip(float x, float x4) {
  const Eight values[2] = {set8(x), set8(x4)};
  Eight rows[kStripRows];
  for (std::int64_t i = 0; i < kStripRows; ++i) rows[i] = values[i];
  return join_rows(rows);
}

HWY_INLINE Strip fill_strip(float x) {
  Strip r;
  for (VStrip& part : r.part) part = hn::Set(d_strip, x);
  return r;
}

HWY_INLINE Strip mul_strip(const Strip& a, const Strip& b) {
  Strip r;
  for (std::int64_t p = 0; p < kStripParts; ++p) r.part[p] = hn::Mul(a.part[p], b.part[p]);
  return r;
}

HWY_INLINE Strip add_strip(const Strip& a, const Strip& b) {
  Strip r;
  for (std::int64_t p = 0; p < kStripParts; ++p) r.part[p] = hn::Add(a.part[p], b.part[p]);
  return r;
}

HWY_INLINE Strip mul_add_strip(const Strip& a, const Strip& b, const Strip& c) {
  Strip r;
  for (std::int64_t p = 0; p < kStripParts; ++p) {
    r.part[p] = hn::MulAdd(a.part[p], b.part[p], c.part[p]);
  }
  return r;
}

// What a sweep needs to know of a token. Vectors of key_dim end in zeros up to a multiple of eight.
struct Token {
  const float* key;     // normalised
  const float* query;   // normalised
  const float* decays;  // per key; null: factor holds
  float factor, beta, key_query;
};

// The products of a group's rows with key and query.
using DRows = hn::CappedTag<float, kRows>;
constexpr DRows d_rows;
constexpr std::int64_t kRowParts = kRows / static_cast<std::int64_t>(hn::MaxLanes(d_rows));

struct Sums {
  hn::Vec<DRows> recalled[kRowParts], queried[kRowParts];
};

#if HWY_TARGET != HWY_SCALAR
// First level of the tree for two sums of a strip: in blocks of four lanes [a row s, a row s + 4, b row s, b row s + 4].
HWY_INLINE VStrip fold_halves(VStrip a, VStrip b) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // Two shuffles of both: Highway's blocks of one vector would take two selections and a shuffle.
  return hn::Add(VStrip{_mm512_shuffle_f32x4(a.raw, b.raw, 0x88)},
                 VStrip{_mm512_shuffle_f32x4(a.raw, b.raw, 0xdd)});
#else
  return hn::Add(hn::ConcatLowerLower(d_strip, b, a), hn::ConcatUpperUpper(d_strip, b, a));
#endif
}

// Second level, in blocks of four lanes: [u0+u2, u1+u3, v0+v2, v1+v3].
HWY_INLINE VStrip fold_to_pairs(VStrip u, VStrip v) {
  const hn::Repartition<double, DStrip> dd;
  const auto a = hn::BitCast(dd, u), b = hn::BitCast(dd, v);
  return hn::Add(hn::BitCast(d_strip, hn::InterleaveLower(dd, a, b)),
                 hn::BitCast(d_strip, hn::InterleaveUpper(dd, a, b)));
}

// Third level, of four strips: [w0, w1, w2, w3] in each block.
HWY_INLINE VStrip fold_four(const VStrip (&w)[kStrips]) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const auto x = fold_to_pairs(w[0], w[1]), y = fold_to_pairs(w[2], w[3]);
  return hn::Add(VStrip{_mm512_shuffle_ps(x.raw, y.raw, 0x88)},
                 VStrip{_mm512_shuffle_ps(x.raw, y.raw, 0xdd)});
#else
  const auto x = fold_to_pairs(w[0], w[2]), y = fold_to_pairs(w[1], w[3]);
  return hn::OddEven(hn::Add(y, hn::Shuffle2301(y)), hn::Add(x, hn::Shuffle2301(x)));
#endif
}
#endif

// Assigns where the types agree, which they do on the targets that run it.
template <class To, class From>
HWY_INLINE void assign([[maybe_unused]] To& to, [[maybe_unused]] const From& from) {
  if constexpr (std::is_same_v<To, From>) to = from;
}

// A template, as split_rows is.
template <class V>
HWY_INLINE void split_sums(V folded, Sums& sums) {
  sums.recalled[0] = LowerHalf(d_rows, folded);
  sums.queried[0] = UpperHalf(d_rows, folded);
}

// The tree of sum8 over all of a group's sums at once: a third of the instructions of one by one.
HWY_INLINE void add_partials(const Strip (&r)[kStrips], const Strip (&p)[kStrips], Sums& sums) {
#if HWY_TARGET == HWY_SCALAR
  for (int s = 0; s < kStrips; ++s) {
    Eight row[1];
    split_rows(r[s], row);
    sums.recalled[s] = hn::Set(d_rows, sum8(row[0]));
    split_rows(p[s], row);
    sums.queried[s] = hn::Set(d_rows, sum8(row[0]));
  }
#else
  VStrip w[kStrips];
  if constexpr (kStripParts == 1) {
    for (int s = 0; s < kStrips; ++s) w[s] = fold_halves(r[s].part[0], p[s].part[0]);
    split_sums(fold_four(w), sums);
  } else {
    for (int s = 0; s < kStrips; ++s) w[s] = hn::Add(r[s].part[0], r[s].part[kStripParts - 1]);
    assign(sums.recalled[0], fold_four(w));
    for (int s = 0; s < kStrips; ++s) w[s] = hn::Add(p[s].part[0], p[s].part[kStripParts - 1]);
    assign(sums.queried[0], fold_four(w));
  }
#endif
}

// Where a sweep finds or leaves a group: whole rows of the state in memory, the tile, or nowhere.
struct InState {
  const float* from;
  float* to;
  std::int64_t key_dim;  // a multiple of 8

  HWY_INLINE Strip load(int s, std::int64_t column) const {
    Eight row[kStripRows];
    for (std::int64_t i = 0; i < kStripRows; ++i) {
      row[i] = load8(from + (s + i * kStrips) * key_dim + column);
    }
    return join_rows(row);
  }
  HWY_INLINE void store(const Strip& strip, int s, std::int64_t column) const {
    Eight row[kStripRows];
    split_rows(strip, row);
    for (std::int64_t i = 0; i < kStripRows; ++i) {
      store8(row[i], to + (s + i * kStrips) * key_dim + column);
    }
  }
  // Columns column … column + 15.
  HWY_INLINE void store_line(const Strip (&strip)[2], int s, std::int64_t column) const {
    Eight row[2][kStripRows];
    for (int half = 0; half < 2; ++half) split_rows(strip[half], row[half]);
    for (std::int64_t i = 0; i < kStripRows; ++i) {
      for (int half = 0; half < 2; ++half) {
        store8(row[half][i], to + (s + i * kStrips) * key_dim + column + 8 * half);
      }
    }
  }
};

// The same for a lone token, which fetches as it goes: rows come in order, but a sweep reads several at once, which the
// processor's own prefetching does not see through. 8 KiB ahead, two groups of rows of 128: twice as far costs a tenth
// of the token's time.
struct InStream : InState {
  static constexpr std::int64_t kAhead = 2048;

  HWY_INLINE Strip load(int s, std::int64_t column) const {
    if (s * kStripSize % 16 == 0) {  // once a cache line
      hwy::Prefetch(from + kAhead + column * kRows + s * kStripSize);
    }
    return InState::load(s, column);
  }
};

struct InTile {
  float* group;

  HWY_INLINE Strip load(int s, std::int64_t column) const {
    return load_strip(group + column * kRows + s * kStripSize);
  }
  HWY_INLINE void store(const Strip& strip, int s, std::int64_t column) const {
    store_strip(strip, group + column * kRows + s * kStripSize);
  }
};

struct Nowhere {
  HWY_INLINE void store(const Strip&, int, std::int64_t) const {}
};

// The one sweep: applies `now` with its deltas (kUpdate), then sums the rows for `next` (kSum).
template <bool kUpdate, bool kSum, bool kPerKey, class From, class To>
HWY_INLINE void sweep(const From& from, const To& to, std::int64_t padded, const Token& now,
                      const float* delta, const Token& next, Sums& sums) {
  // Locals: the compiler cannot know that a store into the state leaves the tokens alone.
  const float *const key_now = now.key, *const decays_now = now.decays;
  const float *const key = next.key, *const query = next.query, *const decays = next.decays;
  const Strip factor = fill_strip(now.factor);
  Strip r[kStrips], p[kStrips], change[kStrips];
  for (int s = 0; s < kStrips; ++s) {
    r[s] = p[s] = fill_strip(0.0f);
    if constexpr (kUpdate) change[s] = set_strip(delta[s], delta[s + kRows - kStrips]);
  }
  for (std::int64_t i = 0; i < padded; i += 8) {
    Strip k_now, k, q;
    if constexpr (kUpdate) k_now = load_columns(key_now + i);
    if constexpr (kSum) k = load_columns(key + i), q = load_columns(query + i);
    for (int s = 0; s < kStrips; ++s) {
      Strip x = from.load(s, i);
      if constexpr (kUpdate) {
        const Strip a = kPerKey ? load_columns(decays_now + i) : factor;
        x = add_strip(mul_strip(a, x), mul_strip(k_now, change[s]));
      }
      to.store(x, s, i);
      if constexpr (kSum) {
        if constexpr (kPerKey) x = mul_strip(load_columns(decays + i), x);
        r[s] = mul_add_strip(x, k, r[s]);
        p[s] = mul_add_strip(x, q, p[s]);
      }
    }
  }
  if constexpr (kSum) add_partials(r, p, sums);
}

// The last sweep, into the state's rows of whole cache lines: a processor stores two halves of one line in a cycle, of two
// lines it does not.
template <bool kPerKey>
HWY_INLINE void update_state(const InTile& tile, const InState& state, const Token& now,
                             const float* delta) {
  const float *const key = now.key, *const decays = now.decays;
  const Strip factor = fill_strip(now.factor);
  Strip change[kStrips];
  for (int s = 0; s < kStrips; ++s) change[s] = set_strip(delta[s], delta[s + kRows - kStrips]);
  for (std::int64_t i = 0; i < state.key_dim; i += 16) {
    const Strip k[2] = {load_columns(key + i), load_columns(key + i + 8)};
    for (int s = 0; s < kStrips; ++s) {
      Strip x[2];
      for (int half = 0; half < 2; ++half) {
        const Strip a = kPerKey ? load_columns(decays + i + 8 * half) : factor;
        x[half] =
            add_strip(mul_strip(a, tile.load(s, i + 8 * half)), mul_strip(k[half], change[s]));
      }
      state.store_line(x, s, i);
    }
  }
}

// The update of a group of whole rows for a token that is alone, memory to memory: without sums rows
// need no strips, and vectors fill whole cache lines. A group's changes stay in registers over all
// columns, a multiple of kStripLanes.
class RowUpdate {
 public:
  HWY_INLINE RowUpdate(const InStream& state, const Token& now, const float* delta)
      : state_(state), key_(now.key), decays_(now.decays) {
    factor_ = hn::Set(d_strip, now.factor);
    for (std::int64_t row = 0; row < kRows; ++row) change_[row] = hn::Set(d_strip, delta[row]);
  }

  // Columns i … i + kStripLanes − 1 of all rows.
  template <bool kPerKey>
  HWY_INLINE void columns(std::int64_t i) const {
    const auto k = hn::LoadU(d_strip, key_ + i);
    const auto a = kPerKey ? hn::LoadU(d_strip, decays_ + i) : factor_;
    for (std::int64_t row = 0; row < kRows; ++row) {
      const std::int64_t at = row * state_.key_dim + i;
      if (state_.from != state_.to) hwy::Prefetch(state_.to + InStream::kAhead + at);
      const auto decayed = hn::Mul(a, hn::LoadU(d_strip, state_.from + at));
      hn::StoreU(hn::Add(decayed, hn::Mul(k, change_[row])), d_strip, state_.to + at);
    }
  }

 private:
  InStream state_;
  const float* key_;
  const float* decays_;
  VStrip factor_, change_[kRows];
};

template <bool kPerKey>
HWY_INLINE void update_rows(const InStream& state, const Token& now, const float* delta) {
  const RowUpdate update(state, now, delta);
  for (std::int64_t i = 0; i < state.key_dim; i += kStripLanes) update.columns<kPerKey>(i);
}

// Sums a group for the one token of a call while another group, whose deltas are known, is updated
// (`now` is the token of that group's head): the reads of the one and the writes of the other keep
// the memory busy in both directions. key_dim is a multiple of kStripLanes.
template <bool kPerKey>
HWY_INLINE void sum_and_update(const InStream& summed, const Token& token, const InStream& updated,
                               const Token& now, const float* delta, Sums& sums) {
  constexpr std::int64_t kStep = std::max<std::int64_t>(8, kStripLanes);
  const RowUpdate update(updated, now, delta);
  const float *const key = token.key, *const query = token.query, *const decays = token.decays;
  Strip r[kStrips], p[kStrips];
  for (int s = 0; s < kStrips; ++s) r[s] = p[s] = fill_strip(0.0f);
  for (std::int64_t i = 0; i < summed.key_dim; i += kStep) {
    for (std::int64_t block = i; block < i + kStep; block += 8) {
      const Strip k = load_columns(key + block), q = load_columns(query + block);
      for (int s = 0; s < kStrips; ++s) {
        Strip x = summed.load(s, block);
        if constexpr (kPerKey) x = mul_strip(load_columns(decays + block), x);
        r[s] = mul_add_strip(x, k, r[s]);
        p[s] = mul_add_strip(x, q, p[s]);
      }
    }
    for (std::int64_t column = i; column < i + kStep; column += kStripLanes) {
      update.columns<kPerKey>(column);
    }
  }
  add_partials(r, p, sums);
}

// A group that is not whole, between memory and the tile: `rows` rows of key_dim columns, zeros around them.
HWY_INLINE float* in_group(float* group, std::int64_t row, std::int64_t column) {
  const std::int64_t strip = row % kStrips, half = row / kStrips;
  return group + column / 8 * kGroupSize + strip * kStripSize + half * 8 + column % 8;
}

inline void read_ragged(const float* state, std::int64_t rows, std::int64_t key_dim, float* group) {
  for (std::int64_t i = 0; i < (key_dim + 7) / 8 * 8; ++i) {
    for (std::int64_t row = 0; row < kRows; ++row) {
      const bool exists = row < rows && i < key_dim;
      *in_group(group, row, i) = exists ? state[row * key_dim + i] : 0.0f;
    }
  }
}

// An infinite delta times the zero keys of the columns behind key_dim left NaNs there, which the next
// sums would take in.
inline void clear_padding(float* group, std::int64_t key_dim) {
  for (std::int64_t i = key_dim; i < (key_dim + 7) / 8 * 8; ++i) {
    for (std::int64_t row = 0; row < kRows; ++row) *in_group(group, row, i) = 0.0f;
  }
}

inline void write_ragged(float* group, std::int64_t rows, std::int64_t key_dim, float* state) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t i = 0; i < key_dim; ++i) state[row * key_dim + i] = *in_group(group, row, i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

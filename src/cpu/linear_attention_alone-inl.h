// One token over the K-major states of several heads.
//
// A state passes in blocks of columns, whole rows at key heads of 128. While a block is summed, the one before,
// whose change is known by then, is updated: the reads of the one and the writes of the other keep the
// memory busy in both directions (two passes in turn take a fifth longer). What waits in L1 are the sums; four
// rows of a partial sum share their way there.
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "cpu/linear_attention_panel-inl.h"
#include "cpu/load-inl.h"

#if defined(DELTAWORKS_CPU_LINEAR_ATTENTION_ALONE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_LINEAR_ATTENTION_ALONE_INL_H_
#undef DELTAWORKS_CPU_LINEAR_ATTENTION_ALONE_INL_H_
#else
#define DELTAWORKS_CPU_LINEAR_ATTENTION_ALONE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Flat = hn::CappedTag<float, 16>;
constexpr std::int64_t kFlatLanes = hn::MaxLanes(Flat());

// The eight partial sums of some columns, with the key and with the query.
struct FlatSums {
  float* memory;
  std::int64_t padded;  // columns, in whole vectors

  float* recalled(std::int64_t partial) const { return memory + 2 * partial * padded; }
  float* queried(std::int64_t partial) const { return recalled(partial) + padded; }
};

// A block of a state's columns on its way from one place to another, and its token.
template <class S>
struct AloneBlock {
  const S* from;
  S* to;
  std::int64_t count, row_stride;
  Token token;
  const float* change;
  bool fetches;  // rows that are written
};

// The shape of a block: kCount fixes it at so many columns that fill their rows, unless it is 0. A constant turns the
// addresses of a block's rows into one.
template <std::int64_t kCount, class S>
struct AloneShape {
  std::int64_t count, row_stride;

  HWY_INLINE explicit AloneShape(const AloneBlock<S>& block)
      : count(kCount > 0 ? kCount : block.count),
        row_stride(kCount > 0 ? kCount : block.row_stride) {}
  HWY_INLINE std::size_t lanes_at(std::int64_t v) const {
    return static_cast<std::size_t>(kCount > 0 ? kFlatLanes : std::min(kFlatLanes, count - v));
  }
};

constexpr std::int64_t kChunk = 32;  // rows: four of each partial sum

// Fetches what comes a chunk later into the second-level cache, once a line. Only where the update writes elsewhere: the
// rows that are read lie in ascending order in four pages at a time, which the processor follows by itself, faster where
// states stay in the caches (6 %) and as fast from memory.
template <class S>
HWY_INLINE void fetch_later(const S* row, std::int64_t row_stride, std::int64_t v) {
  if (v % (64 / static_cast<std::int64_t>(sizeof(S))) == 0) fetch(row + kChunk * row_stride + v);
}

// Adds rows first, first + 8, … (kRows of them), which share a partial sum.
template <int kRows, bool kPerKey, std::int64_t kCount, class S>
HWY_INLINE void sum_rows(const AloneBlock<S>& block, std::int64_t first, const FlatSums& sums) {
  const Flat d;
  const AloneShape<kCount, S> shape(block);
  hn::Vec<Flat> k[kRows], q[kRows], a[kRows];
  for (int m = 0; m < kRows; ++m) {
    k[m] = hn::Set(d, block.token.key[first + 8 * m]);
    q[m] = hn::Set(d, block.token.query[first + 8 * m]);
    a[m] = kPerKey ? hn::Set(d, block.token.decays[first + 8 * m]) : hn::Zero(d);
  }
  const S* const rows = block.from + first * shape.row_stride;
  const std::int64_t padded = kCount > 0 ? kCount : sums.padded;
  float* const recalled = sums.memory + 2 * (first % 8) * padded;
  float* const queried = recalled + padded;
  for (std::int64_t v = 0; v < shape.count; v += kFlatLanes) {
    auto r = hn::Load(d, recalled + v), p = hn::Load(d, queried + v);
    for (int m = 0; m < kRows; ++m) {
      const S* const row = rows + 8 * m * shape.row_stride;
      auto x = load_lanes(d, row + v, shape.lanes_at(v));
      if constexpr (kPerKey) x = hn::Mul(a[m], x);
      r = hn::MulAdd(x, k[m], r);
      p = hn::MulAdd(x, q[m], p);
    }
    hn::Store(r, d, recalled + v);
    hn::Store(p, d, queried + v);
  }
}

// The update of a block; its changes stay in registers where there are enough.
template <bool kPerKey, std::int64_t kCount, class S>
class AloneUpdate {
 public:
  HWY_INLINE explicit AloneUpdate(const AloneBlock<S>& block) : block_(block), shape_(block) {
    factor_ = hn::Set(Flat(), block.token.factor);
    for (std::int64_t v = 0; v < kColumns; v += kFlatLanes)
      change_[v / kFlatLanes] = hn::Load(Flat(), block.change + v);
  }

  HWY_INLINE void rows(std::int64_t first, std::int64_t count) const {
    const Flat d;
    for (std::int64_t i = first; i < first + count; ++i) {
      const S* const from = block_.from + i * shape_.row_stride;
      S* const to = block_.to + i * shape_.row_stride;
      const auto k = hn::Set(d, block_.token.key[i]);
      const auto a = kPerKey ? hn::Set(d, block_.token.decays[i]) : factor_;
      for (std::int64_t v = 0; v < shape_.count; v += kFlatLanes) {
        // A store that waits for its line holds up those behind it.
        if (block_.fetches) fetch_later(to, shape_.row_stride, v);
        const std::size_t n = shape_.lanes_at(v);
        const auto decayed = hn::Mul(a, load_lanes(d, from + v, n));
        store_lanes(hn::MulAdd(k, change_[v / kFlatLanes], decayed), d, to + v, n);
      }
    }
  }

 private:
  static constexpr std::int64_t kColumns = kCount > 0 ? kCount : kAlone;

  AloneBlock<S> block_;
  AloneShape<kCount, S> shape_;
  hn::Vec<Flat> factor_, change_[kColumns / kFlatLanes];
};

// Sums one block (kSum) and updates another one (kUpdate).
template <bool kSum, bool kUpdate, bool kPerKey, std::int64_t kCount, class S>
HWY_NOINLINE void pass(const AloneBlock<S> summed, const AloneBlock<S> updated,
                       std::int64_t key_dim, const FlatSums sums) {
  const AloneUpdate<kPerKey, kCount, S> update(updated);
  if constexpr (kSum) std::fill_n(sums.memory, 16 * sums.padded, 0.0f);
  std::int64_t i = 0;
  for (; i + kChunk <= key_dim; i += kChunk) {
    for (int j = 0; j < 8; ++j) {
      if constexpr (kSum) sum_rows<4, kPerKey, kCount>(summed, i + j, sums);
      if constexpr (kUpdate) update.rows(i + 4 * j, 4);
    }
  }
  for (; i < key_dim; ++i) {
    if constexpr (kSum) sum_rows<1, kPerKey, kCount>(summed, i, sums);
    if constexpr (kUpdate) update.rows(i, 1);
  }
}

// Heads of 128 and of 64 columns have a pass of their own.
template <bool kSum, bool kUpdate, class S>
HWY_INLINE void pass(const AloneBlock<S>& summed, const AloneBlock<S>& updated,
                     std::int64_t key_dim, const FlatSums& sums) {
  constexpr std::int64_t kHalf = kAlone / 2;
  const auto fills = [&](std::int64_t columns) {
    return summed.count == columns && summed.row_stride == columns;
  };
  const auto run = [&]<bool kPerKey>() {
    const auto of = fills(kAlone)  ? pass<kSum, kUpdate, kPerKey, kAlone, S>
                    : fills(kHalf) ? pass<kSum, kUpdate, kPerKey, kHalf, S>
                                   : pass<kSum, kUpdate, kPerKey, 0, S>;
    of(summed, updated, key_dim, sums);
  };
  if (summed.token.decays != nullptr) {
    run.template operator()<true>();
  } else {
    run.template operator()<false>();
  }
}

// The tree over the eight partial sums of a vector of columns.
HWY_INLINE hn::Vec<Flat> add_partials(const float* partials, std::int64_t padded) {
  const auto of = [&](int i) HWY_ATTR { return hn::Load(Flat(), partials + 2 * i * padded); };
  return hn::Add(hn::Add(hn::Add(of(0), of(4)), hn::Add(of(2), of(6))),
                 hn::Add(hn::Add(of(1), of(5)), hn::Add(of(3), of(7))));
}

// From the sums of a block: the token's change from its value, and its output. Without a value the change is there
// already, and another query reads the state.
template <class T>
HWY_INLINE void finish_alone(const Token& token, bool recalls, float scale, std::int64_t count,
                             const FlatSums& sums, const T* value, float* change, T* output) {
  const Flat d;
  const auto factor = hn::Set(d, token.factor);
  for (std::int64_t v = 0; v < count; v += kFlatLanes) {
    const auto n = static_cast<std::size_t>(std::min(kFlatLanes, count - v));
    auto recalled = add_partials(sums.recalled(0) + v, sums.padded);
    auto queried = add_partials(sums.queried(0) + v, sums.padded);
    if (token.decays == nullptr) {
      recalled = hn::Mul(factor, recalled);
      queried = hn::Mul(factor, queried);
    }
    hn::Vec<Flat> delta;
    if (value != nullptr) {
      delta = load_lanes(d, value + v, n);
      if (recalls) delta = hn::Sub(delta, recalled);
      delta = hn::Mul(hn::Set(d, token.beta), delta);
      hn::Store(delta, d, change + v);
    } else {
      delta = hn::Load(d, change + v);
    }
    const auto read = hn::Add(queried, hn::Mul(hn::Set(d, token.key_query), delta));
    store_lanes(hn::Mul(hn::Set(d, scale), read), d, output + v, n);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

// One token over a K-major state in memory.
//
// The state passes once for its sums and once for its update, row after row as it lies in memory, which
// prefetching follows; what waits in L1 are the sums. Four rows of a partial sum share its way there.
#include <hwy/cache_control.h>
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

// Adds rows first, first + 8, … (kCount of them), which share a partial sum. kWhole: columns in whole
// vectors. `soon` is where the update will write, when that is elsewhere: its lines come along.
template <int kCount, bool kPerKey, bool kWhole, class S>
HWY_INLINE void sum_rows(const S* from, const S* soon, const Columns& columns, std::int64_t first,
                         const Token& token, const FlatSums& sums) {
  const Flat d;
  hn::Vec<Flat> k[kCount], q[kCount], a[kCount];
  for (int m = 0; m < kCount; ++m) {
    k[m] = hn::Set(d, token.key[first + 8 * m]);
    q[m] = hn::Set(d, token.query[first + 8 * m]);
    a[m] = kPerKey ? hn::Set(d, token.decays[first + 8 * m]) : hn::Zero(d);
  }
  float *const recalled = sums.recalled(first % 8), *const queried = sums.queried(first % 8);
  const std::int64_t stride = 8 * columns.row_stride, count = columns.count;
  const S* const row = from + first * columns.row_stride;
  if (soon != nullptr) {
    for (std::int64_t v = 0; v < count; v += 64 / static_cast<std::int64_t>(sizeof(S))) {
      for (int m = 0; m < kCount; ++m)
        hwy::Prefetch(soon + first * columns.row_stride + m * stride + v);
    }
  }
  for (std::int64_t v = 0; v < count; v += kFlatLanes) {
    const std::size_t n = kWhole ? hn::Lanes(d) : columns.lanes_at(v);
    auto r = hn::Load(d, recalled + v), p = hn::Load(d, queried + v);
    for (int m = 0; m < kCount; ++m) {
      auto x = load_float_n(d, row + m * stride + v, n);
      if constexpr (kPerKey) x = hn::Mul(a[m], x);
      r = hn::MulAdd(x, k[m], r);
      p = hn::MulAdd(x, q[m], p);
    }
    hn::Store(r, d, recalled + v);
    hn::Store(p, d, queried + v);
  }
}

// Leaves Sᵀ k in sums.recalled(0) and Sᵀ q in sums.queried(0).
template <bool kPerKey, bool kWhole, class S>
HWY_NOINLINE void sum_state(const S* from, const S* soon, const Columns& columns,
                            std::int64_t key_dim, const Token& token, const FlatSums& sums) {
  const Flat d;
  std::fill_n(sums.memory, 16 * sums.padded, 0.0f);
  std::int64_t i = 0;
  for (; i + 32 <= key_dim; i += 32) {
    for (int j = 0; j < 8; ++j)
      sum_rows<4, kPerKey, kWhole>(from, soon, columns, i + j, token, sums);
  }
  for (; i < key_dim; ++i) sum_rows<1, kPerKey, kWhole>(from, soon, columns, i, token, sums);
  for (std::int64_t v = 0; v < 2 * sums.padded; v += kFlatLanes) {
    const auto of = [&](int partial) HWY_ATTR { return hn::Load(d, sums.recalled(partial) + v); };
    const auto even = hn::Add(hn::Add(of(0), of(4)), hn::Add(of(2), of(6)));
    const auto odd = hn::Add(hn::Add(of(1), of(5)), hn::Add(of(3), of(7)));
    hn::Store(hn::Add(even, odd), d, sums.memory + v);
  }
}

template <class S>
HWY_INLINE void sum_state(const S* from, const S* soon, const Columns& columns,
                          std::int64_t key_dim, const Token& token, const FlatSums& sums) {
  const bool whole = columns.count == sums.padded, per_key = token.decays != nullptr;
  const auto run = per_key ? (whole ? sum_state<true, true, S> : sum_state<true, false, S>)
                           : (whole ? sum_state<false, true, S> : sum_state<false, false, S>);
  run(from, soon, columns, key_dim, token, sums);
}

template <bool kWhole, class S>
HWY_NOINLINE void update_state(const S* from, S* to, const Columns& columns, std::int64_t key_dim,
                               const Token& token, const float* change) {
  const Flat d;
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(S));
  const std::int64_t count = columns.count;
  const S* const next = from + key_dim * columns.row_stride;  // the next head
  for (std::int64_t i = 0; i < key_dim; ++i) {
    const std::int64_t offset = i * columns.row_stride;
    const auto k = hn::Set(d, token.key[i]);
    const auto a = hn::Set(d, token.decays ? token.decays[i] : token.factor);
    for (std::int64_t v = 0; v < count; v += kLine) hwy::Prefetch(next + offset + v);
    for (std::int64_t v = 0; v < count; v += kFlatLanes) {
      const std::size_t n = kWhole ? hn::Lanes(d) : columns.lanes_at(v);
      const auto decayed = hn::Mul(a, load_float_n(d, from + offset + v, n));
      const auto updated = hn::Add(decayed, hn::Mul(k, hn::Load(d, change + v)));
      store_float_n(updated, d, to + offset + v, n);
    }
  }
}

// From the sums: the token's change from its value (kChange), and its output, in place of the sums.
template <bool kChange>
HWY_INLINE void finish_alone(const Token& token, bool recalls, float scale, std::int64_t padded,
                             const FlatSums& sums, float* change) {
  const Flat d;
  const auto factor = hn::Set(d, token.factor);
  for (std::int64_t v = 0; v < padded; v += kFlatLanes) {
    auto recalled = hn::Load(d, sums.recalled(0) + v), queried = hn::Load(d, sums.queried(0) + v);
    if (token.decays == nullptr) {
      recalled = hn::Mul(factor, recalled);
      queried = hn::Mul(factor, queried);
    }
    auto delta = hn::Load(d, change + v);
    if constexpr (kChange) {
      if (recalls) delta = hn::Sub(delta, recalled);
      delta = hn::Mul(hn::Set(d, token.beta), delta);
      hn::Store(delta, d, change + v);
    }
    const auto read = hn::Add(queried, hn::Mul(hn::Set(d, token.key_query), delta));
    hn::Store(hn::Mul(hn::Set(d, scale), read), d, sums.queried(0) + v);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

// A panel of state columns and the sweeps of the recurrent engine for K-major states over it.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "contract/gated_delta_net.hpp"
#include "cpu/load-inl.h"

#if defined(DELTAWORKS_CPU_LINEAR_ATTENTION_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_LINEAR_ATTENTION_PANEL_INL_H_
#undef DELTAWORKS_CPU_LINEAR_ATTENTION_PANEL_INL_H_
#else
#define DELTAWORKS_CPU_LINEAR_ATTENTION_PANEL_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kMaxBlock = 64;         // tokens
constexpr std::int64_t kPanelFloats = 16384;   // 64 KiB; with 128 rows a panel takes 16
constexpr std::int64_t kVectorFloats = 16384;  // a block's keys, queries and factors: 64 KiB
constexpr std::int64_t kAlone = 128;           // columns at a time, for one token
static_assert(kVectorFloats >= 4 * contract::kMaxKeyDim, "one token and a further query must fit");

// The columns that pass together. Sums of two rows and of as many columns as the registers hold: chains enough to hide
// the latency of fma, and a row's scalars serve several columns.
template <class D_, int kCount>
struct Panel {
  using D = D_;
  static constexpr int kColumns = kCount;
  static constexpr std::int64_t kLanes = hn::MaxLanes(D());
  static constexpr std::int64_t kWidth = kCount * kLanes;
};
using Wide = Panel<hn::CappedTag<float, 16>, HWY_TARGET == HWY_AVX3 ? 4 : 2>;
using Narrow = Panel<hn::CappedTag<float, 8>, 1>;  // of keys too long for a wide one
static_assert(Narrow::kWidth * contract::kMaxKeyDim <= kPanelFloats);

struct Token {
  const float* key;
  const float* query;
  const float* decays;  // per key; null: factor holds
  float factor, beta, key_query;

  Token from(std::int64_t i) const {
    return {key + i, query + i, decays ? decays + i : nullptr, factor, beta, key_query};
  }
};

// What a task keeps on its stack.
struct Scratch {
  HWY_ALIGN float state[kPanelFloats];
  HWY_ALIGN float vectors[kVectorFloats];
  HWY_ALIGN float change[2 * kAlone];
  Token token[kMaxBlock];
};

// One head's columns of a state, or of values and outputs: `count` columns from `first` on.
struct Columns {
  std::int64_t first, count, row_stride;

  // Of the c-th vector of a panel; all of them when kWhole.
  template <class P, bool kWhole>
  HWY_INLINE std::size_t in_vector(int c) const {
    const auto left = std::clamp<std::int64_t>(count - c * P::kLanes, 0, P::kLanes);
    return static_cast<std::size_t>(kWhole ? P::kLanes : left);
  }
  // From a panel's row to that of the next panel, which lies beside it or opens the next head.
  template <class P>
  std::int64_t ahead(std::int64_t key_dim) const {
    return first + P::kWidth < row_stride ? P::kWidth : key_dim * row_stride - first;
  }
};

// Into the second-level cache.
template <class T>
HWY_INLINE void fetch(const T* from) {
  __builtin_prefetch(from, 0, 2);
}

// Targets that load and store some lanes of a vector. Copying them one by one (load_float_n) takes as long as ten rows.
constexpr bool kHasMasks = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2;  // lower is better

// load_float_n and store_float_n, by masks where a row of floats has them.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_lanes(D d, const T* from, std::size_t n) {
  if constexpr (kHasMasks && std::is_same_v<T, float>) {
    if (n < hn::Lanes(d)) return hn::MaskedLoad(hn::FirstN(d, n), d, from);
  }
  return load_float_n(d, from, n);
}

template <class D, class T>
HWY_INLINE void store_lanes(hn::Vec<D> v, D d, T* to, std::size_t n) {
  if constexpr (kHasMasks && std::is_same_v<T, float>) {
    if (n < hn::Lanes(d)) return hn::BlendedStore(v, hn::FirstN(d, n), d, to);
  }
  store_float_n(v, d, to, n);
}

// A sweep passes the rows of one i mod 4 after another: row group + 4 n is the n-th of its group.
//
// In a panel those of a group lie behind one another. (In their own order they would be 4 KiB apart
// every few rows, and loads would wait for stores to addresses that look alike.)
template <class P>
struct InPanel {
  float* state;
  std::int64_t key_dim;

  HWY_INLINE InPanel group(std::int64_t g) const {
    return {state + (g * (key_dim / 4) + std::min(g, key_dim % 4)) * P::kWidth, key_dim};
  }
  HWY_INLINE hn::Vec<typename P::D> load(std::int64_t n, int c) const {
    return hn::Load(typename P::D(), state + n * P::kWidth + c * P::kLanes);
  }
  HWY_INLINE void store(hn::Vec<typename P::D> x, std::int64_t n, int c) const {
    hn::Store(x, typename P::D(), state + n * P::kWidth + c * P::kLanes);
  }
};

// In memory they are 4 rows apart.
template <class P, bool kWhole, class S>
struct InState {
  const S* from;
  S* to;
  Columns columns;
  std::int64_t ahead;

  HWY_INLINE InState group(std::int64_t g) const {
    const std::int64_t offset = g * columns.row_stride;
    return {from + offset, to + offset, columns, ahead};
  }
  HWY_INLINE hn::Vec<typename P::D> load(std::int64_t n, int c) const {
    const S* const at = from + 4 * n * columns.row_stride + c * P::kLanes;
    constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(S));
    if (c * P::kLanes % kLine == 0) fetch(at + ahead);
    return load_lanes(typename P::D(), at, columns.in_vector<P, kWhole>(c));
  }
  HWY_INLINE void store(hn::Vec<typename P::D> x, std::int64_t n, int c) const {
    // Four rows of the group ahead: a store that waits for its line holds up those behind it.
    hwy::Prefetch(to + 4 * (n + 4) * columns.row_stride + c * P::kLanes);
    store_lanes(x, typename P::D(), to + 4 * n * columns.row_stride + c * P::kLanes,
                columns.in_vector<P, kWhole>(c));
  }
};

template <class P>
struct Sums {
  hn::Vec<typename P::D> recalled[P::kColumns], queried[P::kColumns];
};

template <class P>
struct Change {
  hn::Vec<typename P::D> column[P::kColumns];
};

enum class Sweep { kRead, kMove, kUpdate };

// x, held in a register: g++ 12 would load it again for each use, and loads would bound a sweep.
template <class V>
HWY_INLINE V in_register(V x) {
#if HWY_ARCH_X86 && HWY_COMPILER_GCC
  asm("" : "+v"(x.raw));
#endif
  return x;
}

template <class D>
HWY_INLINE hn::Vec<D> broadcast(D d, float x) {
  return in_register(hn::Set(d, x));
}

// What a sweep does to a row: moves it (kMove), or applies `now` with its change (kUpdate), then adds it to
// the sums of `next`. Vectors of tokens begin at the row's group, too.
template <Sweep kSweep, bool kPerKey, class P, class From, class To>
HWY_INLINE void pass_row(const From& from, const To& to, std::int64_t n, const Token& now,
                         hn::Vec<typename P::D> factor, const Change<P>& change, const Token& next,
                         Sums<P>& sums) {
  const typename P::D d;
  auto a = factor, k_now = factor, a_next = factor;
  if constexpr (kSweep == Sweep::kUpdate) k_now = broadcast(d, now.key[4 * n]);
  if constexpr (kSweep == Sweep::kUpdate && kPerKey) a = broadcast(d, now.decays[4 * n]);
  if constexpr (kPerKey) a_next = broadcast(d, next.decays[4 * n]);
  const auto k = broadcast(d, next.key[4 * n]), q = broadcast(d, next.query[4 * n]);
  for (int c = 0; c < P::kColumns; ++c) {
    auto x = from.load(n, c);
    if constexpr (kSweep == Sweep::kUpdate) x = hn::MulAdd(k_now, change.column[c], hn::Mul(a, x));
    if constexpr (kSweep != Sweep::kRead) to.store(x, n, c);
    if constexpr (kPerKey) x = hn::Mul(a_next, x);
    sums.recalled[c] = hn::MulAdd(x, k, sums.recalled[c]);
    sums.queried[c] = hn::MulAdd(x, q, sums.queried[c]);
  }
}

// Sᵀ k and Sᵀ q.
template <Sweep kSweep, bool kPerKey, class P, class From, class To>
HWY_INLINE Sums<P> sweep(const From& all, const To& all_to, std::int64_t key_dim, const Token& now,
                         const Change<P>& change, const Token& next) {
  const typename P::D d;
  const auto factor = broadcast(d, now.factor);
  Change<P> by;
  for (int c = 0; c < P::kColumns; ++c) by.column[c] = in_register(change.column[c]);
  HWY_ALIGN float partial[4][2 * P::kWidth];  // row i, then i + 4, added to partial i mod 4
  for (std::int64_t group = 0; group < 4; ++group) {
    const From from = all.group(group);
    const To to = all_to.group(group);
    const Token update = now.from(group), sum = next.from(group);
    const std::int64_t count = (key_dim - group + 3) / 4;
    Sums<P> low, high;
    for (int c = 0; c < P::kColumns; ++c) {
      low.recalled[c] = low.queried[c] = high.recalled[c] = high.queried[c] = hn::Zero(d);
    }
    std::int64_t n = 0;
    for (; n + 1 < count; n += 2) {
      pass_row<kSweep, kPerKey, P>(from, to, n, update, factor, by, sum, low);
      pass_row<kSweep, kPerKey, P>(from, to, n + 1, update, factor, by, sum, high);
    }
    if (n < count) pass_row<kSweep, kPerKey, P>(from, to, n, update, factor, by, sum, low);
    for (int c = 0; c < P::kColumns; ++c) {
      float* const at = partial[group] + c * P::kLanes;
      hn::Store(hn::Add(low.recalled[c], high.recalled[c]), d, at);
      hn::Store(hn::Add(low.queried[c], high.queried[c]), d, at + P::kWidth);
    }
  }
  Sums<P> sums;
  for (int c = 0; c < P::kColumns; ++c) {
    const auto total = [&](std::int64_t at) HWY_ATTR {
      const auto of = [&](int group) HWY_ATTR { return hn::Load(d, partial[group] + at); };
      return hn::Add(hn::Add(of(0), of(2)), hn::Add(of(1), of(3)));
    };
    sums.recalled[c] = total(c * P::kLanes);
    sums.queried[c] = total(P::kWidth + c * P::kLanes);
  }
  return sums;
}

// The last update of rows, on their way from one place to another: four groups side by side, so that they leave in their
// order in memory.
template <class P, class From, class To>
HWY_NOINLINE void update_rows(const From from, const To to, std::int64_t key_dim, const Token now,
                              const Change<P>& change) {
  const typename P::D d;
  const Change<P> by = change;
  const auto factor = hn::Set(d, now.factor);
  const From in[] = {from.group(0), from.group(1), from.group(2), from.group(3)};
  const To out[] = {to.group(0), to.group(1), to.group(2), to.group(3)};
  const auto row = [&](int group, std::int64_t n) HWY_ATTR {
    const auto k = hn::Set(d, now.key[4 * n + group]);
    const auto a = now.decays ? hn::Set(d, now.decays[4 * n + group]) : factor;
    for (int c = 0; c < P::kColumns; ++c) {
      const auto decayed = hn::Mul(a, in[group].load(n, c));
      out[group].store(hn::MulAdd(k, by.column[c], decayed), n, c);
    }
  };
  std::int64_t n = 0;
  for (; 4 * n + 4 <= key_dim; ++n) {
    for (int group = 0; group < 4; ++group) row(group, n);
  }
  for (int group = 0; group < key_dim % 4; ++group) row(group, n);
}

// From a token's sums: its change of the state, from its value, and its output. Without a value the change is
// there already, and another query reads the state.
template <class P, bool kWhole, class T>
HWY_INLINE void finish(const Token& token, bool recalls, float scale, const Columns& columns,
                       const Sums<P>& sums, const T* value, Change<P>& change, T* output) {
  const typename P::D d;
  const auto factor = hn::Set(d, token.factor);
  for (int c = 0; c < P::kColumns; ++c) {
    const std::size_t n = columns.in_vector<P, kWhole>(c);
    auto recalled = sums.recalled[c], queried = sums.queried[c];
    if (token.decays == nullptr) {
      recalled = hn::Mul(factor, recalled);
      queried = hn::Mul(factor, queried);
    }
    if (value != nullptr) {
      auto wanted = load_lanes(d, value + c * P::kLanes, n);
      if (recalls) wanted = hn::Sub(wanted, recalled);
      change.column[c] = hn::Mul(hn::Set(d, token.beta), wanted);
    }
    const auto read = hn::Add(queried, hn::Mul(hn::Set(d, token.key_query), change.column[c]));
    store_lanes(hn::Mul(hn::Set(d, scale), read), d, output + c * P::kLanes, n);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

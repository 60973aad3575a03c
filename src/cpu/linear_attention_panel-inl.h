// A panel of state columns and the sweeps of the recurrent engine for K-major states over it.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

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

// The columns that pass together.
template <class D_, int kCount>
struct Panel {
  using D = D_;
  static constexpr int kColumns = kCount;
  static constexpr std::int64_t kLanes = hn::MaxLanes(D());
  static constexpr std::int64_t kWidth = kCount * kLanes;
};
// Two columns, two sums and two rows make the eight chains that hide the latency of fma.
using Wide = Panel<hn::CappedTag<float, 16>, 2>;
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
  HWY_ALIGN float value[std::max(kMaxBlock * Wide::kWidth, 2 * kAlone)];  // then the outputs
  HWY_ALIGN float partial[4][2 * Wide::kWidth];  // row i, then i + 4, added to partial i mod 4
  HWY_ALIGN float change[Wide::kWidth];
  Token token[kMaxBlock];
};

// One head's columns of a state, or of values and outputs: `count` columns from `first` on.
struct Columns {
  std::int64_t first, count, row_stride;

  template <class P>
  std::size_t in_vector(int c) const {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(count - c * P::kLanes, 0, P::kLanes));
  }
  // From a panel's row to that of the next panel, which lies beside it or opens the next head.
  template <class P>
  std::int64_t ahead(std::int64_t key_dim) const {
    return first + P::kWidth < row_stride ? P::kWidth : key_dim * row_stride - first;
  }
};

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
template <class P, class S>
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
    if (c * P::kLanes % kLine == 0) hwy::Prefetch(at + ahead);
    return load_float_n(typename P::D(), at, columns.in_vector<P>(c));
  }
  HWY_INLINE void store(hn::Vec<typename P::D> x, std::int64_t n, int c) const {
    // Four rows of the group ahead: a store that waits for its line holds up those behind it.
    hwy::Prefetch(to + 4 * (n + 4) * columns.row_stride + c * P::kLanes);
    store_float_n(x, typename P::D(), to + 4 * n * columns.row_stride + c * P::kLanes,
                  columns.in_vector<P>(c));
  }
};

template <class P>
struct Sums {
  hn::Vec<typename P::D> recalled[P::kColumns], queried[P::kColumns];
};

// What a sweep does to a row: applies `now` with its change (kUpdate), then adds it to the sums of
// `next`. Vectors of tokens begin at the row's group, too.
template <bool kUpdate, bool kPerKey, class P, class Rows>
HWY_INLINE void pass_row(const Rows& rows, std::int64_t n, const Token& now,
                         const hn::Vec<typename P::D>* change, const Token& next, Sums<P>& sums) {
  const typename P::D d;
  const auto k = hn::Set(d, next.key[4 * n]), q = hn::Set(d, next.query[4 * n]);
  for (int c = 0; c < P::kColumns; ++c) {
    auto x = rows.load(n, c);
    if constexpr (kUpdate) {
      const auto a = hn::Set(d, kPerKey ? now.decays[4 * n] : now.factor);
      x = hn::Add(hn::Mul(a, x), hn::Mul(hn::Set(d, now.key[4 * n]), change[c]));
      rows.store(x, n, c);
    }
    if constexpr (kPerKey) x = hn::Mul(hn::Set(d, next.decays[4 * n]), x);
    sums.recalled[c] = hn::MulAdd(x, k, sums.recalled[c]);
    sums.queried[c] = hn::MulAdd(x, q, sums.queried[c]);
  }
}

// Leaves Sᵀ k, then Sᵀ q, in s.partial[0].
template <bool kUpdate, bool kPerKey, class P, class Rows>
HWY_NOINLINE void sweep(const Rows all, std::int64_t key_dim, const Token now, const Token next,
                        Scratch& s) {
  const typename P::D d;
  hn::Vec<typename P::D> change[P::kColumns];
  for (int c = 0; c < P::kColumns; ++c) {
    change[c] = kUpdate ? hn::Load(d, s.change + c * P::kLanes) : hn::Zero(d);
  }
  for (std::int64_t group = 0; group < 4; ++group) {
    const Rows rows = all.group(group);
    const Token update = now.from(group), sum = next.from(group);
    const std::int64_t count = (key_dim - group + 3) / 4;
    Sums<P> low, high;
    for (int c = 0; c < P::kColumns; ++c) {
      low.recalled[c] = low.queried[c] = high.recalled[c] = high.queried[c] = hn::Zero(d);
    }
    std::int64_t n = 0;
    for (; n + 1 < count; n += 2) {
      pass_row<kUpdate, kPerKey, P>(rows, n, update, change, sum, low);
      pass_row<kUpdate, kPerKey, P>(rows, n + 1, update, change, sum, high);
    }
    if (n < count) pass_row<kUpdate, kPerKey, P>(rows, n, update, change, sum, low);
    for (int c = 0; c < P::kColumns; ++c) {
      float* const to = s.partial[group] + c * P::kLanes;
      hn::Store(hn::Add(low.recalled[c], high.recalled[c]), d, to);
      hn::Store(hn::Add(low.queried[c], high.queried[c]), d, to + P::kWidth);
    }
  }
  for (std::int64_t at = 0; at < 2 * P::kWidth; at += P::kLanes) {
    const auto of = [&](int group) HWY_ATTR { return hn::Load(d, s.partial[group] + at); };
    hn::Store(hn::Add(hn::Add(of(0), of(2)), hn::Add(of(1), of(3))), d, s.partial[0] + at);
  }
}

template <bool kUpdate, class P, class Rows>
HWY_INLINE void sweep(const Rows& rows, std::int64_t key_dim, const Token& now, const Token& next,
                      Scratch& s) {
  if (next.decays != nullptr) {
    sweep<kUpdate, true, P>(rows, key_dim, now, next, s);
  } else {
    sweep<kUpdate, false, P>(rows, key_dim, now, next, s);
  }
}

// Calls body(rows of the group, rows of the group elsewhere, n, i) for each row i, in their order.
template <class From, class To, class Body>
HWY_INLINE void for_each_row(std::int64_t key_dim, const From& from, const To& to,
                             const Body& body) {
  const From in[] = {from.group(0), from.group(1), from.group(2), from.group(3)};
  const To out[] = {to.group(0), to.group(1), to.group(2), to.group(3)};
  std::int64_t i = 0;
  for (; i + 4 <= key_dim; i += 4) {
    for (int group = 0; group < 4; ++group) body(in[group], out[group], i / 4, i + group);
  }
  for (; i < key_dim; ++i) body(in[i % 4], out[i % 4], i / 4, i);
}

template <class P, class From, class To>
HWY_NOINLINE void copy_rows(const From from, const To to, std::int64_t key_dim) {
  for_each_row(key_dim, from, to,
               [](const auto& in, const auto& out, std::int64_t n, std::int64_t) HWY_ATTR {
                 for (int c = 0; c < P::kColumns; ++c) out.store(in.load(n, c), n, c);
               });
}

// The last update of rows, on their way from one place to another.
template <class P, class From, class To>
HWY_NOINLINE void update_rows(const From from, const To to, std::int64_t key_dim, const Token now,
                              const Scratch& s) {
  const typename P::D d;
  hn::Vec<typename P::D> change[P::kColumns];
  for (int c = 0; c < P::kColumns; ++c) change[c] = hn::Load(d, s.change + c * P::kLanes);
  const auto factor = hn::Set(d, now.factor);
  for_each_row(key_dim, from, to,
               [&](const auto& in, const auto& out, std::int64_t n, std::int64_t i) HWY_ATTR {
                 const auto k = hn::Set(d, now.key[i]),
                            a = now.decays ? hn::Set(d, now.decays[i]) : factor;
                 for (int c = 0; c < P::kColumns; ++c) {
                   out.store(hn::Add(hn::Mul(a, in.load(n, c)), hn::Mul(k, change[c])), n, c);
                 }
               });
}

// From the sums in s.partial[0]: the token's change of the state from its value, into s.change, and
// its output. Without a value the change is there already, and another query reads the state.
template <class P>
HWY_INLINE void finish(const Token& token, bool recalls, float scale, const float* value,
                       Scratch& s, float* output) {
  const typename P::D d;
  const auto factor = hn::Set(d, token.factor);
  for (int c = 0; c < P::kColumns; ++c) {
    const std::int64_t at = c * P::kLanes;
    auto recalled = hn::Load(d, s.partial[0] + at),
         queried = hn::Load(d, s.partial[0] + P::kWidth + at);
    if (token.decays == nullptr) {
      recalled = hn::Mul(factor, recalled);
      queried = hn::Mul(factor, queried);
    }
    auto change = hn::Load(d, (value != nullptr ? value : s.change) + at);
    if (value != nullptr) {
      if (recalls) change = hn::Sub(change, recalled);
      change = hn::Mul(hn::Set(d, token.beta), change);
      hn::Store(change, d, s.change + at);
    }
    const auto read = hn::Add(queried, hn::Mul(hn::Set(d, token.key_query), change));
    hn::Store(hn::Mul(hn::Set(d, scale), read), d, output + at);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

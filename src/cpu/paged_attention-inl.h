// Tile arithmetic of paged_attention, all in float32: rows (a query head of one token each) against
// one block of cache positions.
//
// A row's bits must not depend on the other rows nor on the vector width. So a vector holds 4
// elements of each of kRowsPerVector rows, and every sum over a head runs in the one order of
// sum-inl.h: partials 0-3 and 4-7 are two passes, the tree is two steps of interleaving.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cpu/load-inl.h"
#include "cpu/math-inl.h"

#if defined(DELTAWORKS_CPU_PAGED_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_PAGED_ATTENTION_INL_H_
#undef DELTAWORKS_CPU_PAGED_ATTENTION_INL_H_
#else
#define DELTAWORKS_CPU_PAGED_ATTENTION_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D16 = hn::CappedTag<float, 16>;
using V16 = hn::Vec<D16>;
constexpr D16 d16;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(d16));
constexpr int kRowsPerVector = std::max(1, kLanes / 4);
constexpr int kParts = std::max(1, 4 / kLanes);  // vectors in a quad: 4 without SIMD
constexpr int kQuad = 4 * kRowsPerVector;        // floats in a quad

constexpr std::int64_t kBlock = 64;             // positions that share one softmax step
constexpr std::int64_t kMaxRows = 64;           // rows that share one reading of the cache
constexpr std::int64_t kTileFloats = 8 * 1024;  // 32 KB: half of what L1 and L2 must hold at once
constexpr int kVectorWeights = kQuad * (kBlock / 4);  // weights of one row vector

// Four elements of each of kRowsPerVector rows.
struct Quad {
  V16 part[kParts];
};

template <class D>
HWY_INLINE Quad zero_quad(D d) {
  Quad r;
  for (int p = 0; p < kParts; ++p) r.part[p] = hn::Zero(d);
  return r;
}

template <class D>
HWY_INLINE Quad load_quad(D d, const float* from) {
  Quad r;
  for (int p = 0; p < kParts; ++p) r.part[p] = hn::Load(d, from + p * kLanes);
  return r;
}

template <class D>
HWY_INLINE void store_quad(D d, const Quad& a, float* to) {
  for (int p = 0; p < kParts; ++p) hn::Store(a.part[p], d, to + p * kLanes);
}

// The same four floats for every row.
template <class D>
HWY_INLINE Quad duplicate(D d, const float* four) {
  Quad r;
  if constexpr (hn::MaxLanes(D()) >= 4) {
    r.part[0] = hn::LoadDup128(d, four);
  } else {
    for (int p = 0; p < kParts; ++p) r.part[p] = hn::Set(d, four[p]);
  }
  return r;
}

HWY_INLINE Quad add(const Quad& a, const Quad& b) {
  Quad r;
  for (int p = 0; p < kParts; ++p) r.part[p] = hn::Add(a.part[p], b.part[p]);
  return r;
}

HWY_INLINE Quad mul_add(const Quad& a, const Quad& b, const Quad& c) {
  Quad r;
  for (int p = 0; p < kParts; ++p) r.part[p] = hn::MulAdd(a.part[p], b.part[p], c.part[p]);
  return r;
}

// InterleaveLower and the like are found through their arguments: the target without SIMD has none.

// Element i of a row is (x_i[0] + x_i[2]) + (x_i[1] + x_i[3]) of that row.
template <class D>
HWY_INLINE Quad sum_each(D d, const Quad& x0, const Quad& x1, const Quad& x2, const Quad& x3) {
  Quad r;
  if constexpr (hn::MaxLanes(D()) >= 4) {
    const hn::Repartition<double, D> pairs;
    const auto a = hn::Add(InterleaveLower(d, x0.part[0], x1.part[0]),
                           InterleaveUpper(d, x0.part[0], x1.part[0]));
    const auto b = hn::Add(InterleaveLower(d, x2.part[0], x3.part[0]),
                           InterleaveUpper(d, x2.part[0], x3.part[0]));
    const auto a2 = hn::BitCast(pairs, a), b2 = hn::BitCast(pairs, b);
    r.part[0] = hn::Add(hn::BitCast(d, InterleaveLower(pairs, a2, b2)),
                        hn::BitCast(d, InterleaveUpper(pairs, a2, b2)));
  } else {
    const Quad* const x[4] = {&x0, &x1, &x2, &x3};
    for (int p = 0; p < kParts; ++p) {
      r.part[p] = hn::Add(hn::Add(x[p]->part[0], x[p]->part[2 % kParts]),
                          hn::Add(x[p]->part[1 % kParts], x[p]->part[3 % kParts]));
    }
  }
  return r;
}

struct Sum {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
struct Largest {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Max(a, b);
  }
};

// (0, 2), (1, 3), then both, within each row; every element of a row gets the result.
template <class D, class Op>
HWY_INLINE Quad reduce(D, const Quad& a, Op op) {
  Quad r;
  if constexpr (hn::MaxLanes(D()) >= 4) {
    const hn::Vec<D> whole = a.part[0];
    const auto halves = op(whole, Shuffle1032(whole));
    r.part[0] = op(halves, Shuffle2301(halves));
  } else {
    const auto all =
        op(op(a.part[0], a.part[2 % kParts]), op(a.part[1 % kParts], a.part[3 % kParts]));
    for (int p = 0; p < kParts; ++p) r.part[p] = all;
  }
  return r;
}

// Rows of a cache that the next step will read in the place of this step's: each line is fetched
// while its counterpart is computed with, because a stream that stops for arithmetic never reaches
// the memory's rate. Rows that do not follow each other as these do are fetched for nothing.
struct Ahead {
  const char* rows;
  std::int64_t stride, element_bytes;

  HWY_INLINE const char* at(std::int64_t row, std::int64_t column) const {
    return rows + row * stride + column * element_bytes;
  }
  Ahead from(std::int64_t row, std::int64_t column) const {
    return {at(row, column), stride, element_bytes};
  }
};

// Positions whose rows of one kv head lie `stride` elements apart.
template <class T>
struct Rows {
  const T* data;
  std::int64_t stride;
};

constexpr int kAccumulators = kLanes >= 16 ? 16 : 8;  // of 32 or 16 registers

// Partial sums i mod 8 = kFrom … kFrom + 4 kHalves − 1 of the dots of kVectors row vectors and kKeys
// positions. A query row vector is [padded / 4][row][4].
template <int kFrom, int kHalves, int kVectors, int kKeys, class D>
HWY_INLINE void partial_dots(D d, const float* query, std::int64_t padded, const Rows<float>& keys,
                             const Ahead& ahead, Quad (&sum)[kHalves][kVectors][kKeys]) {
  for (auto& half : sum) {
    for (auto& row : half) {
      for (Quad& each : row) each = zero_quad(d);
    }
  }
  for (std::int64_t i = 0; i < padded; i += 16) {
    if constexpr (kFrom == 0) {
      for (int j = 0; j < kKeys; ++j) hwy::Prefetch(ahead.at(j, i));
    }
    for (int part = 0; part < 2 * kHalves; ++part) {
      const int half = part % kHalves;
      const std::int64_t at = i + part / kHalves * 8 + half * 4 + kFrom;
      Quad q[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        q[v] = load_quad(d, query + (v * padded + at) * kRowsPerVector);
      }
      for (int j = 0; j < kKeys; ++j) {
        const Quad k = duplicate(d, keys.data + j * keys.stride + at);
        for (int v = 0; v < kVectors; ++v) sum[half][v][j] = mul_add(q[v], k, sum[half][v][j]);
      }
    }
  }
}

template <int kVectors, int kKeys, class D>
HWY_INLINE void finish_dots(D d, const Quad (&low)[kVectors][kKeys],
                            const Quad (&high)[kVectors][kKeys], float* dots) {
  for (int v = 0; v < kVectors; ++v) {
    for (int q = 0; q < kKeys / 4; ++q) {
      Quad x[4];
      for (int j = 0; j < 4; ++j) x[j] = add(low[v][4 * q + j], high[v][4 * q + j]);
      store_quad(d, sum_each(d, x[0], x[1], x[2], x[3]), dots + v * kVectorWeights + q * kQuad);
    }
  }
}

// Dots of kVectors row vectors and 4 · kQuads positions; those of one row vector are
// [position / 4][row][4].
template <int kVectors, int kQuads, class D>
HWY_INLINE void score(D d, const float* query, std::int64_t padded, const Rows<float>& keys,
                      const Ahead& ahead, float* dots) {
  constexpr int kKeys = 4 * kQuads;
  if constexpr (2 * kVectors * kKeys <= kAccumulators) {
    Quad sum[2][kVectors][kKeys];
    partial_dots<0>(d, query, padded, keys, ahead, sum);
    finish_dots(d, sum[0], sum[1], dots);
  } else {
    Quad low[1][kVectors][kKeys], high[1][kVectors][kKeys];
    partial_dots<0>(d, query, padded, keys, ahead, low);
    partial_dots<4>(d, query, padded, keys, ahead, high);
    finish_dots(d, low[0], high[0], dots);
  }
}

template <int kVectors, int kQuads, class D>
HWY_INLINE void score_quads(D d, const float* query, std::int64_t padded, const Rows<float>& keys,
                            std::int64_t& quad, std::int64_t quads, const Ahead& ahead,
                            float* dots) {
  for (; quad + kQuads <= quads; quad += kQuads) {
    score<kVectors, kQuads>(d, query, padded, {keys.data + 4 * quad * keys.stride, keys.stride},
                            ahead.from(4 * quad, 0), dots + quad * kQuad);
  }
}

// Dots of `vectors` row vectors and 4 · quads positions.
template <class D>
HWY_INLINE void score_block(D d, const float* query, std::int64_t vectors, std::int64_t padded,
                            const Rows<float>& keys, std::int64_t quads, const Ahead& ahead,
                            float* dots) {
  constexpr int kTall = kAccumulators / 4;
  std::int64_t v = 0;
  while (v < vectors) {
    const float* const rows = query + v * padded * kRowsPerVector;
    float* const to = dots + v * kVectorWeights;
    std::int64_t quad = 0;
    if (v + kTall <= vectors) {
      score_quads<kTall, 1>(d, rows, padded, keys, quad, quads, ahead, to);
      v += kTall;
    } else if (v + 2 <= vectors) {
      score_quads<2, 1>(d, rows, padded, keys, quad, quads, ahead, to);
      v += 2;
    } else {
      score_quads<1, 1>(d, rows, padded, keys, quad, quads, ahead, to);
      v += 1;
    }
  }
}

// The running softmax of one row vector; each row's value four times.
struct Softmax {
  float* largest;
  float* denominator;
  float* correction;  // factor on what earlier blocks summed
};

struct Logit {
  float scale, softcap;
};

template <class D>
HWY_INLINE V16 finish_logit(D d, V16 dot, const Logit& logit) {
  const auto x = hn::Mul(dot, hn::Set(d, logit.scale));
  if (logit.softcap == 0) return x;
  const auto cap = hn::Set(d, logit.softcap);
  return hn::Mul(cap, tanh(d, hn::Div(x, cap)));
}

// Which of the 4 positions from `position` on each row sees: those in [first, end), which hold
// every row's bounds four times, as numbers within the block.
template <class D>
HWY_INLINE auto visible(D d, float position, const float* first, const float* end, int part) {
  HWY_ALIGN static constexpr float kIndex[16] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
  const auto at = hn::Add(hn::Load(d, kIndex + part * kLanes), hn::Set(d, position));
  return hn::And(hn::Ge(at, hn::Load(d, first + part * kLanes)),
                 hn::Lt(at, hn::Load(d, end + part * kLanes)));
}

// Dots of quads [begin, end) become weights exp(logit − largest), zero where a row does not see the
// position; a masked weight adds +0 to a sum >= 0, so that it changes no bit. bounds == nullptr:
// every row sees every position.
template <class D>
HWY_INLINE void softmax(D d, const Logit& logit, float* weights, std::int64_t begin,
                        std::int64_t end, const float* bounds, const Softmax& state) {
  const auto hidden = hn::Set(d, -std::numeric_limits<float>::infinity());
  Quad largest = load_quad(d, state.largest);
  for (std::int64_t q = begin; q < end; ++q) {
    for (int p = 0; p < kParts; ++p) {
      float* at = weights + q * kQuad + p * kLanes;
      auto x = finish_logit(d, hn::Load(d, at), logit);
      if (bounds != nullptr) {
        const auto seen = visible(d, static_cast<float>(4 * q), bounds, bounds + kQuad, p);
        x = hn::IfThenElse(seen, x, hidden);
      }
      hn::Store(x, d, at);
      largest.part[p] = hn::Max(largest.part[p], x);
    }
  }
  largest = reduce(d, largest, Largest());
  Quad sum = zero_quad(d), base;  // a row whose logits are all −infinity so far has weights of zero
  for (int p = 0; p < kParts; ++p) {
    base.part[p] = hn::IfThenZeroElse(hn::Eq(largest.part[p], hidden), largest.part[p]);
  }
  for (std::int64_t q = begin; q < end; ++q) {
    for (int p = 0; p < kParts; ++p) {
      float* at = weights + q * kQuad + p * kLanes;
      auto weight = exp(d, hn::Sub(hn::Load(d, at), base.part[p]));
      if (bounds != nullptr) {
        const auto seen = visible(d, static_cast<float>(4 * q), bounds, bounds + kQuad, p);
        weight = hn::IfThenElseZero(seen, weight);
      }
      hn::Store(weight, d, at);
      sum.part[p] = hn::Add(sum.part[p], weight);
    }
  }
  sum = reduce(d, sum, Sum());
  for (int p = 0; p < kParts; ++p) {
    const auto before = hn::Load(d, state.largest + p * kLanes);
    const auto factor = hn::IfThenElse(hn::Eq(before, largest.part[p]), hn::Set(d, 1.0f),
                                       exp(d, hn::Sub(before, largest.part[p])));
    const auto denominator = hn::Load(d, state.denominator + p * kLanes);
    hn::Store(factor, d, state.correction + p * kLanes);
    hn::Store(hn::MulAdd(denominator, factor, sum.part[p]), d, state.denominator + p * kLanes);
    hn::Store(largest.part[p], d, state.largest + p * kLanes);
  }
}

// Where row `row` of a tile keeps its weights.
constexpr std::int64_t weights_of(std::int64_t row) {
  return row / kRowsPerVector * kVectorWeights + row % kRowsPerVector * 4;
}

// Positions whose weighted values some rows add up.
template <class T>
struct Values {
  Rows<T> rows;          // from position `first` on
  Ahead ahead;           // likewise
  const float* weights;  // of the first of these rows
  std::int64_t first, begin, end, padded;
};

// sums[row] += weight[row][j] · values[j] for j in [begin, end), ascending, in kVectors vectors of
// columns. Rows start at a multiple of kRows, a power of two.
template <int kRows, int kVectors, class D, class T>
HWY_INLINE void accumulate(D d, const Values<T>& in, std::int64_t column, float* sums) {
  V16 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = hn::Load(d, sums + r * in.padded + column + v * kLanes);
    }
  }
  const T* row = in.rows.data + (in.begin - in.first) * in.rows.stride + column;
  const char* ahead = in.ahead.at(in.begin - in.first, column);
  const auto add = [&](const float* weight) HWY_ATTR {
    for (int i = 0; i < kVectors * kLanes; i += 16) {
      hwy::Prefetch(ahead + i * in.ahead.element_bytes);
    }
    V16 value[kVectors];
    for (int v = 0; v < kVectors; ++v) value[v] = load_float(d, row + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const auto w = hn::Set(d, weight[weights_of(r)]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(w, value[v], sum[r][v]);
    }
    row += in.rows.stride, ahead += in.ahead.stride;
  };
  for (std::int64_t j = in.begin; j < in.end;) {
    const float* const weight = in.weights + j / 4 * kQuad;
    if (j % 4 == 0 && j + 4 <= in.end) {
      for (int i = 0; i < 4; ++i) add(weight + i);
      j += 4;
    } else {
      add(weight + j % 4);
      ++j;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(sum[r][v], d, sums + r * in.padded + column + v * kLanes);
    }
  }
}

template <int kRows, class D, class T>
HWY_INLINE void accumulate_rows(D d, const Values<T>& in, float* sums) {
  constexpr int kVectors = std::min(4, kAccumulators / kRows);
  if (in.begin >= in.end) return;
  std::int64_t column = 0;
  for (; column + kVectors * kLanes <= in.padded; column += kVectors * kLanes) {
    accumulate<kRows, kVectors>(d, in, column, sums);
  }
  for (; column < in.padded; column += kLanes) accumulate<kRows, 1>(d, in, column, sums);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

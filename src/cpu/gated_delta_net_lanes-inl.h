// Rows of the state in the lanes of vectors, for many tokens: sums then need no horizontal step, which costs a key-lane
// sweep (gated_delta_net_tile-inl.h) an eighth of its instructions. A group of rows is transposed into the tile before
// the tokens pass and back after them. Partial sums and tree are those of sum-inl.h, so the bits are the same.
#include <hwy/highway.h>

#include <cstdint>

#include "cpu/gated_delta_net_tile-inl.h"
#include "cpu/sum-inl.h"
#include "cpu/transpose-inl.h"

#if defined(DELTAWORKS_CPU_GATED_DELTA_NET_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_GATED_DELTA_NET_LANES_INL_H_
#undef DELTAWORKS_CPU_GATED_DELTA_NET_LANES_INL_H_
#else
#define DELTAWORKS_CPU_GATED_DELTA_NET_LANES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr bool kHasRowLanes = kStripLanes >= 4;

// Two vectors of rows share every key and query. With 32 registers four residues of a column number modulo 8 pass
// together, with 16 two.
constexpr int kLaneVectors = 2;
constexpr int kResidues = kStripLanes == 16 ? 4 : 2;
constexpr std::int64_t kLaneRows = kLaneVectors * kStripLanes;

// x in all lanes, held in a register for both vectors: g++ 12 would load it again for each, which takes 1.1 to 1.2
// times as long, for then loads bound a sweep.
HWY_INLINE VStrip broadcast(float x) {
  VStrip all = hn::Set(d_strip, x);
#if HWY_ARCH_X86 && HWY_COMPILER_GCC
  asm("" : "+v"(all.raw));
#endif
  return all;
}

struct LaneSums {
  VStrip recalled[kLaneVectors], queried[kLaneVectors];
};

// Columns whose number is kFirst, kFirst + 4 and, of four residues, kFirst + 2, kFirst + 6 modulo 8 in a group
// [columns, kLaneRows]: `now` is applied with its deltas (kUpdate), then the columns are summed for `next` (kSum).
template <bool kUpdate, bool kSum, bool kPerKey, int kFirst>
HWY_INLINE LaneSums sweep_residues(float* group, std::int64_t key_dim, const Token& now,
                                   const float* deltas, const Token& next) {
  constexpr int kResidue[4] = {kFirst, kFirst + 4, kFirst + 2, kFirst + 6};
  const float *const key_now = now.key, *const decays_now = now.decays;
  const float *const key = next.key, *const query = next.query, *const decays = next.decays;
  const auto factor = hn::Set(d_strip, now.factor);
  VStrip delta[kLaneVectors];
  for (int v = 0; v < kLaneVectors; ++v) {
    delta[v] = kUpdate ? hn::LoadU(d_strip, deltas + v * kStripLanes) : hn::Zero(d_strip);
  }
  VStrip r[kResidues][kLaneVectors], p[kResidues][kLaneVectors];
  for (int n = 0; n < kResidues; ++n) {
    for (int v = 0; v < kLaneVectors; ++v) r[n][v] = p[n][v] = hn::Zero(d_strip);
  }
  for (std::int64_t i = 0; i < key_dim; i += 8) {
    for (int n = 0; n < kResidues; ++n) {
      const std::int64_t column = i + kResidue[n];
      VStrip a_now = factor, k_now, a, k, q;
      if constexpr (kUpdate && kPerKey) a_now = broadcast(decays_now[column]);
      if constexpr (kUpdate) k_now = broadcast(key_now[column]);
      if constexpr (kSum && kPerKey) a = broadcast(decays[column]);
      if constexpr (kSum) k = broadcast(key[column]), q = broadcast(query[column]);
      for (int v = 0; v < kLaneVectors; ++v) {
        float* const at = group + column * kLaneRows + v * kStripLanes;
        auto x = hn::Load(d_strip, at);
        if constexpr (kUpdate) {
          x = hn::Add(hn::Mul(a_now, x), hn::Mul(k_now, delta[v]));
          hn::Store(x, d_strip, at);
        }
        if constexpr (kSum) {
          if constexpr (kPerKey) x = hn::Mul(a, x);
          r[n][v] = hn::MulAdd(x, k, r[n][v]);
          p[n][v] = hn::MulAdd(x, q, p[n][v]);
        }
      }
    }
  }
  LaneSums sums;
  for (int v = 0; v < kLaneVectors; ++v) {
    sums.recalled[v] = hn::Add(r[0][v], r[1][v]);
    sums.queried[v] = hn::Add(p[0][v], p[1][v]);
    if constexpr (kResidues == 4) {
      sums.recalled[v] = hn::Add(sums.recalled[v], hn::Add(r[2][v], r[3][v]));
      sums.queried[v] = hn::Add(sums.queried[v], hn::Add(p[2][v], p[3][v]));
    }
  }
  return sums;
}

HWY_INLINE LaneSums add_sums(const LaneSums& a, const LaneSums& b) {
  LaneSums sums;
  for (int v = 0; v < kLaneVectors; ++v) {
    sums.recalled[v] = hn::Add(a.recalled[v], b.recalled[v]);
    sums.queried[v] = hn::Add(a.queried[v], b.queried[v]);
  }
  return sums;
}

// All columns of a group, whose number is a multiple of 8.
template <bool kUpdate, bool kSum, bool kPerKey>
HWY_INLINE LaneSums sweep_lanes(float* group, std::int64_t key_dim, const Token& now,
                                const float* delta, const Token& next) {
  const auto even = sweep_residues<kUpdate, kSum, kPerKey, 0>(group, key_dim, now, delta, next);
  if constexpr (kResidues == 4) {
    return add_sums(even,
                    sweep_residues<kUpdate, kSum, kPerKey, 1>(group, key_dim, now, delta, next));
  } else {
    const auto even2 = sweep_residues<kUpdate, kSum, kPerKey, 2>(group, key_dim, now, delta, next);
    const auto odd = sweep_residues<kUpdate, kSum, kPerKey, 1>(group, key_dim, now, delta, next);
    const auto odd2 = sweep_residues<kUpdate, kSum, kPerKey, 3>(group, key_dim, now, delta, next);
    return add_sums(add_sums(even, even2), add_sums(odd, odd2));
  }
}

#if HWY_TARGET == HWY_SCALAR  // has no blocks, and never comes here
inline void read_lanes(const float*, std::int64_t, float*) {}
inline void write_lanes(const float*, std::int64_t, float*) {}
#else
// kLaneRows rows of the state to a group [key_dim, kLaneRows], and back.
inline void read_lanes(const float* from, std::int64_t key_dim, float* group) {
  for (std::int64_t v = 0; v < kLaneRows; v += kStripLanes) {
    for (std::int64_t i = 0; i < key_dim; i += 4) {
      VStrip x[4];
      for (int j = 0; j < 4; ++j)
        x[j] = load_blocks(d_strip, from + (v + j) * key_dim + i, key_dim);
      transpose_blocks(d_strip, x);
      for (int j = 0; j < 4; ++j) hn::Store(x[j], d_strip, group + (i + j) * kLaneRows + v);
    }
  }
}

inline void write_lanes(const float* group, std::int64_t key_dim, float* to) {
  for (std::int64_t v = 0; v < kLaneRows; v += kStripLanes) {
    for (std::int64_t i = 0; i < key_dim; i += 4) {
      VStrip x[4];
      for (int j = 0; j < 4; ++j) x[j] = hn::Load(d_strip, group + (i + j) * kLaneRows + v);
      transpose_blocks(d_strip, x);
      for (int j = 0; j < 4; ++j) {
        store_blocks(d_strip, x[j], to + (v + j) * key_dim + i, key_dim);
      }
    }
  }
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

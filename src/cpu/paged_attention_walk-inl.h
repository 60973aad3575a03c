// The walk of one tile of paged_attention over the cache: see paged_attention.cpp.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/paged_attention-inl.h"
#include "cpu/paged_attention_head-inl.h"

#if defined(DELTAWORKS_CPU_PAGED_ATTENTION_WALK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_PAGED_ATTENTION_WALK_INL_H_
#undef DELTAWORKS_CPU_PAGED_ATTENTION_WALK_INL_H_
#else
#define DELTAWORKS_CPU_PAGED_ATTENTION_WALK_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

using Geometry = contract::PagedAttentionGeometry;

constexpr std::int64_t kCut = 512;  // positions whose sums are merged at once
// A step's rows, and the query rows beside them: both and the next step's rows fit into L1.
constexpr std::int64_t kStepFloats = 2 * 1024, kStreamFloats = 4 * 1024;

struct Span {
  std::int64_t begin, end;
};

// Stack of one task.
struct Tile {
  HWY_ALIGN float query[kTileFloats];          // as score() reads it
  HWY_ALIGN float sums[kTileFloats];           // [row][padded], of one cut
  HWY_ALIGN float totals[kTileFloats];         // likewise, of the cuts before
  HWY_ALIGN float weights[kMaxRows * kBlock];  // as score() writes it
  HWY_ALIGN float cache[kTileFloats];          // converted or padded cache rows
  HWY_ALIGN float largest[4 * kMaxRows], denominator[4 * kMaxRows], correction[4 * kMaxRows];
  float total_largest[kMaxRows], total_denominator[kMaxRows];
  const char* keys[kBlock];  // where the block's rows lie
  const char* values[kBlock];
  std::int64_t first[kMaxRows], end[kMaxRows];  // positions that a row sees
};

// Rows of one tile, and where its cache lies.
template <class T>
struct Work {
  const PagedAttentionArgs<T>& args;
  const Geometry& g;
  std::int64_t sequence, kv_head, kv_heads;
  std::int64_t first_row, rows;  // of each kv head: (token, head of the group), tokens outside
  std::int64_t padded;

  // Of one kv head.
  std::int64_t vectors() const { return (rows + kRowsPerVector - 1) / kRowsPerVector; }
  // Row `row` of kv head kv_head + h is row h · stride() + row of the tile.
  std::int64_t stride() const { return vectors() * kRowsPerVector; }
  std::int64_t token(std::int64_t row) const { return (first_row + row) / g.heads_per_kv(); }
  std::int64_t head(std::int64_t h, std::int64_t row) const {
    return (kv_head + h) * g.heads_per_kv() + (first_row + row) % g.heads_per_kv();
  }
  // Few rows: the cache's rate is the bound, and each of its rows is used once.
  bool streams() const { return rows * padded <= kStepFloats; }
  std::int64_t positions_per_step() const {
    const std::int64_t row = kv_heads * padded;
    if (!streams()) return std::min(kBlock, kTileFloats / row / 4 * 4);
    // Sums are loaded and stored once a step: one token at 8 / 2 heads of 256 takes 1.07 times as long with AVX2 in steps of
    // 4 positions.
    const std::int64_t least = std::clamp<std::int64_t>(kStreamFloats / row / 4 * 4, 4, 8);
    return std::max(least, std::min(kBlock, kStepFloats / row / 4 * 4));
  }
  Ahead ahead(const char* first) const {
    return {first, g.kv_heads * g.head_dim * std::int64_t{sizeof(T)}, sizeof(T)};
  }
  // Calls body(h, row) for every row that the tile has.
  template <class Body>
  HWY_INLINE void for_each_row(const Body& body) const {
    for (std::int64_t h = 0; h < kv_heads; ++h) {
      for (std::int64_t row = 0; row < rows; ++row) body(h, row);
    }
  }
};

// Which positions each row sees, and its softmax before the first of them: the sink alone.
template <class T>
HWY_INLINE void start_totals(const Work<T>& work, Tile& tile) {
  const auto& args = work.args;
  const std::int64_t past = args.past_seqlens(work.sequence), window = args.local_window_size;
  const std::int64_t total =
      past + args.cu_seqlens(work.sequence + 1) - args.cu_seqlens(work.sequence);
  for (std::int64_t h = 0; h < work.kv_heads; ++h) {
    for (std::int64_t r = 0; r < work.stride(); ++r) {
      // Rows that only fill a vector see what the last row sees; nothing reads their results.
      const std::int64_t row = std::min(r, work.rows - 1), to = h * work.stride() + r;
      const std::int64_t position = past + work.token(row);
      tile.first[to] = window > 0 ? std::max<std::int64_t>(0, position - window + 1) : 0;
      tile.end[to] = args.is_causal ? position + 1 : total;
      tile.total_largest[to] = args.head_sink ? to_float((*args.head_sink)(work.head(h, row)))
                                              : -std::numeric_limits<float>::infinity();
      tile.total_denominator[to] = args.head_sink ? 1.0f : 0.0f;
    }
  }
  std::fill_n(tile.totals, work.kv_heads * work.stride() * work.padded, 0.0f);
}

template <class T>
HWY_INLINE void load_queries(const Work<T>& work, Tile& tile) {
  const auto& args = work.args;
  const std::int64_t start = args.cu_seqlens(work.sequence);
  const std::int64_t past = args.past_seqlens(work.sequence);
  HWY_ALIGN float head[contract::kMaxHeadDim] = {};
  for (std::int64_t h = 0; h < work.kv_heads; ++h) {
    for (std::int64_t r = 0; r < work.stride(); ++r) {
      if (r < work.rows) {
        const T* const query =
            args.query.row(start + work.token(r)) + work.head(h, r) * work.g.head_dim;
        prepare(args, query, args.q_norm_weight, past + work.token(r), head);
      }
      const std::int64_t row = h * work.stride() + r;
      float* const to = tile.query + row / kRowsPerVector * work.padded * kRowsPerVector +
                        row % kRowsPerVector * 4;
      for (std::int64_t i = 0; i < work.padded; i += 4) {
        std::memcpy(to + i * kRowsPerVector, head + i, 4 * sizeof(float));
      }
    }
  }
}

// Where the rows of `block` lie in a cache. Positions that the block leaves out of its quads point
// to one that it has: their logits are masked.
template <class T>
HWY_INLINE void find_rows(const Work<T>& work, const View<T, 4>& cache, Span block,
                          const char** rows) {
  const Geometry& g = work.g;
  std::int64_t page = block.begin / g.block_size, slot = block.begin % g.block_size;
  const T* at = nullptr;
  for (std::int64_t j = block.begin; j < block.end; ++j, ++slot) {
    if (slot == g.block_size) ++page, slot = 0;
    if (slot == 0 || at == nullptr) {
      const T* const start = cache.row(work.args.block_table(work.sequence, page));
      at = start + (slot * g.kv_heads + work.kv_head) * g.head_dim;
    }
    rows[j % kBlock] = reinterpret_cast<const char*>(at);
    at += g.kv_heads * g.head_dim;
  }
  for (std::int64_t j = 0; j < block.begin % kBlock; ++j) rows[j] = rows[block.begin % kBlock];
  const std::int64_t last = (block.end - 1) % kBlock;
  for (std::int64_t j = last + 1; j < kBlock; ++j) rows[j] = rows[last];
}

// Whether the rows of `part` can be used where they lie: whole quads in one page. Many query rows
// read them again and again, so they are copied then even if they are float32 already: rows of one
// head lie so far apart that they would share few sets of L1.
template <class T>
HWY_INLINE bool used_in_place(const Work<T>& work, Span part) {
  return work.streams() && work.padded == work.g.head_dim && part.begin % 4 == 0 &&
         part.end % 4 == 0 && part.begin / work.g.block_size == (part.end - 1) / work.g.block_size;
}

template <class T>
HWY_INLINE Rows<T> rows_in_place(const Work<T>& work, const char* first) {
  return {reinterpret_cast<const T*>(first), work.g.kv_heads * work.g.head_dim};
}

// Rows of whole quads around `part` as float32 of padded width: where they lie, or at Tile::cache.
template <class T>
HWY_INLINE Rows<float> load_cache(const Work<T>& work, Span part, const char* const* rows,
                                  Tile& tile) {
  const Geometry& g = work.g;
  const std::int64_t begin = part.begin % kBlock / 4 * 4, end = (part.end - 1) % kBlock / 4 * 4 + 4;
  if constexpr (std::is_same_v<T, float>) {
    if (used_in_place(work, part)) return rows_in_place(work, rows[begin]);
  }
  float* to = tile.cache;
  for (std::int64_t j = begin; j < end; ++j) {
    for (std::int64_t h = 0; h < work.kv_heads; ++h, to += work.padded) {
      load_head(reinterpret_cast<const T*>(rows[j]) + h * g.head_dim, g.head_dim, to);
      std::fill(to + g.head_dim, to + work.padded, 0.0f);
    }
  }
  return {tile.cache, work.kv_heads * work.padded};
}

// Calls step(positions, what to fetch meanwhile) for parts of `block` that load_cache can take, cut
// at multiples of 4. Behind the block comes `next`.
template <class T, class Step>
HWY_INLINE void for_each_step(const Work<T>& work, Span block, const char* const* rows,
                              const char* next, const Step& step) {
  const std::int64_t most = work.positions_per_step();
  for (std::int64_t at = block.begin; at < block.end;) {
    const std::int64_t end = std::min(block.end, at / 4 * 4 + most);
    step(Span{at, end}, work.ahead(end < block.end ? rows[end % kBlock] : next));
    at = end;
  }
}

template <class T>
HWY_INLINE void softmax_block(const Work<T>& work, Span block, const Logit& logit, Tile& tile) {
  const std::int64_t base = block.begin / kBlock * kBlock;
  const std::int64_t begin = block.begin % kBlock / 4, end = (block.end - 1) % kBlock / 4 + 1;
  for (std::int64_t v = 0; v < work.kv_heads * work.vectors(); ++v) {
    HWY_ALIGN float bounds[2 * kQuad];
    bool all = true;
    for (int r = 0; r < kRowsPerVector; ++r) {
      const std::int64_t row = v * kRowsPerVector + r;
      all = all && tile.first[row] <= base + 4 * begin && tile.end[row] >= base + 4 * end;
      const auto bound = [base](std::int64_t at) {
        return static_cast<float>(std::clamp<std::int64_t>(at - base, 0, kBlock));
      };
      std::fill_n(bounds + 4 * r, 4, bound(tile.first[row]));
      std::fill_n(bounds + kQuad + 4 * r, 4, bound(tile.end[row]));
    }
    softmax(d16, logit, tile.weights + v * kVectorWeights, begin, end, all ? nullptr : bounds,
            {tile.largest + v * kQuad, tile.denominator + v * kQuad, tile.correction + v * kQuad});
  }
}

template <class T>
HWY_INLINE void weigh_block(const Work<T>& work, Span block, const Logit& logit, Tile& tile) {
  const char* const next = tile.values[block.begin % kBlock];
  for_each_step(work, block, tile.keys, next, [&](Span part, const Ahead& ahead) HWY_ATTR {
    const Rows<float> keys = load_cache(work, part, tile.keys, tile);
    const std::int64_t first = part.begin % kBlock / 4;
    const std::int64_t quads = (part.end - 1) % kBlock / 4 + 1 - first;
    for (std::int64_t h = 0; h < work.kv_heads; ++h) {
      score_block(d16, tile.query + h * work.stride() * work.padded, work.vectors(), work.padded,
                  {keys.data + h * work.padded, keys.stride}, quads,
                  ahead.from(0, h * work.g.head_dim),
                  tile.weights + weights_of(h * work.stride()) + first * kQuad);
    }
  });
  softmax_block(work, block, logit, tile);
}

// Adds the values of `part` to kRows rows: those that every row sees together, the others row by
// row, each row in ascending order.
template <int kRows, class T>
HWY_INLINE void add_values(std::int64_t row, Span part, Values<T> in, Tile& tile) {
  const std::int64_t base = part.begin / kBlock * kBlock;
  const auto run = [&](auto rows, std::int64_t r, std::int64_t begin, std::int64_t end) HWY_ATTR {
    in.weights = tile.weights + weights_of(r);
    in.begin = begin - base, in.end = end - base;
    accumulate_rows<decltype(rows)::value>(d16, in, tile.sums + r * in.padded);
  };
  const auto one = std::integral_constant<int, 1>();
  Span common = part;
  for (std::int64_t r = row; r < row + kRows; ++r) {
    common.begin = std::max(common.begin, tile.first[r]);
    common.end = std::min(common.end, tile.end[r]);
  }
  const auto all = std::integral_constant<int, kRows>();
  if (common.begin == part.begin && common.end == part.end) {
    run(all, row, part.begin, part.end);
    return;
  }
  if (common.begin >= common.end) common = {part.end, part.end};
  for (std::int64_t r = row; r < row + kRows; ++r) {
    run(one, r, std::max(part.begin, tile.first[r]), std::min(common.begin, tile.end[r]));
  }
  run(all, row, common.begin, common.end);
  for (std::int64_t r = row; r < row + kRows; ++r) {
    run(one, r, std::max(common.end, tile.first[r]), std::min(part.end, tile.end[r]));
  }
}

// Rows [row, end) of the tile.
template <class T>
HWY_INLINE void add_all_values(std::int64_t row, std::int64_t end, Span part, const Values<T>& in,
                               Tile& tile) {
  constexpr int kTall = kLanes >= 16 ? 8 : 4;
  while (row < end) {
    if (row + kTall <= end) {
      add_values<kTall>(row, part, in, tile), row += kTall;
    } else if (kTall > 4 && row + 4 <= end) {
      add_values<4>(row, part, in, tile), row += 4;
    } else if (row + 2 <= end) {
      add_values<2>(row, part, in, tile), row += 2;
    } else {
      add_values<1>(row, part, in, tile), row += 1;
    }
  }
}

// Behind the block's values come the keys at `next`.
template <class T>
HWY_INLINE void value_block(const Work<T>& work, Span block, const char* next, Tile& tile) {
  work.for_each_row([&](std::int64_t h, std::int64_t r) HWY_ATTR {
    const std::int64_t row = h * work.stride() + r;
    const float factor = tile.correction[4 * row];
    if (factor == 1.0f) return;
    float* const sums = tile.sums + row * work.padded;
    for (std::int64_t i = 0; i < work.padded; ++i) sums[i] *= factor;
  });
  for_each_step(work, block, tile.values, next, [&](Span part, const Ahead& ahead) HWY_ATTR {
    const auto add = [&](const auto& values) HWY_ATTR {
      using Element = std::remove_cvref_t<decltype(*values.data)>;
      for (std::int64_t h = 0; h < work.kv_heads; ++h) {
        const Values<Element> in{.rows = {values.data + h * work.padded, values.stride},
                                 .ahead = ahead.from(0, h * work.g.head_dim),
                                 .weights = nullptr,
                                 .first = part.begin % kBlock / 4 * 4,
                                 .begin = 0,
                                 .end = 0,
                                 .padded = work.padded};
        add_all_values(h * work.stride(), h * work.stride() + work.rows, part, in, tile);
      }
    };
    if (used_in_place(work, part)) {
      add(rows_in_place(work, tile.values[part.begin % kBlock]));
    } else {
      add(load_cache(work, part, tile.values, tile));
    }
  });
}

// The positions that rows of the tile see: no row sees less than those before it.
template <class T>
HWY_INLINE Span seen_by(const Work<T>& work, const Tile& tile) {
  return {tile.first[0], tile.end[work.rows - 1]};
}

// Softmax sums over the positions of `cut`, from none.
template <class T>
HWY_INLINE void attend_cut(const Work<T>& work, Span cut, Tile& tile) {
  const std::int64_t rows = work.kv_heads * work.stride();
  std::fill_n(tile.largest, 4 * rows, -std::numeric_limits<float>::infinity());
  std::fill_n(tile.denominator, 4 * rows, 0.0f);
  std::fill_n(tile.sums, rows * work.padded, 0.0f);
  const float scale = work.args.scale != 0 ? work.args.scale
                                           : 1.0f / std::sqrt(static_cast<float>(work.g.head_dim));
  const Logit logit{scale, work.args.softcap};
  const auto block_at = [cut](std::int64_t at) {
    return Span{at, std::min(cut.end, at / kBlock * kBlock + kBlock)};
  };
  Span block = block_at(cut.begin);
  find_rows(work, work.args.key_cache, block, tile.keys);
  while (block.begin < cut.end) {
    find_rows(work, work.args.value_cache, block, tile.values);
    weigh_block(work, block, logit, tile);
    const Span next = block_at(block.end);
    if (next.begin < next.end) find_rows(work, work.args.key_cache, next, tile.keys);
    value_block(work, block, tile.keys[next.begin % kBlock], tile);
    block = next;
  }
}

// The sums of one row over the positions of a cut.
struct Part {
  const float* sums;
  float largest, denominator;
};

// Takes one more cut into a row's totals.
HWY_INLINE void merge(const Part& part, std::int64_t padded, std::int64_t row, Tile& tile) {
  const float before = tile.total_largest[row];
  const float largest = std::max(before, part.largest);
  const auto factor = [largest](float x) HWY_ATTR {
    return x == largest ? 1.0f : hn::GetLane(exp(d16, hn::Set(d16, x - largest)));
  };
  const float old_factor = factor(before), new_factor = factor(part.largest);
  tile.total_largest[row] = largest;
  tile.total_denominator[row] =
      tile.total_denominator[row] * old_factor + part.denominator * new_factor;
  float* const totals = tile.totals + row * padded;
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    const auto scaled = hn::Mul(hn::Load(d16, totals + i), hn::Set(d16, old_factor));
    hn::Store(hn::MulAdd(hn::LoadU(d16, part.sums + i), hn::Set(d16, new_factor), scaled), d16,
              totals + i);
  }
}

// Calls body(cut, its seen positions) for each cut of which rows of the tile see something.
template <class T, class Body>
HWY_INLINE void for_each_cut(const Work<T>& work, const Tile& tile, const Body& body) {
  const Span seen = seen_by(work, tile);
  for (std::int64_t cut = seen.begin / kCut; cut * kCut < seen.end; ++cut) {
    body(cut, Span{std::max(seen.begin, cut * kCut), std::min(seen.end, (cut + 1) * kCut)});
  }
}

// Merges part_of(row) of the rows that see positions of the cut: others keep their totals' bits.
template <class T, class PartOf>
HWY_INLINE void merge_cut(const Work<T>& work, Span cut, Tile& tile, const PartOf& part_of) {
  work.for_each_row([&](std::int64_t h, std::int64_t r) HWY_ATTR {
    const std::int64_t row = h * work.stride() + r;
    if (tile.first[row] >= cut.end || tile.end[row] <= cut.begin) return;
    merge(part_of(row), work.padded, row, tile);
  });
}

template <class T>
HWY_INLINE void finish_rows(const Work<T>& work, Tile& tile) {
  const std::int64_t start = work.args.cu_seqlens(work.sequence);
  work.for_each_row([&](std::int64_t h, std::int64_t r) HWY_ATTR {
    const std::int64_t row = h * work.stride() + r;
    float* const sums = tile.totals + row * work.padded;
    for (std::int64_t i = 0; i < work.padded; ++i) sums[i] /= tile.total_denominator[row];
    store_head(sums, work.g.head_dim,
               work.args.output.row(start + work.token(r)) + work.head(h, r) * work.g.head_dim);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

// A tile is up to 64 rows (query heads of one kv head, token by token) of one sequence. It walks
// the blocks of 64 cache positions that its rows see, counted from position 0: logits, softmax
// step, weighted values. The cache is read once per tile; rows that see less than the tile mask
// their weights and leave the hidden values out, since a weight of 0 would not silence a NaN.
#include "cpu/paged_attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/paged_attention.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/load-inl.h"
#include "cpu/paged_attention-inl.h"
#include "cpu/sum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

using Geometry = contract::PagedAttentionGeometry;

// Stack of one task.
struct Tile {
  HWY_ALIGN float query[kTileFloats];          // as score() reads it
  HWY_ALIGN float sums[kTileFloats];           // [row][padded]
  HWY_ALIGN float weights[kMaxRows * kBlock];  // as score() writes it
  HWY_ALIGN float cache[kTileFloats];          // converted or padded cache rows
  HWY_ALIGN float largest[4 * kMaxRows], denominator[4 * kMaxRows], correction[4 * kMaxRows];
  const char* keys[kBlock];  // where the block's rows lie
  const char* values[kBlock];
  std::int64_t first[kMaxRows], end[kMaxRows];  // positions that a row sees
};

struct Span {
  std::int64_t begin, end;
};

std::int64_t padded_dim(const Geometry& g) { return (g.head_dim + 15) / 16 * 16; }

std::int64_t rows_per_tile(const Geometry& g) {
  return std::min(kMaxRows, kTileFloats / padded_dim(g) / 4 * 4);
}

template <class T>
HWY_INLINE void load_head(const T* from, std::int64_t dim, float* to) {
  std::int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) hn::StoreU(load_float(d16, from + i), d16, to + i);
  for (; i < dim; ++i) to[i] = to_float(from[i]);
}

template <class T>
HWY_INLINE void store_head(const float* from, std::int64_t dim, T* to) {
  std::int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) store_float(hn::LoadU(d16, from + i), d16, to + i);
  for (; i < dim; ++i) to[i] = from_float<T>(from[i]);
}

// Every product rounded, so that the rotated keys are the same on every instruction set.
template <class T>
HWY_INLINE void rotate(const PagedAttentionArgs<T>& args, std::int64_t position, float* head) {
  const std::int64_t pairs = args.cos_cache->extent(1);
  float cosine[contract::kMaxHeadDim / 2], sine[contract::kMaxHeadDim / 2];
  load_head(args.cos_cache->row(position), pairs, cosine);
  load_head(args.sin_cache->row(position), pairs, sine);
  float* const x = head + args.rotary_offset;
  const std::int64_t step = args.rotary_interleaved ? 2 : 1;
  const std::int64_t partner = args.rotary_interleaved ? 1 : pairs;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const float a = x[i * step], b = x[i * step + partner];
    x[i * step] = a * cosine[i] - b * sine[i];
    x[i * step + partner] = b * cosine[i] + a * sine[i];
  }
}

// One head after norm and rotary embedding.
template <class T>
HWY_INLINE void prepare(const PagedAttentionArgs<T>& args, const T* from,
                        const OptionalView<const T, 1>& weight, std::int64_t position,
                        float* head) {
  const std::int64_t dim = args.query.extent(2);
  load_head(from, dim, head);
  if (weight) {
    const float squares = dot8(head, head, static_cast<std::size_t>(dim));
    const float factor = 1.0f / std::sqrt(squares / static_cast<float>(dim) + args.qk_norm_epsilon);
    for (std::int64_t i = 0; i < dim; ++i) head[i] = head[i] * factor * to_float((*weight)(i));
  }
  if (args.cos_cache) rotate(args, position, head);
}

template <class T>
void write_cache_row(const PagedAttentionArgs<T>& args, const Geometry& g, std::int64_t token,
                     std::int64_t position, std::int64_t block, std::int64_t slot) {
  const std::int64_t row = g.kv_heads * g.head_dim;
  T* const key = args.key_cache.row(block) + slot * row;
  T* const value = args.value_cache.row(block) + slot * row;
  std::memcpy(value, args.value.row(token), static_cast<std::size_t>(row) * sizeof(T));
  if (!args.k_norm_weight && !args.cos_cache) {
    std::memcpy(key, args.key.row(token), static_cast<std::size_t>(row) * sizeof(T));
    return;
  }
  float head[contract::kMaxHeadDim];
  for (std::int64_t h = 0; h < g.kv_heads; ++h) {
    prepare(args, args.key.row(token) + h * g.head_dim, args.k_norm_weight, position, head);
    store_head(head, g.head_dim, key + h * g.head_dim);
  }
}

template <class T>
void write_caches(const PagedAttentionArgs<T>& args, const Geometry& g, Span tokens) {
  std::int64_t b = 0;
  for (std::int64_t token = tokens.begin; token < tokens.end; ++token) {
    while (args.cu_seqlens(b + 1) <= token) ++b;
    const std::int64_t position = args.past_seqlens(b) + token - args.cu_seqlens(b);
    std::int64_t block = 0, slot = 0;
    if (args.slot_mapping) {
      const std::int64_t row = (*args.slot_mapping)(token);
      if (row < 0) continue;
      block = row / g.block_size, slot = row % g.block_size;
    } else {
      block = args.block_table(b, position / g.block_size), slot = position % g.block_size;
    }
    write_cache_row(args, g, token, position, block, slot);
  }
}

// Rows of one tile, and where its cache lies.
template <class T>
struct Work {
  const PagedAttentionArgs<T>& args;
  const Geometry& g;
  std::int64_t sequence, kv_head;
  std::int64_t first_row, rows;  // rows are (token, head of the group), tokens outside
  std::int64_t padded;

  std::int64_t vectors() const { return (rows + kRowsPerVector - 1) / kRowsPerVector; }
  std::int64_t token(std::int64_t row) const { return (first_row + row) / g.heads_per_kv(); }
  std::int64_t head(std::int64_t row) const {
    return kv_head * g.heads_per_kv() + (first_row + row) % g.heads_per_kv();
  }
  std::int64_t row_bytes() const { return g.head_dim * std::int64_t{sizeof(T)}; }
  Ahead ahead(const char* const* rows_of_block) const {
    return {rows_of_block, row_bytes(), sizeof(T)};
  }
};

template <class T>
HWY_INLINE void start_rows(const Work<T>& work, Tile& tile) {
  const auto& args = work.args;
  const std::int64_t past = args.past_seqlens(work.sequence);
  const std::int64_t start = args.cu_seqlens(work.sequence);
  const std::int64_t total = past + args.cu_seqlens(work.sequence + 1) - start;
  HWY_ALIGN float head[contract::kMaxHeadDim] = {};
  for (std::int64_t r = 0; r < work.vectors() * kRowsPerVector; ++r) {
    // Rows that only fill a vector see what the last row sees; nothing reads their results.
    const std::int64_t row = std::min(r, work.rows - 1);
    const std::int64_t position = past + work.token(row), window = args.local_window_size;
    tile.first[r] = window > 0 ? std::max<std::int64_t>(0, position - window + 1) : 0;
    tile.end[r] = args.is_causal ? position + 1 : total;
    if (r == row) {
      const T* const query =
          args.query.row(start + work.token(row)) + work.head(row) * work.g.head_dim;
      prepare(args, query, args.q_norm_weight, position, head);
    }
    float* const to =
        tile.query + r / kRowsPerVector * work.padded * kRowsPerVector + r % kRowsPerVector * 4;
    for (std::int64_t i = 0; i < work.padded; i += 4) {
      std::memcpy(to + i * kRowsPerVector, head + i, 4 * sizeof(float));
    }
    const float sink = args.head_sink ? to_float((*args.head_sink)(work.head(row)))
                                      : -std::numeric_limits<float>::infinity();
    for (std::int64_t i = 4 * r; i < 4 * r + 4; ++i) {
      tile.largest[i] = sink;
      tile.denominator[i] = args.head_sink ? 1.0f : 0.0f;
    }
  }
  std::fill_n(tile.sums, work.rows * work.padded, 0.0f);
}

// Where the rows of `block` lie in a cache. Positions that the block leaves out of its quads point
// to one that it has: they are fetched for nothing, and their logits are masked.
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

// Rows of whole quads around `part` as float32 of padded width, at Tile::cache. Copied even if they
// are float32 already: rows of one head lie so far apart that they would share few sets of L1.
template <class T>
HWY_INLINE std::int64_t load_cache(const Work<T>& work, Span part, const char* const* rows,
                                   Tile& tile) {
  const std::int64_t begin = part.begin % kBlock / 4 * 4, end = (part.end - 1) % kBlock / 4 * 4 + 4;
  float* to = tile.cache;
  for (std::int64_t j = begin; j < end; ++j, to += work.padded) {
    load_head(reinterpret_cast<const T*>(rows[j]), work.g.head_dim, to);
    std::fill(to + work.g.head_dim, to + work.padded, 0.0f);
  }
  return begin;
}

// Positions of a block that fit into Tile::cache, a multiple of 4.
std::int64_t positions_per_load(std::int64_t padded) {
  return std::min(kBlock, kTileFloats / padded / 4 * 4);
}

// Calls step(positions) for parts of `block` that load_cache can take, cut at multiples of 4.
template <class Step>
HWY_INLINE void for_each_load(Span block, std::int64_t padded, const Step& step) {
  const std::int64_t most = positions_per_load(padded);
  for (std::int64_t at = block.begin; at < block.end;) {
    const std::int64_t next = std::min(block.end, at / 4 * 4 + most);
    step(Span{at, next});
    at = next;
  }
}

template <class T>
HWY_INLINE void weigh_block(const Work<T>& work, Span block, const Logit& logit, Tile& tile) {
  for_each_load(block, work.padded, [&](Span part) HWY_ATTR {
    const std::int64_t first = load_cache(work, part, tile.keys, tile);
    const std::int64_t quads = (part.end - 1) % kBlock / 4 + 1 - first / 4;
    score_block(d16, tile.query, work.vectors(), work.padded, tile.cache, quads,
                work.ahead(tile.values + first), tile.weights + first / 4 * kQuad);
  });
  const std::int64_t base = block.begin / kBlock * kBlock;
  const std::int64_t begin = block.begin % kBlock / 4, end = (block.end - 1) % kBlock / 4 + 1;
  for (std::int64_t v = 0; v < work.vectors(); ++v) {
    HWY_ALIGN float bounds[2 * kQuad];
    bool all = true;
    for (int i = 0; i < kQuad; ++i) {
      const std::int64_t row = v * kRowsPerVector + i / 4;
      all = all && tile.first[row] <= base + 4 * begin && tile.end[row] >= base + 4 * end;
      bounds[i] = static_cast<float>(std::clamp<std::int64_t>(tile.first[row] - base, 0, kBlock));
      bounds[kQuad + i] =
          static_cast<float>(std::clamp<std::int64_t>(tile.end[row] - base, 0, kBlock));
    }
    softmax(d16, logit, tile.weights + v * kVectorWeights, begin, end, all ? nullptr : bounds,
            {tile.largest + v * kQuad, tile.denominator + v * kQuad, tile.correction + v * kQuad});
  }
}

// Adds the values of `part` to kRows rows: those that every row sees together, the others row by
// row, each row in ascending order.
template <int kRows>
HWY_INLINE void add_values(std::int64_t row, Span part, Values in, Tile& tile) {
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
  if (common.begin >= common.end) common = {part.end, part.end};
  for (std::int64_t r = row; r < row + kRows; ++r) {
    run(one, r, std::max(part.begin, tile.first[r]), std::min(common.begin, tile.end[r]));
  }
  run(std::integral_constant<int, kRows>(), row, common.begin, common.end);
  for (std::int64_t r = row; r < row + kRows; ++r) {
    run(one, r, std::max(common.end, tile.first[r]), std::min(part.end, tile.end[r]));
  }
}

HWY_INLINE void add_all_values(std::int64_t rows, Span part, Values in, Tile& tile) {
  constexpr int kTall = kLanes >= 16 ? 8 : 4;
  for (std::int64_t r = 0; r < rows; in.ahead = nullptr) {
    if (r + kTall <= rows) {
      add_values<kTall>(r, part, in, tile), r += kTall;
    } else if (kTall > 4 && r + 4 <= rows) {
      add_values<4>(r, part, in, tile), r += 4;
    } else if (r + 2 <= rows) {
      add_values<2>(r, part, in, tile), r += 2;
    } else {
      add_values<1>(r, part, in, tile), r += 1;
    }
  }
}

template <class T>
HWY_INLINE void value_block(const Work<T>& work, Span block, Tile& tile) {
  for (std::int64_t r = 0; r < work.rows; ++r) {
    const float factor = tile.correction[4 * r];
    if (factor == 1.0f) continue;
    float* const sums = tile.sums + r * work.padded;
    for (std::int64_t i = 0; i < work.padded; ++i) sums[i] *= factor;
  }
  const Ahead ahead = work.ahead(tile.keys);
  for_each_load(block, work.padded, [&](Span part) HWY_ATTR {
    const std::int64_t first = load_cache(work, part, tile.values, tile);
    add_all_values(work.rows, part,
                   {.rows = tile.cache,
                    .weights = nullptr,
                    .first = first,
                    .begin = 0,
                    .end = 0,
                    .padded = work.padded,
                    .ahead = &ahead},
                   tile);
  });
}

template <class T>
HWY_INLINE void finish_rows(const Work<T>& work, Tile& tile) {
  const std::int64_t start = work.args.cu_seqlens(work.sequence);
  for (std::int64_t r = 0; r < work.rows; ++r) {
    float* const sums = tile.sums + r * work.padded;
    const float denominator = tile.denominator[4 * r];
    for (std::int64_t i = 0; i < work.padded; ++i) sums[i] /= denominator;
    store_head(sums, work.g.head_dim,
               work.args.output.row(start + work.token(r)) + work.head(r) * work.g.head_dim);
  }
}

template <class T>
void attend(const Work<T>& work) {
  Tile tile;
  start_rows(work, tile);
  const float scale = work.args.scale != 0 ? work.args.scale
                                           : 1.0f / std::sqrt(static_cast<float>(work.g.head_dim));
  const Logit logit{scale, work.args.softcap};
  const std::int64_t end = tile.end[work.rows - 1];  // rows see no less than those before them
  const auto block_at = [end](std::int64_t at) {
    return Span{at, std::min(end, at / kBlock * kBlock + kBlock)};
  };
  Span block = block_at(tile.first[0]);
  find_rows(work, work.args.key_cache, block, tile.keys);
  while (block.begin < end) {
    find_rows(work, work.args.value_cache, block, tile.values);
    weigh_block(work, block, logit, tile);
    const Span next = block_at(block.end);
    if (next.begin < end) find_rows(work, work.args.key_cache, next, tile.keys);
    value_block(work, block, tile);
    block = next;
  }
  finish_rows(work, tile);
}

// Tiles of sequence b have numbers from tile_begin(b) on: at least as many as it needs, found
// without a table of their counts.
template <class T>
std::int64_t tile_begin(const PagedAttentionArgs<T>& args, const Geometry& g, std::int64_t b) {
  return args.cu_seqlens(b) * g.heads_per_kv() / rows_per_tile(g) + b;
}

template <class T>
void attend_tile(const PagedAttentionArgs<T>& args, const Geometry& g, std::int64_t task) {
  const std::int64_t number = task / g.kv_heads;
  std::int64_t low = 0, high = g.sequences;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (tile_begin(args, g, middle) <= number ? low : high) = middle;
  }
  const std::int64_t rows = (args.cu_seqlens(low + 1) - args.cu_seqlens(low)) * g.heads_per_kv();
  const std::int64_t first = (number - tile_begin(args, g, low)) * rows_per_tile(g);
  if (first >= rows) return;
  attend(Work<T>{args, g, low, task % g.kv_heads, first, std::min(rows_per_tile(g), rows - first),
                 padded_dim(g)});
}

template <class T>
void run(const Cpu& device, const Geometry& g, const PagedAttentionArgs<T>& args) {
  constexpr std::int64_t kTokens = 16;  // of one cache-writing task
  device.parallel_for((g.tokens + kTokens - 1) / kTokens, [&](std::int64_t task) {
    write_caches(args, g, {task * kTokens, std::min(g.tokens, (task + 1) * kTokens)});
  });
  if (g.tokens == 0) return;
  device.parallel_for(tile_begin(args, g, g.sequences) * g.kv_heads,
                      [&](std::int64_t task) { attend_tile(args, g, task); });
}

}  // namespace

void run_float32(const Cpu& device, const Geometry& g, const PagedAttentionArgs<float>& args) {
  run(device, g, args);
}
void run_float16(const Cpu& device, const Geometry& g, const PagedAttentionArgs<Float16>& args) {
  run(device, g, args);
}
void run_bfloat16(const Cpu& device, const Geometry& g, const PagedAttentionArgs<BFloat16>& args) {
  run(device, g, args);
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaworks {

HWY_EXPORT(run_float32);
HWY_EXPORT(run_float16);
HWY_EXPORT(run_bfloat16);

namespace cpu {

template <class T>
void paged_attention(const Cpu& device, const contract::PagedAttentionGeometry& geometry,
                     const PagedAttentionArgs<T>& args) noexcept {
  if constexpr (std::is_same_v<T, float>) {
    HWY_DYNAMIC_DISPATCH(run_float32)(device, geometry, args);
  } else if constexpr (std::is_same_v<T, Float16>) {
    HWY_DYNAMIC_DISPATCH(run_float16)(device, geometry, args);
  } else {
    HWY_DYNAMIC_DISPATCH(run_bfloat16)(device, geometry, args);
  }
}

template void paged_attention(const Cpu&, const contract::PagedAttentionGeometry&,
                              const PagedAttentionArgs<float>&) noexcept;
template void paged_attention(const Cpu&, const contract::PagedAttentionGeometry&,
                              const PagedAttentionArgs<Float16>&) noexcept;
template void paged_attention(const Cpu&, const contract::PagedAttentionGeometry&,
                              const PagedAttentionArgs<BFloat16>&) noexcept;

}  // namespace cpu
}  // namespace deltaworks
#endif

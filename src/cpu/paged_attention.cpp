// A tile is up to 64 rows (query heads, token by token) of one sequence: those of one kv head, or of
// neighbouring kv heads where they are few, since a position's kv heads lie side by side in the
// cache. It walks the blocks of 64 cache positions that its rows see, counted from position 0:
// logits, softmax step, weighted values. Sums start afresh every 512 positions and are merged in
// ascending order, so that threads can share a long cache and change no bit. The cache is read once
// per tile; rows that see less than the tile mask their weights and leave the hidden values out,
// since a weight of 0 would not silence a NaN.
#include "cpu/paged_attention.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/paged_attention.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "cpu/paged_attention_walk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

std::int64_t padded_dim(const Geometry& g) { return (g.head_dim + 15) / 16 * 16; }

std::int64_t rows_per_tile(const Geometry& g) {
  return std::min(kMaxRows, kTileFloats / padded_dim(g) / 4 * 4);
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

constexpr std::int64_t kPartFloats = kTileFloats + 2 * kMaxRows;

// How the tiles of a call are spread over tasks; its results don't depend on it.
template <class T>
struct Plan {
  const PagedAttentionArgs<T>& args;
  const Geometry& g;
  bool share_steps;                  // kv heads side by side in one tile
  std::int64_t cuts = 1;             // tasks of one tile
  std::unique_ptr<float[]> parts{};  // [tile][cut][kPartFloats]

  std::int64_t rows_of(std::int64_t b) const {
    return (args.cu_seqlens(b + 1) - args.cu_seqlens(b)) * g.heads_per_kv();
  }
  // Tiles of sequence b have numbers from tile_begin(b) on: at least as many as it needs, found
  // without a table of their counts.
  std::int64_t tile_begin(std::int64_t b) const {
    return args.cu_seqlens(b) * g.heads_per_kv() / rows_per_tile(g) + b;
  }
  std::int64_t tiles() const { return tile_begin(g.sequences) * g.kv_heads; }
  std::int64_t kv_heads_per_tile(std::int64_t rows) const {
    const std::int64_t padded = padded_dim(g);
    const std::int64_t filled = (rows + kRowsPerVector - 1) / kRowsPerVector * kRowsPerVector;
    if (!share_steps || rows * padded > kStepFloats) return 1;
    return std::max<std::int64_t>(1, std::min({g.kv_heads, kStepFloats / padded, kMaxRows / filled,
                                               kStreamFloats / (filled * padded)}));
  }
  // A row's sums over a cut, then the largest logit and the denominator.
  float* part(std::int64_t tile, std::int64_t cut, std::int64_t row) const {
    return parts.get() + (tile * cuts + cut) * kPartFloats + row * (padded_dim(g) + 2);
  }
};

// Calls body(work) with tile `number`, unless there is none of that number.
template <class T, class Body>
HWY_INLINE void with_tile(const Plan<T>& plan, std::int64_t number, const Body& body) {
  const Geometry& g = plan.g;
  std::int64_t low = 0, high = g.sequences;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (plan.tile_begin(middle) <= number / g.kv_heads ? low : high) = middle;
  }
  const std::int64_t first = (number / g.kv_heads - plan.tile_begin(low)) * rows_per_tile(g);
  const std::int64_t rows = std::min(rows_per_tile(g), plan.rows_of(low) - first);
  if (rows <= 0) return;
  const std::int64_t kv_head = number % g.kv_heads, together = plan.kv_heads_per_tile(rows);
  if (kv_head % together != 0) return;
  body(Work<T>{plan.args, g, low, kv_head, std::min(together, g.kv_heads - kv_head), first, rows,
               padded_dim(g)});
}

template <class T>
void attend_tile(const Plan<T>& plan, std::int64_t number) {
  with_tile(plan, number, [](const Work<T>& work) HWY_ATTR {
    Tile tile;
    start_totals(work, tile);
    load_queries(work, tile);
    for_each_cut(work, tile, [&](std::int64_t, Span cut) HWY_ATTR {
      attend_cut(work, cut, tile);
      merge_cut(work, cut, tile, [&](std::int64_t row) {
        return Part{tile.sums + row * work.padded, tile.largest[4 * row],
                    tile.denominator[4 * row]};
      });
    });
    finish_rows(work, tile);
  });
}

template <class T>
void attend_part(const Plan<T>& plan, std::int64_t number, std::int64_t wanted) {
  with_tile(plan, number, [&](const Work<T>& work) HWY_ATTR {
    Tile tile;
    start_totals(work, tile);
    for_each_cut(work, tile, [&](std::int64_t at, Span cut) HWY_ATTR {
      if (at != wanted) return;
      load_queries(work, tile);
      attend_cut(work, cut, tile);
      for (std::int64_t row = 0; row < work.kv_heads * work.stride(); ++row) {
        float* const to = plan.part(number, at, row);
        std::copy_n(tile.sums + row * work.padded, work.padded, to);
        to[work.padded] = tile.largest[4 * row];
        to[work.padded + 1] = tile.denominator[4 * row];
      }
    });
  });
}

template <class T>
void merge_parts(const Plan<T>& plan, std::int64_t number) {
  with_tile(plan, number, [&](const Work<T>& work) HWY_ATTR {
    Tile tile;
    start_totals(work, tile);
    for_each_cut(work, tile, [&](std::int64_t at, Span cut) HWY_ATTR {
      merge_cut(work, cut, tile, [&](std::int64_t row) {
        const float* const part = plan.part(number, at, row);
        return Part{part, part[work.padded], part[work.padded + 1]};
      });
    });
    finish_rows(work, tile);
  });
}

// Tiles of long caches are cut where they are too few for the threads of a pool.
template <class T>
Plan<T> plan_of(const Cpu& device, const Geometry& g, const PagedAttentionArgs<T>& args) {
  constexpr std::int64_t kEnoughTiles = 64;
  std::int64_t cuts = 1;
  for (std::int64_t b = 0; b < g.sequences; ++b) {
    const std::int64_t tokens = args.cu_seqlens(b + 1) - args.cu_seqlens(b);
    if (tokens == 0) continue;
    cuts = std::max(cuts, (args.past_seqlens(b) + tokens + kCut - 1) / kCut);
  }
  const bool has_threads = device.parallel_for.run != nullptr;
  Plan<T> plan{args, g, !has_threads || cuts > 1};
  if (!has_threads || cuts == 1 || plan.tiles() >= kEnoughTiles) return plan;
  const auto floats = static_cast<std::size_t>(plan.tiles() * cuts * kPartFloats);
  plan.parts.reset(new (std::nothrow) float[floats]);  // none: uncut
  if (plan.parts != nullptr) plan.cuts = cuts;
  return plan;
}

template <class T>
void run(const Cpu& device, const Geometry& g, const PagedAttentionArgs<T>& args) {
  constexpr std::int64_t kTokens = 16;  // of one cache-writing task
  device.parallel_for((g.tokens + kTokens - 1) / kTokens, [&](std::int64_t task) {
    write_caches(args, g, {task * kTokens, std::min(g.tokens, (task + 1) * kTokens)});
  });
  if (g.tokens == 0) return;
  const Plan<T> plan = plan_of(device, g, args);
  if (plan.parts == nullptr) {
    device.parallel_for(plan.tiles(), [&](std::int64_t tile) { attend_tile(plan, tile); });
    return;
  }
  device.parallel_for(plan.tiles() * plan.cuts, [&](std::int64_t task) {
    attend_part(plan, task / plan.cuts, task % plan.cuts);
  });
  device.parallel_for(plan.tiles(), [&](std::int64_t tile) { merge_parts(plan, tile); });
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

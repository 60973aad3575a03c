#include "paged_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "contract/memory.hpp"
#include "contract/paged_attention.hpp"
#include "contract/values.hpp"
#include "cpu/paged_attention.hpp"
#include "cpu/target.hpp"
#include "trace.hpp"

namespace deltaworks {

namespace {

constexpr std::string_view kOp = "paged_attention";
using Geometry = contract::PagedAttentionGeometry;

template <class T>
Geometry geometry_of(const PagedAttentionArgs<T>& args) {
  contract::PagedAttentionOperands in;
  in.query = contract::describe(args.query);
  in.key = contract::describe(args.key);
  in.value = contract::describe(args.value);
  in.key_cache = contract::describe(args.key_cache);
  in.value_cache = contract::describe(args.value_cache);
  in.cu_seqlens = contract::describe(args.cu_seqlens);
  in.past_seqlens = contract::describe(args.past_seqlens);
  in.block_table = contract::describe(args.block_table);
  in.cos_cache = contract::describe(args.cos_cache);
  in.sin_cache = contract::describe(args.sin_cache);
  in.slot_mapping = contract::describe(args.slot_mapping);
  in.head_sink = contract::describe(args.head_sink);
  in.q_norm_weight = contract::describe(args.q_norm_weight);
  in.k_norm_weight = contract::describe(args.k_norm_weight);
  in.output = contract::describe(args.output);
  in.num_heads = args.query.extent(1);
  in.kv_num_heads = args.key.extent(1);
  in.scale = args.scale;
  in.softcap = args.softcap;
  in.local_window_size = args.local_window_size;
  in.is_causal = args.is_causal ? 1 : 0;
  in.do_rotary = args.cos_cache || args.sin_cache ? 1 : 0;
  in.rotary_interleaved = args.rotary_interleaved ? 1 : 0;
  in.rotary_offset = args.rotary_offset;
  in.qk_norm_epsilon = args.qk_norm_epsilon;
  return contract::value_or_throw(contract::paged_attention(kOp, in));
}

template <class T>
contract::CallMemory memory_of(const PagedAttentionArgs<T>& args) {
  contract::CallMemory memory(kOp);
  memory.add("query", args.query).add("key", args.key).add("value", args.value);
  memory.add("key_cache", args.key_cache, Access::kReadWrite);
  memory.add("value_cache", args.value_cache, Access::kReadWrite);
  memory.add("cu_seqlens", args.cu_seqlens).add("past_seqlens", args.past_seqlens);
  memory.add("block_table", args.block_table).add("output", args.output);
  memory.add("cos_cache", args.cos_cache).add("sin_cache", args.sin_cache);
  memory.add("slot_mapping", args.slot_mapping).add("head_sink", args.head_sink);
  memory.add("q_norm_weight", args.q_norm_weight).add("k_norm_weight", args.k_norm_weight);
  memory.check_apart();
  return memory;
}

// Positions [first, end) of the cache that sequence b reads or writes.
template <class T>
void check_pages(const PagedAttentionArgs<T>& args, const Geometry& g, std::int64_t b,
                 std::int64_t first, std::int64_t end) {
  for (std::int64_t page = first / g.block_size; page * g.block_size < end; ++page) {
    const std::int64_t block = args.block_table(b, page);
    if (block >= 0 && block < g.blocks) continue;
    throw InvalidArgument(fmt::format(
        "{}: block_table[{}, {}] is {}{}, expected 0 to {}: sequence {} needs positions {} to {}",
        kOp, b, page, block, block == -1 ? " (unmapped)" : "", g.blocks - 1, b, first, end - 1));
  }
}

template <class T>
void check_sequence(const PagedAttentionArgs<T>& args, const Geometry& g, std::int64_t b) {
  const std::int64_t past = args.past_seqlens(b);
  if (past < 0) {
    throw InvalidArgument(
        fmt::format("{}: past_seqlens[{}] is {}, expected at least 0", kOp, b, past));
  }
  const std::int64_t length = args.cu_seqlens(b + 1) - args.cu_seqlens(b);
  if (length == 0) return;  // reads and writes nothing
  const std::int64_t end = past + length;
  if (end > g.max_blocks * g.block_size) {
    throw InvalidArgument(
        fmt::format("{}: sequence {} has {} past and {} new positions, expected at most {}, what "
                    "{} blocks of {} in block_table hold",
                    kOp, b, past, length, g.max_blocks * g.block_size, g.max_blocks, g.block_size));
  }
  if (args.cos_cache && end > g.max_positions) {
    throw InvalidArgument(fmt::format(
        "{}: sequence {} reaches position {}, expected less than {}, the rows of cos_cache", kOp, b,
        end - 1, g.max_positions));
  }
  const std::int64_t window = args.local_window_size;
  check_pages(args, g, b, window > 0 ? std::max<std::int64_t>(0, past - window + 1) : 0, end);
}

// The cache row that each token writes, with its token.
template <class T>
std::vector<std::pair<std::int64_t, std::int64_t>> written_rows(const PagedAttentionArgs<T>& args,
                                                                const Geometry& g) {
  std::vector<std::pair<std::int64_t, std::int64_t>> rows;
  rows.reserve(static_cast<std::size_t>(g.tokens));
  for (std::int64_t b = 0; b < g.sequences; ++b) {
    for (std::int64_t row = args.cu_seqlens(b); row < args.cu_seqlens(b + 1); ++row) {
      const std::int64_t position = args.past_seqlens(b) + row - args.cu_seqlens(b);
      const std::int64_t slot = args.slot_mapping
                                    ? (*args.slot_mapping)(row)
                                    : args.block_table(b, position / g.block_size) * g.block_size +
                                          position % g.block_size;
      if (slot >= 0) rows.emplace_back(slot, row);
    }
  }
  return rows;
}

template <class T>
void check_writes(const PagedAttentionArgs<T>& args, const Geometry& g) {
  if (args.slot_mapping) {
    contract::check_range(kOp, "slot_mapping", *args.slot_mapping, -1, g.blocks * g.block_size - 1);
  }
  auto rows = written_rows(args, g);
  std::sort(rows.begin(), rows.end());
  const auto twin = std::adjacent_find(
      rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twin == rows.end()) return;
  const auto sequence = [&](std::int64_t row) {
    std::int64_t b = 0;
    while (args.cu_seqlens(b + 1) <= row) ++b;
    return b;
  };
  throw InvalidArgument(fmt::format(
      "{}: token {} of sequence {} and token {} of sequence {} both write row {} of block {}, "
      "expected a row of its own for every token",
      kOp, twin->second, sequence(twin->second), (twin + 1)->second, sequence((twin + 1)->second),
      twin->first % g.block_size, twin->first / g.block_size));
}

template <class T>
void run(const Cpu& device, const PagedAttentionArgs<T>& args) {
  const Geometry geometry = check_paged_attention(args);
  cpu::ensure_target();
  const Trace trace(kOp, dtype_of<T>(),
                    {{"sequences", geometry.sequences},
                     {"tokens", geometry.tokens},
                     {"heads", geometry.heads},
                     {"kv_heads", geometry.kv_heads},
                     {"head_dim", geometry.head_dim},
                     {"block_size", geometry.block_size},
                     {"rotary_dim", geometry.rotary_dim}},
                    "tiled");
  cpu::paged_attention(device, geometry, args);
}

}  // namespace

template <class T>
Geometry check_paged_attention(const PagedAttentionArgs<T>& args) {
  const Geometry geometry = geometry_of(args);
  memory_of(args);
  contract::check_cu_seqlens(kOp, args.cu_seqlens, geometry.tokens);
  for (std::int64_t b = 0; b < geometry.sequences; ++b) check_sequence(args, geometry, b);
  check_writes(args, geometry);
  return geometry;
}

template Geometry check_paged_attention(const PagedAttentionArgs<float>&);
template Geometry check_paged_attention(const PagedAttentionArgs<Float16>&);
template Geometry check_paged_attention(const PagedAttentionArgs<BFloat16>&);

void paged_attention(const Cpu& device, const PagedAttentionArgs<float>& args) {
  run(device, args);
}
void paged_attention(const Cpu& device, const PagedAttentionArgs<Float16>& args) {
  run(device, args);
}
void paged_attention(const Cpu& device, const PagedAttentionArgs<BFloat16>& args) {
  run(device, args);
}

template <class T>
std::vector<AccessRange> access_ranges(const PagedAttentionArgs<T>& args) {
  geometry_of(args);
  return memory_of(args).ranges();
}
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(const PagedAttentionArgs<float>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const PagedAttentionArgs<Float16>&);
template DELTAWORKS_EXPORT std::vector<AccessRange> access_ranges(
    const PagedAttentionArgs<BFloat16>&);

}  // namespace deltaworks

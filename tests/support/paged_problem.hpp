// A random call of paged_attention, with caches that hold NaN wherever the call has no business.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "deltaworks/paged_attention.hpp"
#include "support/buffer.hpp"
#include "support/random.hpp"

namespace deltaworks::testing {

struct PagedOptions {
  std::int64_t kv_heads = 2, group = 3, head_dim = 64, block_size = 16;
  bool rotary = false, interleaved = false, norm = false, sink = false, causal = true;
  std::int64_t rotary_offset = 0, rotary_dim = 0;
  std::int64_t window = -1;
  float softcap = 0, scale = 0;
  bool packed = false, slots = false;
};

// Operands of one call; a copy is an independent call. Sequence b has past[b] cached and
// lengths[b] new tokens; pages are shuffled over a cache with spare blocks.
template <class T>
struct PagedProblem {
  PagedOptions options;
  std::vector<std::int32_t> cu_seqlens{0}, past, table, slots;
  std::int64_t max_blocks = 1, blocks = 0;
  std::vector<T> query, key, value, packed, cosine, sine, sink, q_norm, k_norm;
  Buffer<T> key_cache{0}, value_cache{0};

  PagedProblem(const PagedOptions& o, const std::vector<std::int32_t>& past_seqlens,
               const std::vector<std::int32_t>& lengths, Random& random)
      : options(o), past(past_seqlens) {
    for (const std::int32_t length : lengths) cu_seqlens.push_back(cu_seqlens.back() + length);
    fill_table(lengths, random);
    const std::int64_t n = tokens();
    query = random.normal<T>(n * heads() * o.head_dim);
    key = random.normal<T>(n * o.kv_heads * o.head_dim);
    value = random.normal<T>(n * o.kv_heads * o.head_dim);
    for (std::int64_t t = 0; t < n; ++t) append_packed(t);
    fill_rotary(random);
    sink = random.normal<T>(heads());
    q_norm = random.normal<T>(o.head_dim, 0.2, 1);
    k_norm = random.normal<T>(o.head_dim, 0.2, 1);
    fill_caches(random);
  }

  std::int64_t heads() const { return options.kv_heads * options.group; }
  std::int64_t tokens() const { return cu_seqlens.back(); }
  std::int64_t sequences() const { return static_cast<std::int64_t>(past.size()); }
  std::int64_t rotary_pairs() const {
    return (options.rotary_dim > 0 ? options.rotary_dim : options.head_dim) / 2;
  }
  std::int64_t cache_row(std::int64_t b, std::int64_t position) const {
    const std::int64_t block =
        table[static_cast<std::size_t>(b * max_blocks + position / options.block_size)];
    return block * options.block_size + position % options.block_size;
  }
  std::int64_t row_size() const { return options.kv_heads * options.head_dim; }

  PagedAttentionArgs<T> args(Buffer<T>& output) {
    const auto& o = options;
    const std::int64_t n = tokens();
    PagedAttentionArgs<T> a{
        .query = view_of<3>(query, {n, heads(), o.head_dim}),
        .key = view_of<3>(key, {n, o.kv_heads, o.head_dim}),
        .value = view_of<3>(value, {n, o.kv_heads, o.head_dim}),
        .key_cache = key_cache.template view<4>({blocks, o.block_size, o.kv_heads, o.head_dim}),
        .value_cache = value_cache.template view<4>({blocks, o.block_size, o.kv_heads, o.head_dim}),
        .cu_seqlens = view_of<1>(cu_seqlens, {sequences() + 1}),
        .past_seqlens = view_of<1>(past, {sequences()}),
        .block_table = view_of<2>(table, {sequences(), max_blocks}),
        .output = output.template view<3>({n, heads(), o.head_dim})};
    if (o.packed) use_packed(a);
    if (o.rotary) {
      const std::int64_t positions = static_cast<std::int64_t>(cosine.size()) / rotary_pairs();
      a.cos_cache = view_of<2>(cosine, {positions, rotary_pairs()});
      a.sin_cache = view_of<2>(sine, {positions, rotary_pairs()});
    }
    if (o.slots) a.slot_mapping = view_of<1>(slots, {n});
    if (o.sink) a.head_sink = view_of<1>(sink, {heads()});
    if (o.norm) a.q_norm_weight = view_of<1>(q_norm, {o.head_dim});
    if (o.norm) a.k_norm_weight = view_of<1>(k_norm, {o.head_dim});
    a.scale = o.scale;
    a.softcap = o.softcap;
    a.local_window_size = o.window;
    a.is_causal = o.causal;
    a.rotary_interleaved = o.interleaved;
    a.rotary_offset = o.rotary_offset;
    return a;
  }

  // Output, with the caches updated in place.
  std::vector<T> run(const Cpu& cpu = {}) {
    Buffer<T> output(tokens() * heads() * options.head_dim);
    paged_attention(cpu, args(output));
    return output.values();
  }

  // One sequence's new tokens [begin, end) as a call of its own on copies of the caches.
  PagedProblem part(std::int64_t b, std::int64_t begin, std::int64_t end) const {
    PagedProblem p(*this);
    const auto cut = [&](std::vector<T>& rows, std::int64_t size) {
      const auto at = rows.begin() + (cu_seqlens[static_cast<std::size_t>(b)] + begin) * size;
      rows = std::vector<T>(at, at + (end - begin) * size);
    };
    cut(p.query, heads() * options.head_dim);
    cut(p.key, row_size());
    cut(p.value, row_size());
    cut(p.packed, (heads() + 2 * options.kv_heads) * options.head_dim);
    p.cu_seqlens = {0, static_cast<std::int32_t>(end - begin)};
    p.past = {past[static_cast<std::size_t>(b)] + static_cast<std::int32_t>(begin)};
    p.table.assign(table.begin() + b * max_blocks, table.begin() + (b + 1) * max_blocks);
    if (options.slots) {
      const auto at = slots.begin() + cu_seqlens[static_cast<std::size_t>(b)] + begin;
      p.slots.assign(at, at + (end - begin));
    }
    return p;
  }

 private:
  void fill_table(const std::vector<std::int32_t>& lengths, Random& random) {
    const auto pages = [&](std::size_t b) {
      return (past[b] + lengths[b] + options.block_size - 1) / options.block_size;
    };
    std::int64_t used = 0;
    for (std::size_t b = 0; b < past.size(); ++b) {
      max_blocks = std::max(max_blocks, pages(b) + 1);
      used += pages(b);
    }
    blocks = used + 3;
    std::vector<std::int32_t> free(static_cast<std::size_t>(blocks));
    std::iota(free.begin(), free.end(), 0);
    for (std::size_t i = free.size(); i > 1; --i) {
      std::swap(
          free[i - 1],
          free[static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(i) - 1))]);
    }
    table.assign(past.size() * static_cast<std::size_t>(max_blocks), -1);
    for (std::size_t b = 0; b < past.size(); ++b) {
      // A page that has slid out of every token's window may be unmapped.
      const std::int64_t seen =
          options.window > 0 ? std::max<std::int64_t>(0, past[b] - options.window + 1) : 0;
      for (std::int64_t page = seen / options.block_size; page < pages(b); ++page) {
        table[b * static_cast<std::size_t>(max_blocks) + static_cast<std::size_t>(page)] =
            free.back();
        free.pop_back();
      }
    }
  }

  void append_packed(std::int64_t t) {
    const auto append = [&](const std::vector<T>& rows, std::int64_t size) {
      packed.insert(packed.end(), rows.begin() + t * size, rows.begin() + (t + 1) * size);
    };
    append(query, heads() * options.head_dim);
    append(key, row_size());
    append(value, row_size());
  }

  void use_packed(PagedAttentionArgs<T>& a) const {
    const std::int64_t n = tokens(), dim = options.head_dim, kv = options.kv_heads;
    const std::int64_t stride = (heads() + 2 * kv) * dim;
    a.query = View<const T, 3>(packed.data(), {n, heads(), dim}, stride);
    a.key = View<const T, 3>(packed.data() + heads() * dim, {n, kv, dim}, stride);
    a.value = View<const T, 3>(packed.data() + (heads() + kv) * dim, {n, kv, dim}, stride);
  }

  void fill_rotary(Random& random) {
    const std::int64_t size = max_blocks * options.block_size * rotary_pairs();
    for (std::int64_t i = 0; i < size; ++i) {
      const double angle = random.uniform(-3, 3);
      cosine.push_back(from_float<T>(static_cast<float>(std::cos(angle))));
      sine.push_back(from_float<T>(static_cast<float>(std::sin(angle))));
    }
  }

  void fill_caches(Random& random) {
    key_cache = Buffer<T>(std::vector<T>(static_cast<std::size_t>(cache_size()), poison<T>()));
    value_cache = Buffer<T>(std::vector<T>(static_cast<std::size_t>(cache_size()), poison<T>()));
    for (std::int64_t b = 0; b < sequences(); ++b) {
      const std::int64_t length =
          cu_seqlens[static_cast<std::size_t>(b) + 1] - cu_seqlens[static_cast<std::size_t>(b)];
      const std::int64_t cached = past[static_cast<std::size_t>(b)];
      const std::int64_t seen =
          options.window > 0 ? std::max<std::int64_t>(0, cached - options.window + 1) : 0;
      for (std::int64_t j = seen; j < cached && length > 0; ++j) {
        const auto k = random.normal<T>(row_size()), v = random.normal<T>(row_size());
        std::copy(k.begin(), k.end(), key_cache.data() + cache_row(b, j) * row_size());
        std::copy(v.begin(), v.end(), value_cache.data() + cache_row(b, j) * row_size());
      }
      for (std::int64_t t = 0; t < length; ++t) {
        slots.push_back(static_cast<std::int32_t>(cache_row(b, cached + t)));
      }
    }
  }
  std::int64_t cache_size() const { return blocks * options.block_size * row_size(); }
};

}  // namespace deltaworks::testing

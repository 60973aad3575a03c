#include <fmt/format.h>

#include <array>
#include <numeric>

#include "bench.hpp"
#include "deltaworks/paged_attention.hpp"
#include "reference/paged_attention.hpp"

namespace deltaworks::cli {

namespace {

using Shape = bench::AttentionShape;

// One sequence. Blocks lie in the cache in reverse, so that none follows its predecessor.
template <class T>
class Problem {
 public:
  Problem(const Shape& shape, std::int64_t past, std::int64_t tokens)
      : shape_(shape),
        past_{static_cast<std::int32_t>(past)},
        offsets_{0, static_cast<std::int32_t>(tokens)},
        table_(static_cast<std::size_t>((past + tokens + kBlock - 1) / kBlock)) {
    Draw draw(1);
    std::iota(table_.rbegin(), table_.rend(), 0);
    query_ = draw.buffer<T>(tokens * shape.heads * shape.head_dim);
    key_ = draw.buffer<T>(tokens * shape.kv_heads * shape.head_dim);
    value_ = draw.buffer<T>(tokens * shape.kv_heads * shape.head_dim);
    key_cache_ = draw.buffer<T>(positions() * shape.kv_heads * shape.head_dim);
    value_cache_ = draw.buffer<T>(positions() * shape.kv_heads * shape.head_dim);
    output_.resize(query_.size());
  }

  double error() {
    const Buffer<T> keys(key_cache_), values(value_cache_);
    const std::vector<double> expected = reference::paged_attention(args());
    key_cache_ = keys, value_cache_ = values;
    run(Cpu{});
    return excess<T>(output_, expected, sizeof(T) == 2 ? 1.01 : 4);
  }
  void run(const Cpu& device) { paged_attention(device, args()); }

  OnnxNode node() {
    const auto call = args();
    return {"PagedAttention",
            "com.microsoft",
            {flat("query", call.query), flat("key", call.key), flat("value", call.value),
             operand("key_cache", call.key_cache), operand("value_cache", call.value_cache),
             operand("cumulative_sequence_length", call.cu_seqlens),
             operand("past_seqlens", call.past_seqlens), operand("block_table", call.block_table)},
            {flat("output", call.output)},
            {{"num_heads", shape_.heads}, {"kv_num_heads", shape_.kv_heads}},
            {}};
  }

  // The same attention over a cache in one piece, which dense exports use.
  OnnxNode dense_node() {
    const std::int64_t tokens = offsets_[1], total = past_[0] + tokens;
    last_ = {static_cast<std::int32_t>(total - 1)};
    total_ = {static_cast<std::int32_t>(total)};
    dense_key_ = dense(key_cache_);
    dense_value_ = dense(value_cache_);
    const std::array<std::int64_t, 4> past{1, shape_.kv_heads, past_[0], shape_.head_dim};
    const std::array<std::int64_t, 4> present{1, shape_.kv_heads, total, shape_.head_dim};
    const auto row = [&](const char* name, const Buffer<T>& data, std::int64_t heads) {
      return operand(name, View<const T, 3>(data.data(), {1, tokens, heads * shape_.head_dim}));
    };
    return {"GroupQueryAttention",
            "com.microsoft",
            {row("query", query_, shape_.heads), row("key", key_, shape_.kv_heads),
             row("value", value_, shape_.kv_heads),
             operand("past_key", View<const T, 4>(dense_key_.data(), past)),
             operand("past_value", View<const T, 4>(dense_value_.data(), past)),
             operand("seqlens_k", View<const std::int32_t, 1>(last_.data(), {1})),
             operand("total_sequence_length", View<const std::int32_t, 1>(total_.data(), {1}))},
            {row("output", output_, shape_.heads),
             operand("present_key", View<const T, 4>(nullptr, present)),
             operand("present_value", View<const T, 4>(nullptr, present))},
            {{"num_heads", shape_.heads}, {"kv_num_heads", shape_.kv_heads}},
            {}};
  }

 private:
  static constexpr std::int64_t kBlock = 16;

  std::int64_t positions() const { return static_cast<std::int64_t>(table_.size()) * kBlock; }

  PagedAttentionArgs<T> args() {
    const std::int64_t n = offsets_[1], d = shape_.head_dim,
                       blocks = static_cast<std::int64_t>(table_.size());
    return {.query = {query_.data(), {n, shape_.heads, d}},
            .key = {key_.data(), {n, shape_.kv_heads, d}},
            .value = {value_.data(), {n, shape_.kv_heads, d}},
            .key_cache = {key_cache_.data(), {blocks, kBlock, shape_.kv_heads, d}},
            .value_cache = {value_cache_.data(), {blocks, kBlock, shape_.kv_heads, d}},
            .cu_seqlens = {offsets_.data(), {2}},
            .past_seqlens = {past_.data(), {1}},
            .block_table = {table_.data(), {1, blocks}},
            .output = {output_.data(), {n, shape_.heads, d}}};
  }
  template <class View3>
  static OnnxOperand flat(const char* name, const View3& view) {
    OnnxOperand flattened = operand(name, view);
    flattened.shape = {view.extent(0), view.extent(1) * view.extent(2)};
    return flattened;
  }
  // [kv_heads, past, head_dim]
  Buffer<T> dense(const Buffer<T>& cache) const {
    Buffer<T> result;
    const std::int64_t d = shape_.head_dim;
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      for (std::int64_t position = 0; position < past_[0]; ++position) {
        const std::int64_t block = table_[static_cast<std::size_t>(position / kBlock)];
        const std::int64_t row = block * kBlock + position % kBlock;
        const T* const from = cache.data() + (row * shape_.kv_heads + head) * d;
        result.insert(result.end(), from, from + d);
      }
    }
    return result;
  }

  Shape shape_;
  std::vector<std::int32_t> past_, offsets_, table_, last_, total_;
  Buffer<T> query_, key_, value_, key_cache_, value_cache_, output_, dense_key_, dense_value_;
};

template <class T>
ReadyCall prepare(const Shape& shape, std::int64_t past, std::int64_t tokens) {
  const double error =
      Problem<T>(shape, std::min<std::int64_t>(past, 300), std::min<std::int64_t>(tokens, 20))
          .error();
  const auto problem = std::make_shared<Problem<T>>(shape, past, tokens);
  PeerNodes nodes{problem->node(), "GroupQueryAttention, cache in one piece",
                  problem->dense_node()};
  nodes.ours.memory = nodes.theirs.memory = problem;
  return {error, [problem](const Cpu& device) { problem->run(device); }, nodes};
}

template <class T>
void add(const Shape& shape, std::int64_t past, std::int64_t tokens, BenchCalls& calls) {
  const auto cached =
      static_cast<std::size_t>(2 * (past + tokens) * shape.kv_heads * shape.head_dim);
  const double seen = static_cast<double>(tokens * past) +
                      0.5 * static_cast<double>(tokens * (tokens + 1));  // by all tokens together
  const double flops = 4 * seen * static_cast<double>(shape.heads * shape.head_dim);
  const double bytes = static_cast<double>(cached * sizeof(T));
  const double rows =
      2 * static_cast<double>(tokens * shape.heads * shape.head_dim) * sizeof(T);  // in and out
  const Bound bound =
      past > 0 ? Bound{Bound::Kind::kRead, bytes, cached * sizeof(T), flops}
               : Bound{.kind = Bound::Kind::kFma, .amount = flops, .other = bytes + rows};
  calls.push_back({"paged_attention",
                   fmt::format("{} heads, {} of keys and values, of {}", shape.heads,
                               shape.kv_heads, shape.head_dim),
                   shape.name,
                   count_text(tokens, "token") + (past > 0 ? fmt::format(" after {}", past) : ""),
                   dtype_of<T>(), bound, [=] { return prepare<T>(shape, past, tokens); }});
}

}  // namespace

void bench_paged_attention(DType dtype, BenchCalls& calls) {
  visit_dtype(dtype, [&]<class T>(T) {
    for (const Shape& shape : bench::kAttentionShapes) {
      add<T>(shape, 4095, 1, calls);
      add<T>(shape, 4088, 8, calls);
      add<T>(shape, 0, 256, calls);
    }
  });
}

}  // namespace deltaworks::cli

#include <numeric>

#include "check.hpp"
#include "deltaworks/paged_attention.hpp"
#include "reference/paged_attention.hpp"

namespace deltaworks::cli {

namespace {

template <class T>
class Problem {
 public:
  explicit Problem(Draw& draw)
      : head_dim_(8 * draw.integer(1, 16)),
        offsets_(draw.cu_seqlens()),
        query_(draw.normal<T>(tokens() * kHeads * head_dim_)),
        key_(draw.normal<T>(tokens() * kKvHeads * head_dim_)),
        value_(draw.normal<T>(tokens() * kKvHeads * head_dim_)) {
    std::int64_t blocks = 0, longest = 0;
    for (std::int64_t b = 0; b < sequences(); ++b) {
      const auto at = static_cast<std::size_t>(b);
      past_.push_back(static_cast<std::int32_t>(draw.integer(0, 50)));
      longest = std::max<std::int64_t>(longest, past_[at] + offsets_[at + 1] - offsets_[at]);
    }
    max_blocks_ = (longest + kBlock - 1) / kBlock;
    blocks = max_blocks_ * sequences();
    table_.resize(static_cast<std::size_t>(blocks));
    std::iota(table_.rbegin(), table_.rend(), 0);
    keys_ = draw.normal<T>(blocks * kBlock * kKvHeads * head_dim_);
    values_ = draw.normal<T>(blocks * kBlock * kKvHeads * head_dim_);
  }

  void check(Measurements& measurements) {
    std::vector<T> output(query_.size()), keys(keys_), values(values_);
    const auto expected = reference::paged_attention(args(output, keys, values));
    keys = keys_, values = values_;
    paged_attention(Cpu{}, args(output, keys, values));
    measurements.compare(dtype_of<T>(), "output", output, expected, sizeof(T) == 2 ? 1.01 : 4);
  }

 private:
  static constexpr std::int64_t kHeads = 4, kKvHeads = 2, kBlock = 16;

  std::int64_t sequences() const { return static_cast<std::int64_t>(offsets_.size()) - 1; }
  std::int64_t tokens() const { return offsets_.back(); }

  PagedAttentionArgs<T> args(std::vector<T>& output, std::vector<T>& keys,
                             std::vector<T>& values) const {
    const std::int64_t n = tokens(), b = sequences(), blocks = max_blocks_ * b;
    return {.query = {query_.data(), {n, kHeads, head_dim_}},
            .key = {key_.data(), {n, kKvHeads, head_dim_}},
            .value = {value_.data(), {n, kKvHeads, head_dim_}},
            .key_cache = {keys.data(), {blocks, kBlock, kKvHeads, head_dim_}},
            .value_cache = {values.data(), {blocks, kBlock, kKvHeads, head_dim_}},
            .cu_seqlens = {offsets_.data(), {b + 1}},
            .past_seqlens = {past_.data(), {b}},
            .block_table = {table_.data(), {b, max_blocks_}},
            .output = {output.data(), {n, kHeads, head_dim_}}};
  }

  std::int64_t head_dim_, max_blocks_ = 0;
  std::vector<std::int32_t> offsets_;
  std::vector<T> query_, key_, value_, keys_, values_;
  std::vector<std::int32_t> past_, table_;
};

}  // namespace

void check_paged_attention(Draw& draw, Measurements& measurements) {
  Problem<float>(draw).check(measurements);
  Problem<Float16>(draw).check(measurements);
  Problem<BFloat16>(draw).check(measurements);
}

}  // namespace deltaworks::cli

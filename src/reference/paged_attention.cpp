#include "reference/paged_attention.hpp"

#include <algorithm>
#include <cmath>

namespace deltaworks::reference {

namespace {

// One head of one token, after norm and rotary embedding at `position`.
template <class T>
std::vector<double> prepare(const PagedAttentionArgs<T>& args, const T* head,
                            const OptionalView<const T, 1>& weight, std::int64_t position) {
  std::vector<double> x(static_cast<std::size_t>(args.query.extent(2)));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = to_float(head[i]);
  if (weight) {
    double squares = 0;
    for (const double a : x) squares += a * a;
    const double factor =
        1 / std::sqrt(squares / static_cast<double>(x.size()) + args.qk_norm_epsilon);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= factor * to_float((*weight).data()[i]);
  }
  if (!args.cos_cache) return x;
  const std::int64_t pairs = args.cos_cache->extent(1);
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int64_t first = args.rotary_offset + (args.rotary_interleaved ? 2 * i : i);
    double& a = x[static_cast<std::size_t>(first)];
    double& b = x[static_cast<std::size_t>(first + (args.rotary_interleaved ? 1 : pairs))];
    const double c = to_float((*args.cos_cache)(position, i));
    const double s = to_float((*args.sin_cache)(position, i));
    const double rotated = a * c - b * s;
    b = b * c + a * s;
    a = rotated;
  }
  return x;
}

template <class T>
void write_caches(const PagedAttentionArgs<T>& args, std::int64_t b, std::int64_t t) {
  const std::int64_t block_size = args.key_cache.extent(1);
  const std::int64_t row = args.cu_seqlens(b) + t, position = args.past_seqlens(b) + t;
  std::int64_t block = 0, offset = 0;
  if (args.slot_mapping) {
    const std::int64_t slot = (*args.slot_mapping)(row);
    if (slot < 0) return;
    block = slot / block_size, offset = slot % block_size;
  } else {
    block = args.block_table(b, position / block_size), offset = position % block_size;
  }
  for (std::int64_t h = 0; h < args.key.extent(1); ++h) {
    const auto key = prepare(args, &args.key(row, h, 0), args.k_norm_weight, position);
    for (std::int64_t i = 0; i < args.key.extent(2); ++i) {
      args.key_cache(block, offset, h, i) =
          from_float<T>(static_cast<float>(key[static_cast<std::size_t>(i)]));
      args.value_cache(block, offset, h, i) = args.value(row, h, i);
    }
  }
}

// The output of head h of local token t, appended to `output`.
template <class T>
void attend(const PagedAttentionArgs<T>& args, std::int64_t b, std::int64_t t, std::int64_t h,
            std::vector<double>& output) {
  const std::int64_t dim = args.query.extent(2), block_size = args.key_cache.extent(1);
  const std::int64_t kv = h / (args.query.extent(1) / args.key.extent(1));
  const std::int64_t position = args.past_seqlens(b) + t;
  const std::int64_t last =
      args.is_causal ? position
                     : args.past_seqlens(b) + args.cu_seqlens(b + 1) - args.cu_seqlens(b) - 1;
  const std::int64_t first = args.local_window_size > 0
                                 ? std::max<std::int64_t>(0, position - args.local_window_size + 1)
                                 : 0;
  const double scale = args.scale != 0 ? args.scale : 1 / std::sqrt(static_cast<double>(dim));
  const auto query =
      prepare(args, &args.query(args.cu_seqlens(b) + t, h, 0), args.q_norm_weight, position);
  std::vector<double> logits;
  for (std::int64_t j = first; j <= last; ++j) {
    const T* key = &args.key_cache(args.block_table(b, j / block_size), j % block_size, kv, 0);
    double logit = 0;
    for (std::size_t i = 0; i < query.size(); ++i) logit += query[i] * to_float(key[i]);
    logit *= scale;
    logits.push_back(args.softcap > 0 ? args.softcap * std::tanh(logit / args.softcap) : logit);
  }
  double largest = *std::max_element(logits.begin(), logits.end());
  if (args.head_sink) largest = std::max<double>(largest, to_float((*args.head_sink)(h)));
  double sum = args.head_sink ? std::exp(to_float((*args.head_sink)(h)) - largest) : 0;
  for (double& logit : logits) sum += logit = std::exp(logit - largest);
  for (std::int64_t i = 0; i < dim; ++i) {
    double value = 0;
    for (std::int64_t j = first; j <= last; ++j) {
      value +=
          logits[static_cast<std::size_t>(j - first)] *
          to_float(args.value_cache(args.block_table(b, j / block_size), j % block_size, kv, i));
    }
    output.push_back(value / sum);
  }
}

}  // namespace

template <class T>
std::vector<double> paged_attention(const PagedAttentionArgs<T>& args) {
  const std::int64_t sequences = args.past_seqlens.extent(0);
  const auto length = [&](std::int64_t b) { return args.cu_seqlens(b + 1) - args.cu_seqlens(b); };
  for (std::int64_t b = 0; b < sequences; ++b) {
    for (std::int64_t t = 0; t < length(b); ++t) write_caches(args, b, t);
  }
  std::vector<double> output;
  for (std::int64_t b = 0; b < sequences; ++b) {
    for (std::int64_t t = 0; t < length(b); ++t) {
      for (std::int64_t h = 0; h < args.query.extent(1); ++h) attend(args, b, t, h, output);
    }
  }
  return output;
}

template std::vector<double> paged_attention(const PagedAttentionArgs<float>&);
template std::vector<double> paged_attention(const PagedAttentionArgs<Float16>&);
template std::vector<double> paged_attention(const PagedAttentionArgs<BFloat16>&);

}  // namespace deltaworks::reference

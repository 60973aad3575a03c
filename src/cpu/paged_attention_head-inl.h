// Heads of paged_attention as float32: norm and rotary embedding.
#include <hwy/highway.h>

#include <cmath>
#include <cstdint>

#include "contract/paged_attention.hpp"
#include "cpu/load-inl.h"
#include "cpu/paged_attention-inl.h"
#include "cpu/sum-inl.h"
#include "deltaworks/paged_attention.hpp"

#if defined(DELTAWORKS_CPU_PAGED_ATTENTION_HEAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_PAGED_ATTENTION_HEAD_INL_H_
#undef DELTAWORKS_CPU_PAGED_ATTENTION_HEAD_INL_H_
#else
#define DELTAWORKS_CPU_PAGED_ATTENTION_HEAD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

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

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

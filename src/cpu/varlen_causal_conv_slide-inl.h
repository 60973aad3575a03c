// Widths 2 to 4: a window of samples slides through registers over a tile of tokens, for a vector of channels. Taps and state, which lie channel by channel, are transposed once for a chunk of channels.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cpu/columns-inl.h"
#include "cpu/load-inl.h"
#include "cpu/math-inl.h"
#include "cpu/pair-inl.h"

#if defined(DELTAWORKS_CPU_VARLEN_CAUSAL_CONV_SLIDE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAWORKS_CPU_VARLEN_CAUSAL_CONV_SLIDE_INL_H_
#undef DELTAWORKS_CPU_VARLEN_CAUSAL_CONV_SLIDE_INL_H_
#else
#define DELTAWORKS_CPU_VARLEN_CAUSAL_CONV_SLIDE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kTile = 4;  // tokens that share one load of the taps; 8 took as long
// How far ahead a row is fetched. Tiles go from page to page, where the processor's own guesses start anew: calls waited
// for memory as long as they computed, and 1024 tokens of 10240 channels took 1.2 times as long without.
constexpr std::int64_t kAheadBytes = 512;
// Channels, whole pairs of vectors: 16 KiB of taps, bias and state at most. Many tokens run along half a page; few find
// what the tile before left in the first-level cache: 8 took 1.2 times as long in chunks of 512 with AVX2.
constexpr std::int64_t kChunk = 512, kShortChunk = 128, kShortTokens = 16;

// Samples of one sequence: rows of input, before them the columns of a state.
template <class T>
struct Samples {
  const T* rows;
  std::int64_t row_stride;
  const T* state;  // [channels, history]; null: zeros
  std::int64_t history;
  std::int64_t length;

  const T* row(std::int64_t token) const { return rows + token * row_stride; }
};

template <class T>
struct Weights {
  const T* taps;
  std::int64_t row_stride;
  std::int64_t width, dilation;
  const T* bias;  // null: zeros
  std::int64_t bias_stride;
  const float* prepared;  // [width, channels]; null: taps
  std::int64_t prepared_stride;
  bool silu;
};

template <class T>
HWY_INLINE void gather(const T* from, std::int64_t stride, std::size_t n, T* to) {
  for (std::size_t i = 0; i < n; ++i) to[i] = from[static_cast<std::int64_t>(i) * stride];
}

template <class T>
struct Chunk {
  std::int64_t begin, size;
  HWY_ALIGN float taps[4 * kChunk];  // tap by tap, channels in the order of the pairs
  HWY_ALIGN float bias[kChunk];
  HWY_ALIGN T state[3 * kChunk];  // the oldest sample first
};

template <int Width, class T>
void load_taps(const Weights<T>& weights, Chunk<T>& chunk) noexcept {
  constexpr bool kOdd = kEvenOdd<T, T>;
  const T* const from = weights.taps + chunk.begin * Width;
  if (weights.prepared != nullptr) {
    for (std::int64_t tap = 0; tap < Width; ++tap) {
      const float* const row = weights.prepared + tap * weights.prepared_stride + chunk.begin;
      widen_pairs<kOdd>(row, chunk.size, chunk.taps + tap * kChunk);
    }
  } else if constexpr (std::is_same_v<T, float>) {
    columns_to_rows<Width>(from, chunk.size, chunk.taps, kChunk);
  } else {
    HWY_ALIGN T rows[Width * kChunk];
    columns_to_rows<Width>(from, chunk.size, rows, kChunk);
    for (std::int64_t tap = 0; tap < Width; ++tap) {
      widen_pairs<kOdd>(rows + tap * kChunk, chunk.size, chunk.taps + tap * kChunk);
    }
  }
  if (weights.bias == nullptr) {
    std::fill_n(chunk.bias, kChunk, 0.0f);
    return;
  }
  T strided[kChunk];
  const T* bias = weights.bias + chunk.begin * weights.bias_stride;
  if (weights.bias_stride != 1) {
    gather(bias, weights.bias_stride, static_cast<std::size_t>(chunk.size), strided);
    bias = strided;
  }
  widen_pairs<kOdd>(bias, chunk.size, chunk.bias);
}

template <int History, class T>
void load_state(const Samples<T>& x, std::int64_t begin, std::int64_t size, T* rows) noexcept {
  if (x.state == nullptr) {
    std::fill_n(rows, History * kChunk, T{});
  } else {
    columns_to_rows<History>(x.state + begin * History, size, rows, kChunk);
  }
}

// The last `History` samples of some channels; `state` has those before the sequence.
template <int History, class T>
void carry_chunk(const Samples<T>& x, const T* state, std::int64_t begin, std::int64_t size,
                 T* to) noexcept {
  const T* rows[History];
  for (std::int64_t k = 0; k < History; ++k) {
    const std::int64_t position = x.length - History + k;
    rows[k] = position >= 0 ? x.row(position) + begin : state + (History + position) * kChunk;
  }
  rows_to_columns<History>(rows, size, to + begin * History);
}

// Vectors of channels at a time: bfloat16 comes in pairs.
template <class T>
constexpr int kVectorsOf = kEvenOdd<T, T> ? 2 : 1;

// Tokens `step` elements apart, and what lies in front of the first.
template <int Width, class T>
struct TileRows {
  const T* before[Width - 1];  // the oldest first
  const T* input;
  std::int64_t input_step;
  T* output;
  std::int64_t output_step;
  std::int64_t ahead;  // where the input is fetched

  TileRows from(std::int64_t c) const {
    TileRows rest{{}, input + c, input_step, output + c, output_step, ahead};
    for (int k = 0; k < Width - 1; ++k) rest.before[k] = before[k] + c;
    return rest;
  }
};

template <int Width, int kCount, bool kSilu, class T>
HWY_INLINE void slide(const float* taps, const float* bias, const TileRows<Width, T>& rows) {
  constexpr int kVectors = kVectorsOf<T>;
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<decltype(d)> w[kVectors][Width], x[kVectors][Width];
  const auto load = [&](const T* from, int k) HWY_ATTR {
    if constexpr (kVectors == 1) x[0][k] = load_float(d, from);
    if constexpr (kVectors == 2) load_pair<true>(d, from, x[0][k], x[kVectors - 1][k]);
  };
  for (int v = 0; v < kVectors; ++v) {
    for (int k = 0; k < Width; ++k) {
      w[v][k] = hn::Load(d, taps + k * kChunk + static_cast<std::size_t>(v) * lanes);
    }
  }
  for (int k = 0; k < Width - 1; ++k) load(rows.before[k], k);
  const T* input = rows.input;
  T* output = rows.output;
  for (int i = 0; i < kCount; ++i, input += rows.input_step, output += rows.output_step) {
    hwy::Prefetch(input + rows.ahead);
    load(input, Width - 1);
    hn::Vec<decltype(d)> sum[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      sum[v] = hn::Load(d, bias + static_cast<std::size_t>(v) * lanes);
      for (int k = 0; k < Width; ++k) sum[v] = hn::MulAdd(w[v][k], x[v][k], sum[v]);
      if constexpr (kSilu) sum[v] = silu(d, sum[v]);
      for (int k = 0; k < Width - 1; ++k) x[v][k] = x[v][k + 1];
    }
    if constexpr (kVectors == 1) store_float(sum[0], d, output);
    if constexpr (kVectors == 2) store_pair<true>(d, sum[0], sum[kVectors - 1], output);
  }
}

template <int Width, int kCount, bool kSilu, class T>
void slide_chunk(const Chunk<T>& chunk, const TileRows<Width, T>& rows) noexcept {
  constexpr std::int64_t kMaxStep = kVectorsOf<T> * hn::MaxLanes(hn::ScalableTag<float>());
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const std::int64_t step = kVectorsOf<T> * lanes;
  std::int64_t c = 0;
  for (; c + step <= chunk.size; c += step) {
    slide<Width, kCount, kSilu>(chunk.taps + c, chunk.bias + c, rows.from(c));
  }
  if (c == chunk.size) return;
  const std::int64_t n = chunk.size - c;
  T before[Width - 1][kMaxStep] = {}, input[kCount][kMaxStep] = {}, output[kCount][kMaxStep];
  const TileRows<Width, T> last = rows.from(c);
  TileRows<Width, T> padded{{}, input[0], kMaxStep, output[0], kMaxStep, 0};
  for (int k = 0; k < Width - 1; ++k) {
    std::copy_n(last.before[k], n, before[k]);
    padded.before[k] = before[k];
  }
  for (int i = 0; i < kCount; ++i) std::copy_n(last.input + i * last.input_step, n, input[i]);
  slide<Width, kCount, kSilu>(chunk.taps + c, chunk.bias + c, padded);
  for (int i = 0; i < kCount; ++i) std::copy_n(output[i], n, last.output + i * last.output_step);
}

// `count` tokens, a dilation apart; those that reach into the state have the dilation 1.
template <int Width, bool kSilu, class T>
void slide_tokens(const Chunk<T>& chunk, const Samples<T>& x, std::int64_t dilation,
                  std::int64_t token, std::int64_t count, T* output,
                  std::int64_t output_stride) noexcept {
  for (std::int64_t i = 0; i < count;) {
    const std::int64_t now = token + i * dilation;
    TileRows<Width, T> rows{{},
                            x.row(now) + chunk.begin,
                            dilation * x.row_stride,
                            output + now * output_stride + chunk.begin,
                            dilation * output_stride,
                            kAheadBytes / static_cast<std::int64_t>(sizeof(T))};
    for (std::int64_t k = 0; k < Width - 1; ++k) {
      const std::int64_t position = now - (Width - 1 - k) * dilation;
      rows.before[k] = position >= 0 ? x.row(position) + chunk.begin
                                     : chunk.state + (Width - 1 + position) * kChunk;
    }
    if (count - i >= kTile) {
      slide_chunk<Width, kTile, kSilu>(chunk, rows);
      i += kTile;
    } else {
      slide_chunk<Width, 1, kSilu>(chunk, rows);
      ++i;
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#endif  // per target

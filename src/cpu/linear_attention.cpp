// The recurrent engine for K-major states: token by token; the state is read from memory once and
// written once for up to kMaxBlock tokens.
//
// A task owns one state head of one sequence. Lanes run along value_dim, the layout of the state, so
// that no sum crosses them. Columns are independent: a task works through them in panels that stay in
// L1 while all tokens of a block pass. The update of one token and the two sums of the next share one
// sweep over the panel (load, multiply, fma, store, two fma). Rows i, i + 8, … share a
// partial sum, and the tree of cpu/sum-inl.h adds the eight: the order of gated_delta_net.
#include "cpu/linear_attention.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/linear_attention.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <variant>

#include "cpu/linear_attention_alone-inl.h"
#include "cpu/linear_attention_panel-inl.h"
#include "cpu/load-inl.h"
#include "cpu/math-inl.h"
#include "cpu/sum-inl.h"

#ifndef DELTAWORKS_CPU_LINEAR_ATTENTION_ARGS_
#define DELTAWORKS_CPU_LINEAR_ATTENTION_ARGS_
namespace deltaworks::cpu {

// One name for every type: dispatch takes no template.
using LinearAttentionAnyArgs =
    std::variant<const LinearAttentionArgs<float>*, const LinearAttentionArgs<Float16>*,
                 const LinearAttentionArgs<BFloat16>*, const LinearAttentionArgs<Float16, Float16>*,
                 const LinearAttentionArgs<BFloat16, BFloat16>*>;

}  // namespace deltaworks::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Geometry = contract::LinearAttentionGeometry;

// What a state head reads and writes of a sequence, from its first token on.
template <class T>
struct Rows {
  const T *key, *query, *value;
  T* output;
};

// Tokens of a state head: `count` from `first` on.
template <class T>
struct Block {
  Rows<T> rows;
  std::int64_t first, count;
};

// A state head and the tokens of a block. Divisions cost as much as a row of the state: what they give is kept.
template <class T, class S>
struct Head {
  const LinearAttentionArgs<T, S>& args;
  const Geometry& g;
  std::int64_t b;
  float scale;
  std::int64_t h, queries;  // query heads that read this state
  Block<T> now, next;       // next: what comes behind now, here or in the next head

  Rows<T> rows_of(std::int64_t head) const {
    return {args.key.row(b) + g.key_head(head) * g.key_dim,
            args.query.row(b) + g.query_head(head) * g.key_dim,
            args.value.row(b) + head * g.value_dim,
            args.output.row(b) + head * queries * g.value_dim};
  }
  void move_to(std::int64_t head) {
    h = head;
    now = {rows_of(head), 0, g.length};
  }
  void take(std::int64_t first, std::int64_t longest) {
    now.first = first;
    now.count = std::min(longest, g.length - first);
    const std::int64_t behind = first + now.count;
    if (behind < g.length) {
      next = {now.rows, behind, g.length - behind};
    } else if (h + 1 < g.kv_num_heads) {
      next = {rows_of(h + 1), 0, g.length};
    } else {
      next.count = 0;
    }
  }
  std::int64_t key_at(std::int64_t token) const { return token * g.key_heads * g.key_dim; }
  std::int64_t query_at(std::int64_t token) const { return token * g.q_num_heads * g.key_dim; }
  std::int64_t value_at(std::int64_t token) const { return token * g.kv_num_heads * g.value_dim; }
  std::int64_t output_at(std::int64_t token) const { return token * g.output_width(); }

  const T* value(std::int64_t t) const { return now.rows.value + value_at(now.first + t); }
  // The output of the query-th query head that reads this state.
  T* output(std::int64_t t, std::int64_t query) const {
    return now.rows.output + output_at(now.first + t) + query * g.value_dim;
  }
};

// A row in float32; floats at once, not the last ones element by element.
template <class T>
void widen_row(const T* from, float* to, std::size_t size) {
  if constexpr (std::is_same_v<T, float>) {
    std::copy_n(from, size, to);
  } else {
    convert(from, to, size);
  }
}

// Loads a query of token t and its product with the key.
template <class T, class S>
void load_query(const Head<T, S>& head, std::int64_t t, std::int64_t query, float* to,
                Token& token) {
  const auto size = static_cast<std::size_t>(head.g.key_dim);
  widen_row(head.now.rows.query + head.query_at(head.now.first + t) + query * head.g.key_dim, to,
            size);
  token.query = to;
  token.key_query = dot8(token.key, to, size);
}

// Every parts-th line of a vector into the second-level cache.
template <class T>
HWY_INLINE void fetch(const T* from, std::int64_t size, std::int64_t part, std::int64_t parts) {
  constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = part * kLine; i < size; i += parts * kLine) fetch(from + i);
}

// What comes a block later: a token's rows lie too far apart for the processor to guess them. One panel after the other
// fetches its part, since the lines that can be on their way at a time are few.
template <class T, class S>
HWY_INLINE void fetch_token(const Head<T, S>& head, std::int64_t t, std::int64_t panel,
                            std::int64_t panels) {
  if (t >= head.next.count) return;
  const Rows<T>& rows = head.next.rows;
  const std::int64_t token = head.next.first + t;
  fetch(rows.key + head.key_at(token), head.g.key_dim, panel, panels);
  fetch(rows.query + head.query_at(token), head.g.key_dim, panel, panels);
  fetch(rows.value + head.value_at(token), head.g.value_dim, panel, panels);
  fetch(rows.output + head.output_at(token), head.g.value_dim, panel, panels);
}

// The further queries of a token that read this state.
template <class P, bool kPerKey, bool kWhole, class T, class S>
HWY_NOINLINE void run_queries(const Head<T, S>& head, std::int64_t t, const Columns& columns,
                              Change<P>& change, Scratch& s) {
  const Geometry& g = head.g;
  const InPanel<P> panel{s.state, g.key_dim};
  for (std::int64_t query = 1; query < head.queries; ++query) {
    Token token = s.token[t];
    load_query(head, t, query, s.vectors + kVectorFloats - g.key_dim, token);
    const auto sums =
        sweep<Sweep::kRead, kPerKey, P>(panel, panel, g.key_dim, token, change, token);
    finish<P, kWhole, T>(token, g.recalls, head.scale, columns, sums, nullptr, change,
                         head.output(t, query) + columns.first);
  }
}

// All tokens of a block over one panel. The state comes from `from`, or lies in s.state; it goes to
// `to`, or stays there.
template <class P, bool kPerKey, bool kWhole, class T, class S>
HWY_NOINLINE void run_panel(const Head<T, S>& head, const Columns& columns, const S* from, S* to,
                            Scratch& s) {
  const Geometry& g = head.g;
  const std::int64_t key_dim = g.key_dim, v = columns.first;
  const InPanel<P> panel{s.state, key_dim};
  const InState<P, kWhole, S> state{from, to, columns, columns.ahead<P>(key_dim)};
  Change<P> change;
  for (std::int64_t t = 0; t < head.now.count; ++t) {
    const Token &now = s.token[std::max<std::int64_t>(t - 1, 0)], &next = s.token[t];
    // Values and outputs lie too far apart for the processor to guess: a sweep is long enough to fetch them into L1.
    const T* const value = head.value(t) + v;
    T* const output = head.output(t, 0) + v;
    for (std::int64_t i = 0; i < P::kWidth; i += 64 / static_cast<std::int64_t>(sizeof(T))) {
      hwy::Prefetch(value + i);
      hwy::Prefetch(output + i);
    }
    Sums<P> sums;
    if (t > 0) {
      sums = sweep<Sweep::kUpdate, kPerKey, P>(panel, panel, key_dim, now, change, next);
    } else if (from != nullptr) {
      sums = sweep<Sweep::kMove, kPerKey, P>(state, panel, key_dim, now, change, next);
    } else {
      sums = sweep<Sweep::kRead, kPerKey, P>(panel, panel, key_dim, now, change, next);
    }
    finish<P, kWhole, T>(next, g.recalls, head.scale, columns, sums, value, change, output);
    if (head.queries > 1) run_queries<P, kPerKey, kWhole>(head, t, columns, change, s);
    fetch_token(head, t, v / P::kWidth, (g.value_dim + P::kWidth - 1) / P::kWidth);
  }
  const Token& last = s.token[head.now.count - 1];
  if (to != nullptr) {
    update_rows<P>(panel, state, key_dim, last, change);
  } else {
    update_rows<P>(panel, panel, key_dim, last, change);
  }
}

// Factors exp(decay), in place.
HWY_INLINE void exp_all(float* x, std::int64_t size) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < size; i += lanes) {
    const auto n = static_cast<std::size_t>(std::min(lanes, size - i));
    store_lanes(exp(d, load_lanes(d, x + i, n)), d, x + i, n);
  }
}

// Key, first query and gates of a block's token into `vectors`. Its decay, where it has one for all keys, is
// the factor's logarithm still.
template <class T, class S>
void load_token(const Head<T, S>& head, std::int64_t t, float* vectors, Token& token) {
  const Geometry& g = head.g;
  const auto size = static_cast<std::size_t>(g.key_dim);
  const std::int64_t at = head.now.first + t;
  widen_row(head.now.rows.key + head.key_at(at), vectors, size);
  token.key = vectors;
  load_query(head, t, 0, vectors + g.key_dim, token);
  token.decays = nullptr;
  token.factor = 0;
  if (g.decays && g.decay_per_key) {
    float* const decays = vectors + 2 * g.key_dim;
    widen_row(&(*head.args.decay)(head.b, at, head.h * g.key_dim), decays, size);
    exp_all(decays, g.key_dim);
    token.decays = decays;
  } else if (g.decays) {
    token.factor = to_float((*head.args.decay)(head.b, at, head.h));
  }
  token.beta =
      g.recalls ? to_float((*head.args.beta)(head.b, at, g.beta_per_head ? head.h : 0)) : 1.0f;
}

// Floats of a token's vectors.
std::int64_t vector_floats(const Geometry& g) {
  return (g.decays && g.decay_per_key ? 3 : 2) * g.key_dim;
}

template <class T, class S>
void load_tokens(const Head<T, S>& head, Scratch& s) {
  const std::int64_t floats = vector_floats(head.g);
  float factor[kMaxBlock];
  for (std::int64_t t = 0; t < head.now.count; ++t) {
    load_token(head, t, s.vectors + t * floats, s.token[t]);
    factor[t] = s.token[t].factor;
  }
  exp_all(factor, head.now.count);
  for (std::int64_t t = 0; t < head.now.count; ++t) s.token[t].factor = factor[t];
}

// The sums of a block of columns are there: the token's change and the outputs of all queries.
template <class T, class S>
void finish_block(const Head<T, S>& head, const AloneBlock<S>& block, std::int64_t first,
                  const FlatSums& sums, float* change, Scratch& s) {
  const Geometry& g = head.g;
  finish_alone(block.token, g.recalls, head.scale, block.count, sums, head.value(0) + first, change,
               head.output(0, 0) + first);
  for (std::int64_t query = 1; query < head.queries; ++query) {
    AloneBlock<S> further = block;
    load_query(head, 0, query, s.vectors + kVectorFloats - g.key_dim, further.token);
    pass<true, false>(further, further, g.key_dim, sums);
    finish_alone<T>(further.token, g.recalls, head.scale, block.count, sums, nullptr, change,
                    head.output(0, query) + first);
  }
}

// A single token over the states of some heads: a block of columns is updated while the next is summed.
template <class T, class S>
void run_alone(Head<T, S>& head, std::int64_t first, std::int64_t heads, Scratch& s) {
  const Geometry& g = head.g;
  const std::int64_t size = g.key_dim * g.value_dim;
  AloneBlock<S> before{};
  std::int64_t turn = 0;
  // States of less than half a megabyte are those of a small model, whose layers stay in the second-level cache: fetching
  // takes a tenth of such a call.
  const bool is_large = g.kv_num_heads * size * static_cast<std::int64_t>(sizeof(S)) >= 1 << 19;
  for (std::int64_t h = first; h < first + heads; ++h) {
    head.move_to(h);
    const S* const from = head.args.past_state->row(head.b) + h * size;
    S* const to = head.args.present_state.row(head.b) + h * size;
    // Two heads' tokens are in use at a time.
    Token& token = s.token[h % 2];
    load_token(head, 0, s.vectors + h % 2 * vector_floats(g), token);
    exp_all(&token.factor, 1);
    for (std::int64_t v = 0; v < g.value_dim; v += kAlone, ++turn) {
      float* const change = s.change + turn % 2 * kAlone;
      const AloneBlock<S> block{from + v,
                                to + v,
                                std::min(kAlone, g.value_dim - v),
                                g.value_dim,
                                token,
                                change,
                                is_large && from != to};
      const FlatSums sums{s.state, (block.count + kFlatLanes - 1) / kFlatLanes * kFlatLanes};
      if (turn == 0) {
        pass<true, false>(block, block, g.key_dim, sums);
      } else {
        pass<true, true>(block, before, g.key_dim, sums);
      }
      finish_block(head, block, v, sums, change, s);
      before = block;
    }
  }
  pass<false, true>(before, before, g.key_dim, FlatSums{});
}

template <class P, class T, class S>
void run_columns(Head<T, S>& head, std::int64_t longest, Scratch& s) {
  const Geometry& g = head.g;
  const std::int64_t size = g.key_dim * g.value_dim;
  const S* const past = head.args.past_state ? head.args.past_state->row(head.b) : nullptr;
  const S* const from = past ? past + head.h * size : nullptr;
  S* const to = head.args.present_state.row(head.b) + head.h * size;
  const auto columns_at = [&](std::int64_t v) {
    return Columns{v, std::min(P::kWidth, g.value_dim - v), g.value_dim};
  };
  const auto at = [](const S* state, std::int64_t v) { return state ? state + v : nullptr; };
  const auto take = [&](std::int64_t first) {
    head.take(first, longest);
    load_tokens(head, s);
  };
  constexpr bool kIsWide = std::is_same_v<P, Wide>;
  const auto run = [&](const Columns& columns, const S* source, S* target) {
    const bool per_key = g.decays && g.decay_per_key, whole = kIsWide && columns.count == P::kWidth;
    const auto panel =
        per_key ? (whole ? run_panel<P, true, kIsWide, T, S> : run_panel<P, true, false, T, S>)
                : (whole ? run_panel<P, false, kIsWide, T, S> : run_panel<P, false, false, T, S>);
    panel(head, columns, source, target, s);
  };
  // Zeros, where there is no state to read.
  const auto clear = [&] {
    if (from == nullptr) std::fill_n(s.state, g.key_dim * P::kWidth, 0.0f);
  };
  if (std::is_same_v<S, float> || g.length <= longest) {
    for (std::int64_t first = 0; first < g.length; first += longest) {
      take(first);
      for (std::int64_t v = 0; v < g.value_dim; v += P::kWidth) {
        if (first == 0) clear();
        run(columns_at(v), at(first > 0 ? to : from, v), to + v);
      }
    }
    return;
  }
  // A 16-bit state stays in float32 until the last token: its panel waits while the blocks pass.
  for (std::int64_t v = 0; v < g.value_dim; v += P::kWidth) {
    clear();
    for (std::int64_t first = 0; first < g.length; first += longest) {
      take(first);
      const bool is_last = first + longest >= g.length;
      run(columns_at(v), first > 0 ? nullptr : at(from, v), is_last ? to + v : nullptr);
    }
  }
}

// A sequence without tokens hands its state on.
template <class T, class S>
void hand_on(const Head<T, S>& head) {
  const std::int64_t size = head.g.key_dim * head.g.value_dim;
  S* const to = head.args.present_state.row(head.b) + head.h * size;
  const auto bytes = static_cast<std::size_t>(size) * sizeof(S);
  if (!head.args.past_state) {
    std::memset(to, 0, bytes);
  } else {
    std::memmove(to, head.args.past_state->row(head.b) + head.h * size, bytes);
  }
}

template <class T, class S>
void run_head(Head<T, S>& head, Scratch& s) {
  const Geometry& g = head.g;
  if (g.length == 0) return hand_on(head);
  // The last vector is for further queries.
  const std::int64_t longest = std::min(kMaxBlock, (kVectorFloats - g.key_dim) / vector_floats(g));
  if (g.key_dim * Wide::kWidth <= kPanelFloats) {
    run_columns<Wide>(head, longest, s);
  } else {
    run_columns<Narrow>(head, longest, s);
  }
}

template <class T, class S>
void run_heads(const LinearAttentionArgs<T, S>& args, const Geometry& g, std::int64_t b,
               std::int64_t h, std::int64_t heads) noexcept {
  const float scale =
      args.scale != 0 ? args.scale : 1.0f / std::sqrt(static_cast<float>(g.key_dim));
  Head<T, S> head{args, g, b, scale, h, g.queries_per_head(), {}, {}};
  Scratch s;
  if (g.length == 1 && args.past_state) return run_alone(head, h, heads, s);
  for (std::int64_t i = h; i < h + heads; ++i) {
    head.move_to(i);
    run_head(head, s);
  }
}

void heads_task(const cpu::LinearAttentionAnyArgs& args, const Geometry& g, std::int64_t b,
                std::int64_t h, std::int64_t heads) {
  std::visit([&](const auto* typed) { run_heads(*typed, g, b, h, heads); }, args);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaworks {

HWY_EXPORT(heads_task);

namespace cpu {

template <class T, class S>
void linear_attention(const Cpu& device, const contract::LinearAttentionGeometry& geometry,
                      const LinearAttentionArgs<T, S>& args) noexcept {
  const LinearAttentionAnyArgs any = &args;
  // One token: some heads together, since the update of one goes with the sums of the next.
  constexpr std::int64_t kAloneFloats = 1 << 16;
  const std::int64_t heads = geometry.kv_num_heads, size = geometry.key_dim * geometry.value_dim;
  const std::int64_t per_task =
      geometry.length == 1 ? std::clamp<std::int64_t>(kAloneFloats / size, 1, heads) : 1;
  const std::int64_t tasks = (heads + per_task - 1) / per_task;
  device.parallel_for(geometry.sequences * tasks, [&](std::int64_t task) {
    const std::int64_t h = task % tasks * per_task;
    HWY_DYNAMIC_DISPATCH(heads_task)
    (any, geometry, task / tasks, h, std::min(per_task, heads - h));
  });
}

template void linear_attention(const Cpu&, const contract::LinearAttentionGeometry&,
                               const LinearAttentionArgs<float>&) noexcept;
template void linear_attention(const Cpu&, const contract::LinearAttentionGeometry&,
                               const LinearAttentionArgs<Float16>&) noexcept;
template void linear_attention(const Cpu&, const contract::LinearAttentionGeometry&,
                               const LinearAttentionArgs<BFloat16>&) noexcept;
template void linear_attention(const Cpu&, const contract::LinearAttentionGeometry&,
                               const LinearAttentionArgs<Float16, Float16>&) noexcept;
template void linear_attention(const Cpu&, const contract::LinearAttentionGeometry&,
                               const LinearAttentionArgs<BFloat16, BFloat16>&) noexcept;

}  // namespace cpu
}  // namespace deltaworks
#endif  // HWY_ONCE

// The recurrent engine: token by token; the state is read from memory once and written once for up
// to kMaxBlock tokens.
//
// A task owns one value head of one sequence, or in a longer sequence all value heads of a key
// head, or with few heads some rows of them. State rows are independent, so a task works through them in tiles that stay in L1 while all
// tokens of a block pass: the update of one token and the two sums of the next share one sweep
// (load, multiply, multiply, add, store, two fma). Lanes run along the key dimension, the layout of
// the state, or for many tokens along the rows, in transposed tiles (enum Form). Tokens that the
// chunked engine takes go there first.
#include "cpu/gated_delta_net.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gated_delta_net.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <tuple>

#include "contract/engine.hpp"
#include "cpu/gated_delta_net_block-inl.h"
#include "cpu/gated_delta_net_chunked-inl.h"
#include "cpu/gated_delta_net_pass-inl.h"
#include "cpu/load-inl.h"
#include "cpu/sum-inl.h"

#ifndef DELTAWORKS_CPU_GATED_DELTA_NET_KERNELS_
#define DELTAWORKS_CPU_GATED_DELTA_NET_KERNELS_
namespace deltaworks::cpu {

// Of a sequence: from here on the heads that share a key are one task.
constexpr std::int64_t kManyTokens = 16;

// The rows of each value head are cut into `parts` for tasks of their own.
struct RowPart {
  std::int64_t part, parts;
};

// One instruction set's kernels: all tokens of value head h of sequence b.
template <class T, class G = float>
using RunHead = void (*)(const GatedDeltaNetArgs<T, G>& args,
                         const contract::GatedDeltaNetGeometry& geometry, std::int64_t b,
                         std::int64_t h, RowPart rows);

struct GatedDeltaNetKernels {
  std::tuple<RunHead<float>, RunHead<Float16>, RunHead<BFloat16>, RunHead<Float16, Float16>,
             RunHead<BFloat16, BFloat16>>
      run_head;
  void (*replay_head)(const ReplayGatedDeltaStateArgs& args,
                      const contract::GatedDeltaNetGeometry& geometry, std::int64_t b,
                      std::int64_t h);
};

}  // namespace deltaworks::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// One sequence of a call, and the rows of its value heads that a task has.
struct Sequence {
  std::int64_t b, start, length;
  bool is_skipped, starts_from_zero;
  std::int64_t slot_in, slot_out;
  std::int64_t row, rows;
};

template <class T, class G>
Sequence sequence_of(const GatedDeltaNetArgs<T, G>& args, std::int64_t b, std::int64_t rows) {
  const std::int64_t start = args.cu_seqlens(b), length = args.cu_seqlens(b + 1) - start;
  const std::int64_t in = args.slots_in ? (*args.slots_in)(b) : b;
  const std::int64_t out = args.slots_out ? (*args.slots_out)(b) : b;
  const bool from_zero = !args.initial_state || (args.fresh && (*args.fresh)(b) != 0);
  return {b, start, length, contract::is_skipped(args, b), from_zero, in, out, 0, rows};
}

// Where one head's parts of a sequence's capsule lie, and how many tokens go there.
struct Capsule {
  float* decays = nullptr;
  float* keys = nullptr;
  float* deltas = nullptr;
  std::int64_t captured = 0;
};

template <class T, class G>
Capsule capsule_of(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
                   const Sequence& sequence, std::int64_t h) {
  if (g.capacity == 0) return {};
  const std::int64_t columns = g.decay_per_key ? g.key_dim : 1;
  const std::int64_t key_head = h / g.heads_per_key();
  float* const row = args.state_update->row(sequence.b);
  return {
      row + h * columns, row + g.capacity * g.decays() + key_head * g.key_dim,
      row + g.capacity * (g.decays() + g.key_heads * g.key_dim) + h * g.value_dim + sequence.row,
      contract::captured_tokens(args, g, sequence.b)};
}

// Who writes what a head shares among the parts of its rows, and a group of heads among its heads.
HWY_INLINE bool owns_decays(const Sequence& sequence) { return sequence.row == 0; }
HWY_INLINE bool owns_keys(const contract::GatedDeltaNetGeometry& g, const Sequence& sequence,
                          std::int64_t h) {
  return sequence.row == 0 && h % g.heads_per_key() == 0;
}

// Zeros in the slots that no token is captured in.
template <class T, class G>
void clear_capsule(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
                   const Sequence& sequence, std::int64_t h) {
  const Capsule capsule = capsule_of(args, g, sequence, h);
  for (std::int64_t slot = capsule.captured; slot < g.capacity; ++slot) {
    if (owns_decays(sequence)) {
      std::fill_n(capsule.decays + slot * g.decays(), g.decays() / g.value_heads, 0.0f);
    }
    std::fill_n(capsule.deltas + slot * g.value_heads * g.value_dim, sequence.rows, 0.0f);
    if (owns_keys(g, sequence, h)) {
      std::fill_n(capsule.keys + slot * g.key_heads * g.key_dim, g.key_dim, 0.0f);
    }
  }
}

void capture_gates_and_keys(const contract::GatedDeltaNetGeometry& g, const Sequence& sequence,
                            std::int64_t h, const Capsule& capsule, std::int64_t first,
                            const Token* token, std::int64_t count) {
  if (!owns_decays(sequence)) return;
  for (std::int64_t t = 0; t < count && first + t < capsule.captured; ++t) {
    float* const decays = capsule.decays + (first + t) * g.decays();
    if (g.decay_per_key) {
      std::copy_n(token[t].decays, g.key_dim, decays);
    } else {
      *decays = token[t].factor;
    }
    if (owns_keys(g, sequence, h)) {
      std::copy_n(token[t].key, g.key_dim, capsule.keys + (first + t) * g.key_heads * g.key_dim);
    }
  }
}

// All that a head of a sequence without tokens does, and what one that starts from zero does first.
template <class T, class G>
void open_state(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
                const Sequence& sequence, std::int64_t h) {
  const std::int64_t offset = (h * g.value_dim + sequence.row) * g.key_dim;
  const std::int64_t size = sequence.rows * g.key_dim;
  float* const to = args.final_state.row(sequence.slot_out) + offset;
  if (sequence.starts_from_zero) {
    std::fill_n(to, size, 0.0f);
  } else if (sequence.length == 0) {
    const float* const from = args.initial_state->row(sequence.slot_in) + offset;
    if (from != to) std::copy_n(from, size, to);
  }
}

template <class T>
void skip_head(const View<T, 3>& output, const Sequence& sequence, std::int64_t h) {
  for (std::int64_t t = 0; t < sequence.length; ++t) {
    std::fill_n(&output(sequence.start + t, h, sequence.row), sequence.rows, from_float<T>(0.0f));
  }
}

// Tokens first … first + count − 1 of a sequence for value heads h … h + heads − 1; `left` with those behind them.
struct Part {
  std::int64_t h, heads, first, count, left;
  Form form;
};

// Where a part's values and outputs lie, and what to fetch while its tokens pass: the rows of the next head, or of the
// next block of tokens for the first of the task's heads h … end − 1; and the keys and queries of that block or, behind the
// last one, of the next key head, whose task the thread often has next.
template <class T, class G>
Head<T> head_of(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
                const Sequence& sequence, std::int64_t h, std::int64_t end, const Part& part) {
  const std::int64_t start = sequence.start + part.first;
  const bool is_last = part.h + part.heads >= end;
  const std::int64_t next_start = std::min(start + part.count, g.tokens - 1);
  const std::int64_t next = is_last ? next_start : start;
  const std::int64_t at = part.h * g.value_dim + sequence.row;
  const std::int64_t next_at = (is_last ? h : part.h + 1) * g.value_dim + sequence.row;
  const bool is_last_block = part.count == part.left;
  const std::int64_t ahead_start = is_last_block ? start : next_start, bytes = sizeof(T);
  const std::int64_t key_head = h / g.heads_per_key() + (is_last_block ? 1 : 0);
  const std::int64_t key = std::min(key_head, g.key_heads - 1) * g.key_dim;
  const auto share = [&](std::int64_t heads) { return heads * g.key_dim * bytes / (end - h); };
  return {
      .value = args.value.row(start) + at,
      .output = args.output.row(start) + at,
      .value_stride = args.value.row_stride(),
      .output_stride = args.output.row_stride(),
      .next_value = args.value.row(next) + next_at,
      .next_output = args.output.row(next) + next_at,
      .ahead = {.key = reinterpret_cast<const char*>(args.key.row(ahead_start) + key),
                .query = reinterpret_cast<const char*>(args.query.row(ahead_start) + key),
                .key_stride = args.key.row_stride() * bytes,
                .query_stride = args.query.row_stride() * bytes,
                .tokens = is_last_block ? part.count : std::min(part.count, part.left - part.count),
                .begin = share(part.h - h),
                .end = share(part.h + 1 - h)}};
}

// The tokens of a part, whose keys and gates are in the block. Several heads have one token, and their rows follow each
// other everywhere.
template <class T, class G>
void run_part(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
              const Sequence& sequence, const Part& part, const Head<T>& head, Block& block) {
  const auto [h, heads, first, count, left, form] = part;
  const std::int64_t offset = (h * g.value_dim + sequence.row) * g.key_dim;
  const std::int64_t rows = (heads - 1) * g.value_dim + sequence.rows;
  const std::int64_t deltas_stride = g.value_heads * g.value_dim;
  const Capsule capsule = capsule_of(args, g, sequence, h);
  const bool captures = first < capsule.captured;
  float* const to = args.final_state.row(sequence.slot_out) + offset;
  const float* const from = first > 0 || sequence.starts_from_zero
                                ? to
                                : args.initial_state->row(sequence.slot_in) + offset;
  for (std::int64_t i = 0; i < heads; ++i) {
    capture_gates_and_keys(g, sequence, h + i, capsule_of(args, g, sequence, h + i), first,
                           block.token + i, count);
  }
  const Steps steps{
      .form = form,
      .token = block.token,
      .count = count,
      .head_rows = g.value_dim,
      .deltas = captures ? capsule.deltas + first * deltas_stride : nullptr,
      .deltas_stride = deltas_stride,
      .captured = captures ? capsule.captured - first : 0,
      .recalls =
          args.update_rule == UpdateRule::kDelta || args.update_rule == UpdateRule::kGatedDelta,
      .scale = args.scale != 0 ? args.scale : 1.0f / std::sqrt(static_cast<float>(g.key_dim))};
  run_block(from, to, rows, g.key_dim, head, steps);
}

// The head of a task does the work of all value heads that share its key head where that saves more
// than it costs in tasks: for many tokens, and when there are tasks enough for the threads.
HWY_INLINE bool shares_keys(const contract::GatedDeltaNetGeometry& g, const Sequence& sequence) {
  constexpr std::int64_t kManyTasks = 16;
  return sequence.length >= cpu::kManyTokens || g.sequences * g.key_heads >= kManyTasks;
}

// Heads whose rows pass as if they were one head's: then the pipeline of a lone token runs full.
HWY_INLINE std::int64_t heads_together(const contract::GatedDeltaNetGeometry& g,
                                       const Sequence& sequence, Form form) {
  const bool joins = form == Form::kLone && !g.decay_per_key && g.value_dim % kRows == 0 &&
                     sequence.rows == g.value_dim;
  return joins ? std::clamp<std::int64_t>(kMaxLoneRows / g.value_dim, 1, kMaxBlock) : 1;
}

// Blocks of tokens of value heads h … end − 1, which share a key head, from token `begin` on.
template <class T, class G>
void run_heads(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
               const Sequence& sequence, std::int64_t h, std::int64_t end, std::int64_t begin) {
  const std::int64_t vectors = g.decay_per_key ? 3 : 2;
  Block block;
  Gates gates;
  for (std::int64_t first = begin, count = 0; first < sequence.length; first += count) {
    const std::int64_t start = sequence.start + first, left = sequence.length - first;
    const Form form = form_of(left, sequence.rows, g.key_dim);
    count = std::min({left, kMaxBlock, kScratch / (vectors * padded_dim(g.key_dim))});
    const std::int64_t together = heads_together(g, sequence, form);
    const std::int64_t prepared = std::max(together, kMaxBlock / count / together * together);
    prepare_keys(args, start, count, h / g.heads_per_key(), block);
    for (std::int64_t head = h; head < end; head += together) {
      const Part part{head, std::min(together, end - head), first, count, left, form};
      const std::int64_t place = (head - h) % prepared;
      if (place == 0) {
        prepare_gates(args, start, count, head, std::min(prepared, end - head), gates);
      }
      for (std::int64_t i = part.heads - 1; i >= 0; --i) {
        block.token[i] = block.token[0];
        choose_gates(args, start, count, head + i, place + i, gates, block, block.token + i);
      }
      run_part(args, g, sequence, part, head_of(args, g, sequence, h, end, part), block);
    }
  }
}

// The first `tokens` of value heads h … end − 1, which the chunked engine takes.
template <class T, class G>
void run_chunks(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
                const Sequence& sequence, std::int64_t h, std::int64_t end, std::int64_t tokens) {
  float* const to = args.final_state.row(sequence.slot_out);
  const float* const from =
      sequence.starts_from_zero ? to : args.initial_state->row(sequence.slot_in);
  chunked::run_chunks(args, g, {sequence.start, tokens, h / g.heads_per_key(), h, end, from, to});
}

// Some rows of value head h of sequence b, or of all heads that share its key head. The chunked engine's heads are whole.
template <class T, class G>
void run_head(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
              std::int64_t b, std::int64_t h, cpu::RowPart rows) {
  Sequence sequence = sequence_of(args, b, g.value_dim);
  const bool shares = shares_keys(g, sequence);
  if (shares && h % g.heads_per_key() != 0) return;
  const std::int64_t chunked = contract::chunked_tokens(args, g, b);
  if (chunked == 0) {
    const std::int64_t part_rows = g.value_dim / rows.parts / 8 * 8;  // whole groups of rows
    const bool is_last = rows.part + 1 == rows.parts;
    sequence.row = rows.part * part_rows;
    sequence.rows = is_last ? g.value_dim - sequence.row : part_rows;
  } else if (rows.part > 0) {
    return;
  }
  const std::int64_t end = shares ? h + g.heads_per_key() : h + 1;
  for (std::int64_t head = h; head < end; ++head) {
    clear_capsule(args, g, sequence, head);
    if (sequence.is_skipped) {
      skip_head(args.output, sequence, head);
    } else {
      open_state(args, g, sequence, head);
    }
  }
  if (sequence.is_skipped) return;
  if (chunked > 0) run_chunks(args, g, sequence, h, end, chunked);
  run_heads(args, g, sequence, h, end, chunked);
}

// The slots of a capsule as one value head sees them.
struct Slots {
  const float* decays;
  const float* keys;
  const float* deltas;
  std::int64_t decays_stride, keys_stride, deltas_stride, count;
};

// Columns i … i + n − 1 of rows v … v + kN − 1 of the state after all slots, rounded as the engine rounds. `from` and `to`
// are row v, which is fetched as far ahead as a lone token's rows are.
template <bool kPerKey, int kN, class D>
HWY_INLINE void replay_columns(D d, const Slots& slots, const float* from, float* to,
                               std::int64_t v, std::int64_t i, std::int64_t key_dim,
                               std::size_t n) {
  hn::Vec<D> x[kN];
  for (int row = 0; row < kN; ++row) {
    const std::int64_t at = row * key_dim + i;
    hwy::Prefetch(from + InStream::kAhead + at);
    if (from != to) hwy::Prefetch(to + InStream::kAhead + at);
    x[row] = load_float_n(d, from + at, n);
  }
  for (std::int64_t slot = 0; slot < slots.count; ++slot) {
    const float* const decays = slots.decays + slot * slots.decays_stride;
    const float* const deltas = slots.deltas + slot * slots.deltas_stride + v;
    const auto a = kPerKey ? load_float_n(d, decays + i, n) : hn::Set(d, *decays);
    const auto k = load_float_n(d, slots.keys + slot * slots.keys_stride + i, n);
    for (int row = 0; row < kN; ++row) {
      x[row] = hn::Add(hn::Mul(a, x[row]), hn::Mul(k, hn::Set(d, deltas[row])));
    }
  }
  for (int row = 0; row < kN; ++row) store_float_n(x[row], d, to + row * key_dim + i, n);
}

// Rows v … v + kN − 1: the state is read and written once for all slots.
template <bool kPerKey, int kN>
HWY_INLINE void replay_rows(const Slots& slots, const float* from, float* to, std::int64_t v,
                            std::int64_t key_dim) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  from += v * key_dim;
  to += v * key_dim;
  std::int64_t i = 0;
  for (; i + lanes <= key_dim; i += lanes) {
    replay_columns<kPerKey, kN>(d, slots, from, to, v, i, key_dim, static_cast<std::size_t>(lanes));
  }
  if (i < key_dim) {
    replay_columns<kPerKey, kN>(d, slots, from, to, v, i, key_dim,
                                static_cast<std::size_t>(key_dim - i));
  }
}

// Replay of one value head. Four rows share a slot's keys: one by one they take twice as long.
template <bool kPerKey>
void replay_all_rows(const Slots& slots, const float* from, float* to, std::int64_t value_dim,
                     std::int64_t key_dim) {
  constexpr int kTogether = 4;
  std::int64_t v = 0;
  for (; v + kTogether <= value_dim; v += kTogether) {
    replay_rows<kPerKey, kTogether>(slots, from, to, v, key_dim);
  }
  for (; v < value_dim; ++v) replay_rows<kPerKey, 1>(slots, from, to, v, key_dim);
}

void replay_head(const ReplayGatedDeltaStateArgs& args, const contract::GatedDeltaNetGeometry& g,
                 std::int64_t b, std::int64_t h) {
  const std::int64_t size = g.value_dim * g.key_dim, keys = g.key_heads * g.key_dim;
  const float* const from = args.initial_state.row(b) + h * size;
  float* const to = args.final_state.row(b) + h * size;
  const float* const row = args.state_update.row(b);
  const Slots slots{.decays = row + h * (g.decay_per_key ? g.key_dim : 1),
                    .keys = row + g.capacity * g.decays() + h / g.heads_per_key() * g.key_dim,
                    .deltas = row + g.capacity * (g.decays() + keys) + h * g.value_dim,
                    .decays_stride = g.decays(),
                    .keys_stride = keys,
                    .deltas_stride = g.value_heads * g.value_dim,
                    .count = args.count(b)};
  if (slots.count == 0) {
    if (from != to) std::copy_n(from, size, to);
  } else if (g.decay_per_key) {
    replay_all_rows<true>(slots, from, to, g.value_dim, g.key_dim);
  } else {
    replay_all_rows<false>(slots, from, to, g.value_dim, g.key_dim);
  }
}

const cpu::GatedDeltaNetKernels& kernels() {
  static constexpr cpu::GatedDeltaNetKernels kKernels{
      {run_head<float, float>, run_head<Float16, float>, run_head<BFloat16, float>,
       run_head<Float16, Float16>, run_head<BFloat16, BFloat16>},
      replay_head};
  return kKernels;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaworks {

HWY_EXPORT(kernels);

namespace cpu {

namespace {

// Multiplications under which a thread's wake-up costs more than it saves. With two threads of ONNX Runtime, which spin for a
// while, calls of 2^18 (38 us) gain nothing and those of 2^19 (97 us on one) 1.4 to 2.1 times; with threads that sleep,
// which a virtual machine wakes in 55 us, gains begin at about 2^23.
constexpr std::int64_t kWorthSplitting = 1 << 19;

ParallelFor for_work(const Cpu& device, std::int64_t work) {
  return work < kWorthSplitting ? ParallelFor{} : device.parallel_for;
}

// A pool does not tell how many it has.
std::int64_t most_threads(const ParallelFor& parallel_for) {
  static const std::int64_t processors = std::thread::hardware_concurrency();
  return parallel_for.run == nullptr ? 1 : processors;
}

// Into how many tasks the rows of a head go where heads are fewer than threads. Each prepares the keys, which takes as long
// as 13 rows of 128 do.
std::int64_t row_parts(std::int64_t threads, const contract::GatedDeltaNetGeometry& g,
                       std::int64_t work) {
  constexpr std::int64_t kPartRows = 32;
  const bool is_short = g.tokens < kManyTokens * g.sequences;
  const std::int64_t tasks = g.sequences * (is_short ? g.value_heads : g.key_heads);
  if (tasks == 0 || tasks >= threads) return 1;
  const std::int64_t parts = std::min(
      {(threads + tasks - 1) / tasks, g.value_dim / kPartRows, 2 * work / kWorthSplitting});
  return std::max<std::int64_t>(parts, 1);
}

}  // namespace

template <class T, class G>
void gated_delta_net(const Cpu& device, const contract::GatedDeltaNetGeometry& g,
                     const GatedDeltaNetArgs<T, G>& args) noexcept {
  const auto run_head = std::get<RunHead<T, G>>(HWY_DYNAMIC_DISPATCH(kernels)().run_head);
  const std::int64_t work = (g.tokens + g.sequences) * g.value_heads * g.value_dim * g.key_dim;
  const ParallelFor parallel_for = for_work(device, work);
  const std::int64_t parts = row_parts(most_threads(parallel_for), g, work);
  parallel_for(g.sequences * g.value_heads * parts, [&](std::int64_t task) {
    const std::int64_t head = task / parts;
    run_head(args, g, head / g.value_heads, head % g.value_heads, {task % parts, parts});
  });
}

void replay_gated_delta_state(const Cpu& device, const contract::GatedDeltaNetGeometry& g,
                              const ReplayGatedDeltaStateArgs& args) noexcept {
  const auto replay_head = HWY_DYNAMIC_DISPATCH(kernels)().replay_head;
  const std::int64_t work =
      g.sequences * g.value_heads * g.value_dim * g.key_dim * (g.capacity + 1);
  for_work(device, work)(g.sequences * g.value_heads, [&](std::int64_t task) {
    replay_head(args, g, task / g.value_heads, task % g.value_heads);
  });
}

template void gated_delta_net(const Cpu&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<float>&) noexcept;
template void gated_delta_net(const Cpu&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<Float16>&) noexcept;
template void gated_delta_net(const Cpu&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<BFloat16>&) noexcept;
template void gated_delta_net(const Cpu&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<Float16, Float16>&) noexcept;
template void gated_delta_net(const Cpu&, const contract::GatedDeltaNetGeometry&,
                              const GatedDeltaNetArgs<BFloat16, BFloat16>&) noexcept;

}  // namespace cpu
}  // namespace deltaworks
#endif

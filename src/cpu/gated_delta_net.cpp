// The recurrent engine: token by token, the state read from memory once and written once for up to
// kScratch tokens.
//
// A task owns one value head of one sequence. Its state rows are independent, so it works through
// them in tiles that stay in L1 while all tokens of a block pass: the update of one token and the
// two sums of the next share one sweep (load, multiply, multiply, add, store, two fma). Lanes run
// along the key dimension: the layout of the state.
#include "cpu/gated_delta_net.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gated_delta_net.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "cpu/gated_delta_net_block-inl.h"
#include "cpu/load-inl.h"
#include "cpu/sum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace deltaworks {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kMaxTileRows = 32;  // with key_dim 128 a tile is 16 KiB, half of a small L1
constexpr std::int64_t kTileBytes = 16 << 10;
constexpr int kRows =
    4;  // swept together: 8 sums hide the latency of fma, and 16 registers hold them

// r[row] and p[row], rows of the state times key and query.
template <int kR>
struct Sums {
  HWY_ALIGN float both[2 * kR];

  float* recalled() { return both; }
  float* queried() { return both + kR; }
  const float* recalled() const { return both; }
  const float* queried() const { return both + kR; }
};

#if HWY_TARGET != HWY_SCALAR
// Adjacent sums of four lanes at a time: [u0+u2, u1+u3, v0+v2, v1+v3], the second level of the
// tree.
template <class D>
HWY_INLINE hn::Vec<D> fold_to_pairs(D d, hn::Vec<D> u, hn::Vec<D> v) {
  const hn::Repartition<double, D> dd;
  const auto a = hn::BitCast(dd, u), b = hn::BitCast(dd, v);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(dd, a, b)),
                 hn::BitCast(d, hn::InterleaveUpper(dd, a, b)));
}

// The last level: [x0+x1, y0+y1, x2+x3, y2+y3].
template <class D>
HWY_INLINE hn::Vec<D> fold_to_sums(D, hn::Vec<D> x, hn::Vec<D> y) {
  return hn::OddEven(hn::Add(y, hn::Shuffle2301(y)), hn::Add(x, hn::Shuffle2301(x)));
}
#endif

// The tree of sum8 over all sums at once: a third of the instructions of one by one.
template <int kR>
HWY_INLINE void add_partials(const Eight (&r)[kR], const Eight (&p)[kR], Sums<kR>& sums) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kR == 4) {
    V8 w[2][4];  // four lanes a sum: with 8 lanes r in the lower half and p in the upper one
    for (int i = 0; i < 4; ++i) {
      if constexpr (kParts8 == 1) {
        w[0][i] = hn::Add(hn::ConcatLowerLower(d8, p[i].part[0], r[i].part[0]),
                          hn::ConcatUpperUpper(d8, p[i].part[0], r[i].part[0]));
      } else {
        w[0][i] = hn::Add(r[i].part[0], r[i].part[kParts8 - 1]);
        w[1][i] = hn::Add(p[i].part[0], p[i].part[kParts8 - 1]);
      }
    }
    for (std::size_t half = 0; half < kParts8; ++half) {
      const auto even = fold_to_pairs(d8, w[half][0], w[half][2]);
      const auto odd = fold_to_pairs(d8, w[half][1], w[half][3]);
      hn::Store(fold_to_sums(d8, even, odd), d8, half == 0 ? sums.recalled() : sums.queried());
    }
    return;
  }
#endif
  for (int i = 0; i < kR; ++i) {
    sums.recalled()[i] = sum8(r[i]);
    sums.queried()[i] = sum8(p[i]);
  }
}

// One sweep over kR rows: applies `now` with its deltas, then sums the rows for `next`. Either may
// be absent.
template <int kR, bool kUpdate, bool kSum, bool kPerKey>
HWY_INLINE void sweep(const float* from, float* to, std::int64_t key_dim, const Token* now,
                      const float* delta, const Token* next, Sums<kR>& sums) {
  Eight r[kR], p[kR], change[kR];
  for (int row = 0; row < kR; ++row) {
    if constexpr (kSum) r[row] = p[row] = set8(0.0f);
    if constexpr (kUpdate) change[row] = set8(delta[row]);
  }
  const Eight factor = set8(kUpdate ? now->factor : 1.0f);
  const auto columns = [&](std::int64_t i, auto load, auto store) HWY_ATTR {
    Eight key_now, factors, key_next, query_next, factors_next;
    if constexpr (kUpdate) key_now = load8(now->key + i);
    if constexpr (kUpdate && kPerKey) factors = load8(now->decays + i);
    if constexpr (kSum) key_next = load8(next->key + i);
    if constexpr (kSum) query_next = load8(next->query + i);
    if constexpr (kSum && kPerKey) factors_next = load8(next->decays + i);
    for (int row = 0; row < kR; ++row) {
      Eight s = load(from + row * key_dim + i);
      if constexpr (kUpdate) {
        s = add8(mul8(kPerKey ? factors : factor, s), mul8(key_now, change[row]));
        store(s, to + row * key_dim + i);
      }
      if constexpr (kSum) {
        if constexpr (kPerKey) s = mul8(factors_next, s);
        r[row] = mul_add8(s, key_next, r[row]);
        p[row] = mul_add8(s, query_next, p[row]);
      }
    }
  };
  const std::int64_t whole = key_dim / 8 * 8;
  for (std::int64_t i = 0; i < whole; i += 8) {
    columns(
        i, [](const float* x) HWY_ATTR { return load8(x); },
        [](const Eight& s, float* x) HWY_ATTR { store8(s, x); });
  }
  if (whole < key_dim) {
    const auto n = static_cast<std::size_t>(key_dim - whole);
    columns(
        whole, [n](const float* x) HWY_ATTR { return load8_n(x, n); },
        [n](const Eight& s, float* x) HWY_ATTR { store8_n(s, x, n); });
  }
  if constexpr (kSum) add_partials<kR>(r, p, sums);
}

// The deltas and outputs of kR rows of one token.
template <int kR, bool kPerKey, class T>
HWY_INLINE void finish(const Token& token, const Sums<kR>& sums, bool recalls, float scale,
                       const T* value, float* delta, T* output) {
  const hn::CappedTag<float, kR> d;
  for (std::size_t i = 0; i < kR; i += hn::Lanes(d)) {
    auto recalled = hn::Load(d, sums.recalled() + i), queried = hn::Load(d, sums.queried() + i);
    if constexpr (!kPerKey) {
      const auto factor = hn::Set(d, token.factor);
      recalled = hn::Mul(factor, recalled);
      queried = hn::Mul(factor, queried);
    }
    auto wanted = load_float(d, value + i);
    if (recalls) wanted = hn::Sub(wanted, recalled);
    const auto change = hn::Mul(hn::Set(d, token.beta), wanted);
    hn::StoreU(change, d, delta + i);
    const auto read = hn::Add(queried, hn::Mul(hn::Set(d, token.key_query), change));
    store_float(hn::Mul(hn::Set(d, scale), read), d, output + i);
  }
}

// What a task writes besides the state.
template <class T>
struct Head {
  const T* value;  // of the block's first token
  T* output;
  std::int64_t value_stride, output_stride;
  float* deltas;  // of the capsule, from the block's first token on; null: none is captured
  std::int64_t deltas_stride, captured;
  bool recalls;
  float scale;
};

// All tokens of a block over a tile of `rows` rows. Within a token the groups of rows are
// independent: while one adds its partials, the next one sweeps.
template <int kR, bool kPerKey, class T>
HWY_NOINLINE void run_tile(const float* from, float* to, std::int64_t rows, std::int64_t key_dim,
                           const Token* token, std::int64_t count, const Head<T>& head,
                           std::int64_t first_row) {
  HWY_ALIGN float delta[kMaxTileRows];
  Sums<kR> sums;
  for (std::int64_t t = 0; t <= count; ++t) {
    const float* const source = t <= 1 ? from : to;
    for (std::int64_t row = 0; row + kR <= rows; row += kR) {
      const float* const s = source + row * key_dim;
      float* const s_new = to + row * key_dim;
      const Token* const now = t > 0 ? &token[t - 1] : nullptr;
      if (t == 0) {
        sweep<kR, false, true, kPerKey>(s, s_new, key_dim, now, delta + row, &token[t], sums);
      } else if (t < count) {
        sweep<kR, true, true, kPerKey>(s, s_new, key_dim, now, delta + row, &token[t], sums);
      } else {
        sweep<kR, true, false, kPerKey>(s, s_new, key_dim, now, delta + row, nullptr, sums);
        continue;
      }
      finish<kR, kPerKey>(token[t], sums, head.recalls, head.scale,
                          head.value + t * head.value_stride + first_row + row, delta + row,
                          head.output + t * head.output_stride + first_row + row);
    }
    if (t < head.captured && t < count) {
      std::copy_n(delta, rows, head.deltas + t * head.deltas_stride + first_row);
    }
  }
}

template <bool kPerKey, class T>
void run_block(const float* from, float* to, std::int64_t value_dim, std::int64_t key_dim,
               const Token* token, std::int64_t count, const Head<T>& head) {
  const std::int64_t fitting = kTileBytes / static_cast<std::int64_t>(sizeof(float)) / key_dim;
  const std::int64_t tile = std::clamp<std::int64_t>(fitting / kRows * kRows, kRows, kMaxTileRows);
  std::int64_t row = 0;
  for (; row + kRows <= value_dim; row += tile) {
    const std::int64_t rows = std::min(tile, (value_dim - row) / kRows * kRows);
    run_tile<kRows, kPerKey>(from + row * key_dim, to + row * key_dim, rows, key_dim, token, count,
                             head, row);
    if (rows < tile) {
      row += rows;
      break;
    }
  }
  for (; row < value_dim; ++row) {
    run_tile<1, kPerKey>(from + row * key_dim, to + row * key_dim, 1, key_dim, token, count, head,
                         row);
  }
}

// Where one sequence's parts of the capsule lie.
struct Capsule {
  float* decays = nullptr;
  float* keys = nullptr;
  float* deltas = nullptr;
  std::int64_t captured = 0;
};

// Clears this head's slots and tells where they are.
template <class T, class G>
Capsule open_capsule(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
                     std::int64_t b, std::int64_t h, std::int64_t length) {
  if (g.capacity == 0) return {};
  const std::int64_t columns = g.decay_per_key ? g.key_dim : 1;
  const std::int64_t key_head = h / g.heads_per_key();
  float* const row = args.state_update->row(b);
  Capsule capsule{row + h * columns, row + g.capacity * g.decays() + key_head * g.key_dim,
                  row + g.capacity * (g.decays() + g.key_heads * g.key_dim) + h * g.value_dim, 0};
  for (std::int64_t slot = 0; slot < g.capacity; ++slot) {
    std::fill_n(capsule.decays + slot * g.decays(), columns, 0.0f);
    std::fill_n(capsule.deltas + slot * g.value_heads * g.value_dim, g.value_dim, 0.0f);
    if (h % g.heads_per_key() == 0) {  // the group's first head writes the shared key
      std::fill_n(capsule.keys + slot * g.key_heads * g.key_dim, g.key_dim, 0.0f);
    }
  }
  if (args.state_update_active) {
    const std::int64_t limit = std::min(g.capacity, length);
    capsule.captured = std::clamp<std::int64_t>((*args.capture_count)(b), 0, limit);
  }
  return capsule;
}

void capture_gates_and_keys(const contract::GatedDeltaNetGeometry& g, std::int64_t h,
                            const Capsule& capsule, std::int64_t first, const Token* token,
                            std::int64_t count) {
  for (std::int64_t t = 0; t < count && first + t < capsule.captured; ++t) {
    float* const decays = capsule.decays + (first + t) * g.decays();
    if (g.decay_per_key) {
      std::copy_n(token[t].decays, g.key_dim, decays);
    } else {
      *decays = token[t].factor;
    }
    if (h % g.heads_per_key() == 0) {
      std::copy_n(token[t].key, g.key_dim, capsule.keys + (first + t) * g.key_heads * g.key_dim);
    }
  }
}

// Copies or clears the state of a sequence that starts here: the source of the first block.
template <class T, class G>
const float* first_state(const GatedDeltaNetArgs<T, G>& args, std::int64_t b, std::int64_t h,
                         std::int64_t size, std::int64_t length, float* to) {
  const bool starts_from_zero = !args.initial_state || (args.fresh && (*args.fresh)(b) != 0);
  if (starts_from_zero) {
    std::fill_n(to, size, 0.0f);
    return to;
  }
  const std::int64_t slot = args.slots_in ? (*args.slots_in)(b) : b;
  const float* const from = args.initial_state->row(slot) + h * size;
  if (length == 0 && from != to) std::copy_n(from, size, to);
  return from;
}

template <class T, class G>
void run_head(const GatedDeltaNetArgs<T, G>& args, const contract::GatedDeltaNetGeometry& g,
              std::int64_t b, std::int64_t h) {
  const std::int64_t start = args.cu_seqlens(b), length = args.cu_seqlens(b + 1) - start;
  const bool skipped = args.slots_in && ((*args.slots_in)(b) < 0 || (*args.slots_out)(b) < 0);
  const Capsule capsule = open_capsule(args, g, b, h, skipped ? 0 : length);
  if (skipped) {
    for (std::int64_t t = start; t < start + length; ++t) {
      std::fill_n(args.output.row(t) + h * g.value_dim, g.value_dim, from_float<T>(0.0f));
    }
    return;
  }
  const std::int64_t size = g.value_dim * g.key_dim;
  float* const to = args.final_state.row(args.slots_out ? (*args.slots_out)(b) : b) + h * size;
  const float* from = first_state(args, b, h, size, length, to);
  const std::int64_t padded = (g.key_dim + 7) / 8 * 8;
  const std::int64_t longest = std::min(kMaxBlock, kScratch / ((g.decay_per_key ? 3 : 2) * padded));
  Block block;
  for (std::int64_t first = 0; first < length; first += longest) {
    const std::int64_t count = std::min(longest, length - first);
    prepare(args, start + first, count, h, h / g.heads_per_key(), block);
    capture_gates_and_keys(g, h, capsule, first, block.token, count);
    const Head<T> head{
        .value = args.value.row(start + first) + h * g.value_dim,
        .output = args.output.row(start + first) + h * g.value_dim,
        .value_stride = args.value.row_stride(),
        .output_stride = args.output.row_stride(),
        .deltas = capsule.deltas + first * g.value_heads * g.value_dim,
        .deltas_stride = g.value_heads * g.value_dim,
        .captured = capsule.captured - first,
        .recalls =
            args.update_rule == UpdateRule::kDelta || args.update_rule == UpdateRule::kGatedDelta,
        .scale = args.scale != 0 ? args.scale : 1.0f / std::sqrt(static_cast<float>(g.key_dim))};
    if (g.decay_per_key) {
      run_block<true>(from, to, g.value_dim, g.key_dim, block.token, count, head);
    } else {
      run_block<false>(from, to, g.value_dim, g.key_dim, block.token, count, head);
    }
    from = to;
  }
}

// Replay of one value head: the update of each slot, rounded as the engine rounds it.
void replay_head(const ReplayGatedDeltaStateArgs& args, const contract::GatedDeltaNetGeometry& g,
                 std::int64_t b, std::int64_t h) {
  const std::int64_t size = g.value_dim * g.key_dim, columns = g.decay_per_key ? g.key_dim : 1;
  const float* from = args.initial_state.row(b) + h * size;
  float* const to = args.final_state.row(b) + h * size;
  const float* const row = args.state_update.row(b);
  const float* const keys = row + g.capacity * g.decays() + h / g.heads_per_key() * g.key_dim;
  const float* const deltas =
      row + g.capacity * (g.decays() + g.key_heads * g.key_dim) + h * g.value_dim;
  if (args.count(b) == 0 && from != to) std::copy_n(from, size, to);
  for (std::int64_t slot = 0; slot < args.count(b); ++slot, from = to) {
    const float* const decays = row + slot * g.decays() + h * columns;
    const float* const key = keys + slot * g.key_heads * g.key_dim;
    const float* const delta = deltas + slot * g.value_heads * g.value_dim;
    for (std::int64_t v = 0; v < g.value_dim; ++v) {
      const Eight change = set8(delta[v]);
      for (std::int64_t i = 0; i < g.key_dim; i += 8) {
        const auto n = static_cast<std::size_t>(g.key_dim - i);
        const Eight factor = g.decay_per_key ? load8_n(decays + i, n) : set8(*decays);
        const Eight s = mul8(factor, load8_n(from + v * g.key_dim + i, n));
        store8_n(add8(s, mul8(load8_n(key + i, n), change)), to + v * g.key_dim + i, n);
      }
    }
  }
}

const cpu::GatedDeltaNetKernels& kernels() {
  static constexpr cpu::GatedDeltaNetKernels kKernels{
      {run_head<float, float>, run_head<Float16, float>, run_head<BFloat16, float>,
       run_head<Float16, Float16>, run_head<BFloat16, BFloat16>},
      replay_head};
  return kKernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace deltaworks
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaworks {

HWY_EXPORT(kernels);

namespace cpu {

namespace {

// Multiplications under which a thread's wake-up costs more than it saves.
constexpr std::int64_t kWorthSplitting = 1 << 17;

template <class Body>
void over_heads(const ParallelFor& parallel_for, std::int64_t heads, std::int64_t work,
                const Body& body) {
  (work < kWorthSplitting ? ParallelFor{} : parallel_for)(heads, body);
}

}  // namespace

template <class T, class G>
void gated_delta_net(const ParallelFor& parallel_for, const GatedDeltaNetArgs<T, G>& args,
                     const contract::GatedDeltaNetGeometry& g) noexcept {
  const auto run_head = std::get<RunHead<T, G>>(HWY_DYNAMIC_DISPATCH(kernels)().run_head);
  const std::int64_t work = (g.tokens + g.sequences) * g.value_heads * g.value_dim * g.key_dim;
  over_heads(parallel_for, g.sequences * g.value_heads, work, [&](std::int64_t task) {
    run_head(args, g, task / g.value_heads, task % g.value_heads);
  });
}

void replay_gated_delta_state(const ParallelFor& parallel_for,
                              const ReplayGatedDeltaStateArgs& args,
                              const contract::GatedDeltaNetGeometry& g) noexcept {
  const auto replay_head = HWY_DYNAMIC_DISPATCH(kernels)().replay_head;
  const std::int64_t work =
      g.sequences * g.value_heads * g.value_dim * g.key_dim * (g.capacity + 1);
  over_heads(parallel_for, g.sequences * g.value_heads, work, [&](std::int64_t task) {
    replay_head(args, g, task / g.value_heads, task % g.value_heads);
  });
}

template void gated_delta_net(const ParallelFor&, const GatedDeltaNetArgs<float>&,
                              const contract::GatedDeltaNetGeometry&) noexcept;
template void gated_delta_net(const ParallelFor&, const GatedDeltaNetArgs<Float16>&,
                              const contract::GatedDeltaNetGeometry&) noexcept;
template void gated_delta_net(const ParallelFor&, const GatedDeltaNetArgs<BFloat16>&,
                              const contract::GatedDeltaNetGeometry&) noexcept;
template void gated_delta_net(const ParallelFor&, const GatedDeltaNetArgs<Float16, Float16>&,
                              const contract::GatedDeltaNetGeometry&) noexcept;
template void gated_delta_net(const ParallelFor&, const GatedDeltaNetArgs<BFloat16, BFloat16>&,
                              const contract::GatedDeltaNetGeometry&) noexcept;

}  // namespace cpu
}  // namespace deltaworks
#endif

// How a call is cut into tasks. Shared by every instruction set; no result depends on it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <variant>

#include "contract/varlen_causal_conv.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks::cpu {

// Tokens of one sequence, counted from its start.
struct ConvUnit {
  std::int64_t sequence, begin, end;
};

// A sequence is cut into units of `unit_tokens` tokens; the unit that starts at token 0, which an
// empty sequence has too, also writes the capture and the final state. Units stand on one line, at
// cu_seqlens[sequence] + sequence + begin; a task owns a stretch of it, for a range of channels.
struct ConvPlan {
  static constexpr std::int64_t kTaskElements = 1 << 16;  // about 30 us
  static constexpr std::int64_t kChannelStep = 64;        // whole vectors on every target

  std::int64_t unit_tokens, task_positions, task_channels;
  std::int64_t positions, channels;

  explicit ConvPlan(const contract::VarlenCausalConvGeometry& geometry)
      : positions(geometry.tokens + geometry.sequences), channels(geometry.channels) {
    // Only the first unit may read initial_state: its task overwrites that, perhaps in place.
    unit_tokens = std::max<std::int64_t>(64, geometry.history);
    const std::int64_t narrow = kTaskElements / std::max<std::int64_t>(1, channels);
    task_positions = std::min(std::max(unit_tokens, narrow), std::max<std::int64_t>(1, positions));
    const std::int64_t steps = kTaskElements / task_positions / kChannelStep;
    task_channels = std::max<std::int64_t>(1, steps) * kChannelStep;
    if (positions * channels < 2 * kTaskElements) {  // starting a thread would cost more
      task_positions = std::max<std::int64_t>(1, positions);
      task_channels = std::max<std::int64_t>(1, channels);
    }
  }

  std::int64_t channel_tasks() const { return (channels + task_channels - 1) / task_channels; }
  std::int64_t tasks() const {
    return (positions + task_positions - 1) / task_positions * channel_tasks();
  }
  std::int64_t channel_begin(std::int64_t task) const {
    return task % channel_tasks() * task_channels;
  }
  std::int64_t channel_end(std::int64_t task) const {
    return std::min(channel_begin(task) + task_channels, channels);
  }

  template <class Body>
  void for_each_unit(const View<const std::int32_t, 1>& cu_seqlens, std::int64_t task,
                     const Body& body) const {
    const std::int64_t low = task / channel_tasks() * task_positions, high = low + task_positions;
    const std::int64_t sequences = cu_seqlens.extent(0) - 1;
    const auto place = [&](std::int64_t b) { return cu_seqlens(b) + b; };
    std::int64_t b = 0;
    for (std::int64_t step = sequences; step > 0;) {  // the first sequence that ends behind low
      const std::int64_t half = step / 2;
      if (place(b + half + 1) <= low) {
        b += half + 1;
        step -= half + 1;
      } else {
        step = half;
      }
    }
    for (; b < sequences && place(b) < high; ++b) {
      const std::int64_t length = cu_seqlens(b + 1) - cu_seqlens(b);
      const std::int64_t skipped =
          low <= place(b) ? 0 : (low - place(b) + unit_tokens - 1) / unit_tokens;
      for (std::int64_t begin = skipped * unit_tokens;
           (begin == 0 || begin < length) && place(b) + begin < high; begin += unit_tokens) {
        body(ConvUnit{b, begin, std::min(begin + unit_tokens, length)});
      }
    }
  }
};

// One name for every type: dispatch takes no template.
using ConvArgs =
    std::variant<const VarlenCausalConvArgs<float>*, const VarlenCausalConvArgs<Float16>*,
                 const VarlenCausalConvArgs<BFloat16>*>;
using ReplayArgs =
    std::variant<const ReplayConvStateArgs<float>*, const ReplayConvStateArgs<Float16>*,
                 const ReplayConvStateArgs<BFloat16>*>;

}  // namespace deltaworks::cpu

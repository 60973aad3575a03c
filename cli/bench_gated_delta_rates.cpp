#include <fmt/format.h>

#include "bench.hpp"
#include "deltaworks/gated_delta_rates.hpp"
#include "reference/gated_delta_rates.hpp"

namespace deltaworks::cli {

namespace {

template <class T>
class Problem {
 public:
  Problem(std::int64_t tokens, std::int64_t heads) : extents_{tokens, heads} {
    Draw draw(1);
    update_logits_ = draw.buffer<T>(tokens * heads, 2);
    decay_inputs_ = draw.buffer<T>(tokens * heads, 2);
    a_log_ = draw.buffer<float>(heads);
    dt_bias_ = draw.buffer<float>(heads, 2);
    update_rates_.resize(update_logits_.size());
    decay_factors_.resize(update_logits_.size());
  }

  double error() {
    std::vector<double> rates(update_rates_.size()), factors(rates.size());
    reference::gated_delta_rates(args(), {rates.data(), extents_}, {factors.data(), extents_});
    run(Cpu{});
    return std::max(excess<T>(update_rates_, rates), excess<float>(decay_factors_, factors));
  }
  void run(const Cpu& device) { gated_delta_rates(device, args()); }

  OnnxNode node() {
    const auto call = args();
    return {
        "GatedDeltaRates",
        "deltaworks",
        {operand("update_logits", call.update_logits), operand("decay_inputs", call.decay_inputs),
         operand("a_log", call.a_log), operand("dt_bias", call.dt_bias)},
        {operand("update_rates", call.update_rates), operand("decay_factors", call.decay_factors)},
        {{"log_decay", std::int64_t{1}}},
        {}};
  }
  // Takes the decay's scale, where ours takes its logarithm.
  OnnxNode gate_node() {
    for (const float a : a_log_) decay_scale_.push_back(-std::exp(a));
    const auto row = [&](const char* name, const Buffer<T>& data) {
      return operand(name, View<const T, 3>(data.data(), {1, extents_[0], extents_[1]}));
    };
    const auto per_head = [&](const char* name, const Buffer<float>& data) {
      return operand(name, View<const float, 1>(data.data(), {extents_[1]}));
    };
    return {"LinearAttentionGate",
            "com.microsoft",
            {row("a", decay_inputs_), per_head("dt_bias", dt_bias_),
             per_head("decay_scale", decay_scale_), row("b", update_logits_)},
            {row("decay", update_rates_), row("beta", update_rates_)},
            {},
            {}};
  }

 private:
  GatedDeltaRatesArgs<T> args() {
    return {.update_logits = {update_logits_.data(), extents_},
            .decay_inputs = {decay_inputs_.data(), extents_},
            .a_log = {a_log_.data(), {extents_[1]}},
            .dt_bias = {dt_bias_.data(), {extents_[1]}},
            .update_rates = {update_rates_.data(), extents_},
            .decay_factors = {decay_factors_.data(), extents_}};
  }

  std::array<std::int64_t, 2> extents_;
  Buffer<T> update_logits_, decay_inputs_, update_rates_;
  Buffer<float> a_log_, dt_bias_, decay_factors_, decay_scale_;
};

}  // namespace

void bench_gated_delta_rates(DType dtype, BenchCalls& calls) {
  const bench::GatedDeltaNetShape& shape = bench::kGatedDeltaNetShapes[0];
  visit_dtype(dtype, [&]<class T>(T) {
    for (const std::int64_t tokens : {64, 4096}) {
      const std::int64_t heads = shape.value_heads;
      const std::size_t bytes =
          static_cast<std::size_t>(tokens * heads) * (3 * sizeof(T) + sizeof(float));
      calls.push_back(
          {"gated_delta_rates",
           fmt::format("{} value heads", heads),
           shape.name,
           count_text(tokens, "token"),
           dtype,
           {Bound::Kind::kCopy, static_cast<double>(bytes), bytes},
           [tokens, heads] {
             const auto problem = std::make_shared<Problem<T>>(tokens, heads);
             PeerNodes nodes{
                 problem->node(), "its LinearAttentionGate", problem->gate_node(), {1, 0}};
             nodes.ours.memory = nodes.theirs.memory = problem;
             return ReadyCall{problem->error(),
                              [problem](const Cpu& device) { problem->run(device); }, nodes};
           }});
    }
  });
}

}  // namespace deltaworks::cli

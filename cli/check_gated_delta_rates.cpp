#include "check.hpp"
#include "deltaworks/gated_delta_rates.hpp"
#include "reference/gated_delta_rates.hpp"

namespace deltaworks::cli {

namespace {

template <class T>
void check_type(Draw& draw, Measurements& measurements) {
  const std::int64_t tokens = draw.integer(1, 40), heads = draw.integer(1, 64),
                     size = tokens * heads;
  const auto update_logits = draw.normal<T>(size, 3), decay_inputs = draw.normal<T>(size, 3);
  const auto a_log = draw.normal<float>(heads), dt_bias = draw.normal<float>(heads);
  const auto count = static_cast<std::size_t>(size);
  std::vector<T> rates(count);
  std::vector<float> decays(count);
  std::vector<double> expected_rates(count), expected_decays(count);
  GatedDeltaRatesArgs<T> args{.update_logits = {update_logits.data(), {tokens, heads}},
                              .decay_inputs = {decay_inputs.data(), {tokens, heads}},
                              .a_log = {a_log.data(), {heads}},
                              .dt_bias = {dt_bias.data(), {heads}},
                              .update_rates = {rates.data(), {tokens, heads}},
                              .decay_factors = {decays.data(), {tokens, heads}}};
  for (const bool log_decay : {false, true}) {
    args.log_decay = log_decay;
    gated_delta_rates(Cpu{}, args);
    reference::gated_delta_rates(args, {expected_rates.data(), {tokens, heads}},
                                 {expected_decays.data(), {tokens, heads}});
    measurements.compare(dtype_of<T>(), "rates", rates, expected_rates);
    measurements.compare(dtype_of<T>(), log_decay ? "log decays" : "factors", decays,
                         expected_decays);
  }
}

}  // namespace

void check_gated_delta_rates(Draw& draw, Measurements& measurements) {
  check_type<float>(draw, measurements);
  check_type<Float16>(draw, measurements);
  check_type<BFloat16>(draw, measurements);
}

}  // namespace deltaworks::cli

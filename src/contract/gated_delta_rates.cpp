#include "contract/gated_delta_rates.hpp"

#include <limits>

#include "contract/checker.hpp"

namespace deltaworks::contract {

namespace {

// `shape` takes the dims that only `tensor` knows; a complaint names `tensor`.
void check_same(Checker& check, std::string_view argument, const Tensor& tensor, Tensor& shape) {
  check.rank(argument, tensor, shape.rank);
  if (!check.ok()) return;
  bool fits = true;
  for (int dim = 0; dim < shape.rank; ++dim) {
    if (shape.dims[dim] == kUnknown) shape.dims[dim] = tensor.dims[dim];
    fits = fits && (tensor.dims[dim] == kUnknown || tensor.dims[dim] == shape.dims[dim]);
  }
  check.require(fits, "{} has shape {}, expected {}", argument, to_string(tensor),
                to_string(shape));
}

void check_types(Checker& check, const GatedDeltaRatesOperands& operands) {
  const DType element = operands.update_logits.dtype;
  check.require(element != DType::kInt32,
                "update_logits has type int32, expected float32, float16 or bfloat16");
  check.dtype("decay_inputs", operands.decay_inputs, element);
  check.dtype("a_log", operands.a_log, DType::kFloat32);
  check.dtype("dt_bias", operands.dt_bias, DType::kFloat32);
  if (operands.update_rates) check.dtype("update_rates", *operands.update_rates, element);
  if (operands.decay_factors) {
    check.dtype("decay_factors", *operands.decay_factors, DType::kFloat32);
  }
}

// Product of the leading dims: unknown when one of them is, unless another is 0.
std::int64_t tokens_of(Checker& check, const Tensor& shape) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max() / 8;
  std::int64_t tokens = 1, size = 1;
  bool known = true;
  for (int dim = 0; dim < shape.rank; ++dim) {
    const std::int64_t extent = shape.dims[dim];
    const bool is_token = dim + 1 < shape.rank;
    if (extent == 0 && is_token) return 0;
    known = known && (extent != kUnknown || !is_token);
    if (extent <= 0) continue;
    if (size > kLargest / extent) {
      check.fail(fmt::format("update_logits has shape {}, expected less than 2^60 elements",
                             to_string(shape)));
      return kUnknown;
    }
    size *= extent;
    if (is_token) tokens *= extent;
  }
  return known ? tokens : kUnknown;
}

}  // namespace

Outcome<GatedDeltaRatesGeometry> gated_delta_rates(std::string_view op,
                                                   const GatedDeltaRatesOperands& operands) {
  Checker check(op);
  check_types(check, operands);
  Tensor shape = operands.update_logits;
  check.require(shape.rank >= 1, "update_logits has rank 0 (shape []), expected at least 1");
  check.dims("update_logits", operands.update_logits);
  check.dims("decay_inputs", operands.decay_inputs);
  check.dims("a_log", operands.a_log);
  check.dims("dt_bias", operands.dt_bias);
  if (operands.update_rates) check.dims("update_rates", *operands.update_rates);
  if (operands.decay_factors) check.dims("decay_factors", *operands.decay_factors);
  check_same(check, "decay_inputs", operands.decay_inputs, shape);
  if (!check.ok()) return check.complaint();
  GatedDeltaRatesGeometry geometry;
  std::int64_t& heads = shape.dims[shape.rank - 1];
  check.shape("a_log", operands.a_log, {&heads});
  check.shape("dt_bias", operands.dt_bias, {&heads});
  if (operands.update_rates) check_same(check, "update_rates", *operands.update_rates, shape);
  if (operands.decay_factors) check_same(check, "decay_factors", *operands.decay_factors, shape);
  geometry.value_heads = heads;
  geometry.tokens = tokens_of(check, shape);
  if (!check.ok()) return check.complaint();
  return geometry;
}

Outcome<GatedDeltaRatesArithmetic> parse_gated_delta_rates_arithmetic(std::string_view op,
                                                                      std::string_view text) {
  if (text == "float32") return GatedDeltaRatesArithmetic::kFloat32;
  if (text == "activation") return GatedDeltaRatesArithmetic::kActivation;
  return fmt::format("{}: arithmetic is \"{}\", expected float32 or activation", op, text);
}

}  // namespace deltaworks::contract

// What the benchmarks of the operators share: calls at the shapes of published models, each with
// what bounds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "deltaworks/device.hpp"
#include "deltaworks/dtype.hpp"
#include "onnx_node.hpp"
#include "operands.hpp"
#include "reference/tolerance.hpp"
#include "shapes.hpp"

namespace deltaworks::cli {

// What no implementation can undercut: floating-point operations, or bytes that must be moved.
struct Bound {
  enum class Kind { kFma, kInPlace, kRead, kCopy };
  Kind kind;
  double amount;              // operations or bytes of one call
  std::size_t footprint = 0;  // bytes of memory that calls go through in turn
  // The call's other coordinate in a roofline: bytes where `amount` is operations, else operations,
  // without those of elementary functions. 0: it has no place there.
  double other = 0;

  double flops() const { return kind == Kind::kFma ? amount : other; }
  double bytes() const { return kind == Kind::kFma ? other : amount; }
};

// The call as nodes of ONNX Runtime: ours, and one that does the same work without this library,
// the same node where its kernel has the operator.
struct PeerNodes {
  OnnxNode ours;
  std::string peer;  // what it is called in the table
  OnnxNode theirs;
  std::vector<std::size_t> outputs{0};  // their outputs that must equal our first ones
};

// The same work done with this library in another way, which keeps its operands alive.
struct Variant {
  std::string name;  // in the table
  std::function<void(const Cpu&)> run;
};

// A call with its operands, which the functions and `peers` keep alive.
struct ReadyCall {
  double error = 0;  // the largest, as a multiple of the allowed one, on the first tokens
  std::function<void(const Cpu&)> run;
  std::optional<PeerNodes> peers{};
  std::optional<Variant> variant{};
};

struct BenchCall {
  std::string op;
  std::string shape;  // "16 key and 48 value heads of 128 x 128"
  std::string model;
  std::string what;  // "1 token"
  DType dtype;
  Bound bound;
  std::function<ReadyCall()> prepare;
};

using BenchCalls = std::vector<BenchCall>;

// The error of the operator on a few tokens, as a multiple of the allowed one.
template <class T, class Values>
double excess(const Values& actual, std::span<const double> expected, double factor = 1.01) {
  return relative_error(actual, expected) / (factor * reference::tolerance<T>());
}

// "1 token", "8 tokens"
inline std::string count_text(std::int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// "16 key and 48 value heads of 128 x 128"
std::string shape_text(const bench::GatedDeltaNetShape& shape);

// Calls body(T()) with the element type.
template <class Body>
void visit_dtype(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat16: return body(Float16());
    case DType::kBFloat16: return body(BFloat16());
    default: return body(float());
  }
}

// Each adds its operator's calls in one element type.
void bench_causal_conv_with_state(DType dtype, BenchCalls& calls);
void bench_dflash2_dynamic_conv(DType dtype, BenchCalls& calls);
void bench_gated_delta_net(DType dtype, BenchCalls& calls);
void bench_gated_delta_rates(DType dtype, BenchCalls& calls);
void bench_linear_attention(DType dtype, BenchCalls& calls);
void bench_paged_attention(DType dtype, BenchCalls& calls);
void bench_varlen_causal_conv(DType dtype, BenchCalls& calls);

}  // namespace deltaworks::cli

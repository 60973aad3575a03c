// What a contract knows of an operand. Shared by every contract; the C++ interface, the ONNX nodes (dims
// possibly unknown) and the command line ask the same code.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "deltaworks/dtype.hpp"
#include "deltaworks/view.hpp"

namespace deltaworks::contract {

inline constexpr std::int64_t kUnknown = -1;  // a dimension that a graph leaves open

struct Tensor {
  static constexpr int kMaxRank = 5;

  DType dtype = DType::kFloat32;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> dims{};
};

// An operand that a call or a node may leave out.
using Operand = std::optional<Tensor>;

// A named geometry, or the sentence why there is none.
template <class Geometry>
using Outcome = std::variant<Geometry, std::string>;

// "[4, ?, 128]"
std::string to_string(const Tensor& tensor);

template <class T, std::size_t Rank>
Tensor describe(const View<T, Rank>& view) {
  Tensor tensor{dtype_of<T>(), static_cast<int>(Rank), {}};
  for (std::size_t dim = 0; dim < Rank; ++dim) tensor.dims[dim] = view.extent(dim);
  return tensor;
}

template <class T, std::size_t Rank>
Operand describe(const std::optional<View<T, Rank>>& view) {
  return view ? Operand(describe(*view)) : std::nullopt;
}

}  // namespace deltaworks::contract

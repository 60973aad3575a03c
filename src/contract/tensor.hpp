// What a contract knows of an operand, and how it says that the operand does not fit. Shared by
// every contract; the C++ interface, the ONNX nodes (dims possibly unknown) and the command line
// ask the same code.
#pragma once

#include <fmt/format.h>

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

// Collects the first complaint about a call; later checks do nothing. Extents start as kUnknown and
// are bound by the first operand that knows them.
class Checker {
 public:
  explicit Checker(std::string_view op) : op_(op) {}

  bool ok() const { return complaint_.empty(); }
  const std::string& complaint() const { return complaint_; }

  // "<op>: <what>"
  void fail(const std::string& what);
  // Fails with the formatted text unless `condition` holds; a call that is right formats nothing.
  template <class... Values>
  void require(bool condition, fmt::format_string<Values...> text, Values&&... values) {
    if (!condition) fail(fmt::format(text, std::forward<Values>(values)...));
  }
  void dtype(std::string_view argument, const Tensor& tensor, DType expected);
  void rank(std::string_view argument, const Tensor& tensor, int expected);
  // No dim is negative, unless it is unknown.
  void dims(std::string_view argument, const Tensor& tensor);
  // Every dim equals its extent; an unknown extent takes the dim, an unknown dim fits.
  void shape(std::string_view argument, const Tensor& tensor,
             std::initializer_list<std::int64_t*> extents);
  void shape(std::string_view argument, const Operand& tensor,
             std::initializer_list<std::int64_t*> extents) {
    if (tensor) shape(argument, *tensor, extents);
  }
  // The elements of an operand of these extents can be counted and addressed.
  void size(std::string_view argument, std::initializer_list<std::int64_t> extents);
  // Both or neither: a complaint names the one that is missing.
  void together(std::string_view argument, bool given, bool expected, std::string_view reason);

 private:
  std::string op_;
  std::string complaint_;
};

}  // namespace deltaworks::contract

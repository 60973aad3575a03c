#include "contract/checker.hpp"

#include <algorithm>
#include <limits>

namespace deltaworks::contract {

void Checker::fail(const std::string& what) {
  if (ok()) complaint_ = fmt::format("{}: {}", op_, what);
}

void Checker::dtype(std::string_view argument, const Tensor& tensor, DType expected) {
  if (tensor.dtype != expected) {
    fail(fmt::format("{} has type {}, expected {}", argument, name(tensor.dtype), name(expected)));
  }
}

void Checker::rank(std::string_view argument, const Tensor& tensor, int expected) {
  if (tensor.rank != expected) {
    fail(fmt::format("{} has rank {} (shape {}), expected rank {}", argument, tensor.rank,
                     to_string(tensor), expected));
  }
}

void Checker::dims(std::string_view argument, const Tensor& tensor) {
  for (int dim = 0; dim < tensor.rank; ++dim) {
    if (tensor.dims[dim] >= kUnknown) continue;
    fail(fmt::format("{} has shape {}, expected no negative extent", argument, to_string(tensor)));
  }
}

void Checker::shape(std::string_view argument, const Tensor& tensor,
                    std::initializer_list<std::int64_t*> extents) {
  rank(argument, tensor, static_cast<int>(extents.size()));
  if (!ok()) return;
  Tensor expected = tensor;
  bool fits = true;
  int dim = 0;
  for (std::int64_t* extent : extents) {
    if (*extent == kUnknown) *extent = tensor.dims[dim];
    expected.dims[dim] = *extent;
    fits = fits && (tensor.dims[dim] == kUnknown || tensor.dims[dim] == *extent);
    ++dim;
  }
  if (!fits) {
    fail(fmt::format("{} has shape {}, expected {}", argument, to_string(tensor),
                     to_string(expected)));
  }
}

void Checker::size(std::string_view argument, std::initializer_list<std::int64_t> extents) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max() / 8;
  std::int64_t size = 1;
  for (const std::int64_t extent : extents) {
    // One that is unknown or 0 counts as 1: the others are multiplied with each other elsewhere.
    // No division: a right call of one token would spend more on them than on a head.
    if (__builtin_mul_overflow(size, std::max<std::int64_t>(extent, 1), &size) || size > kLargest) {
      Tensor shape{DType::kFloat32, static_cast<int>(extents.size()), {}};
      std::copy(extents.begin(), extents.end(), shape.dims.begin());
      fail(fmt::format("{} has shape {}, expected less than 2^60 elements", argument,
                       to_string(shape)));
      return;
    }
  }
}

void Checker::together(std::string_view argument, bool given, bool expected,
                       std::string_view reason) {
  if (given == expected) return;
  fail(fmt::format("{} is {}, expected {}: {}", argument, given ? "given" : "missing",
                   expected ? "it" : "none", reason));
}

}  // namespace deltaworks::contract

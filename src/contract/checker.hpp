// How a contract says that an operand does not fit.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "contract/tensor.hpp"

namespace deltaworks::contract {

// Collects the first complaint about a call; later checks do nothing. Extents start as kUnknown and
// are bound by the first operand that knows them.
class Checker {
 public:
  // `op` must live as long as the checker: a copy of it would be an allocation a call.
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
  std::string_view op_;
  std::string complaint_;
};

}  // namespace deltaworks::contract

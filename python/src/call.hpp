// What every operator's binding shares: numpy arrays as views, results that are made or handed in,
// a run without the interpreter lock.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contract/checker.hpp"
#include "contract/tensor.hpp"
#include "contract/values.hpp"
#include "deltaworks/device.hpp"
#include "deltaworks/error.hpp"
#include "deltaworks/view.hpp"
#include "threads.hpp"

namespace deltaworks::python {

namespace nb = nanobind;

// A numpy array whose buffer is held for the length of a call, so that it can neither go away nor
// change its size. Dims behind the first are dense; the first may have any stride of at least a row.
class Array {
 public:
  // Throws when `object` is no such array, or read-only although the call `writes` to it.
  Array(std::string_view op, std::string_view argument, nb::handle object, bool writes);
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array();

  std::string_view argument() const { return argument_; }
  const contract::Tensor& tensor() const { return tensor_; }

  // Throws when it has another element type or rank.
  template <class T, std::size_t Rank>
  View<T, Rank> view() const;
  // The elements in a row, whatever the rank. Throws when it has another type, or gaps.
  template <class T>
  T* elements() const {
    check_type(dtype_of<T>());
    check_dense();
    return static_cast<T*>(buffer_.buf);
  }

 private:
  void check_layout() const;
  void check_type(DType expected) const;
  void check_dense() const;
  std::int64_t row_size() const;

  std::string_view op_, argument_;
  Py_buffer buffer_{};
  contract::Tensor tensor_;
  std::int64_t row_stride_ = 0;
};

// numpy.empty or numpy.zeros.
nb::object make_array(const char* function, const contract::Tensor& tensor);

template <class T, std::size_t Rank>
contract::Tensor tensor_of(const std::array<std::int64_t, Rank>& extents) {
  return contract::describe(View<T, Rank>(nullptr, extents));
}

// A run of an operator: its arguments by name, and its results in the order of `results`.
class Call {
 public:
  Call(const char* op, const nb::kwargs& arguments, std::initializer_list<const char*> results);

  std::string_view op() const { return op_; }

  bool has(const char* argument) const { return !object(argument).is_none(); }
  nb::handle object(const char* argument) const;
  std::string_view text(const char* argument) const;
  std::int64_t integer(const char* argument) const;
  float real(const char* argument) const;
  bool flag(const char* argument) const;  // a truth value, or one of ONNX's 0 and 1
  bool is_array(const char* argument) const;

  const Array& array(const char* argument);
  const contract::Tensor& tensor(const char* argument) { return array(argument).tensor(); }
  contract::Operand operand(const char* argument) {
    return has(argument) ? contract::Operand(tensor(argument)) : std::nullopt;
  }
  template <class T, std::size_t Rank>
  View<const T, Rank> view(const char* argument) {
    return array(argument).view<T, Rank>();
  }
  template <class T, std::size_t Rank>
  OptionalView<const T, Rank> optional_view(const char* argument) {
    if (!has(argument)) return std::nullopt;
    return view<T, Rank>(argument);
  }
  // The same elements in these extents: an array of another rank must be dense.
  template <class T, std::size_t Rank>
  View<const T, Rank> view_as(const char* argument, const std::array<std::int64_t, Rank>& extents);

  // Whether the caller hands this result's memory in.
  bool is_handed_in(std::size_t result) const { return !results_[result].is_none(); }
  const Array& handed_in(std::size_t result);
  // The result's memory: what the caller hands in, which must have this type and shape, or a new
  // array.
  const Array& result(std::size_t result, const contract::Tensor& expected);
  template <class T, std::size_t Rank>
  View<T, Rank> result(std::size_t result, const std::array<std::int64_t, Rank>& extents) {
    return this->result(result, tensor_of<T>(extents)).template view<T, Rank>();
  }
  // The same for a result of the shape of `like`, starting as its copy when it is made here.
  template <class T, std::size_t Rank>
  View<T, Rank> result_copied_from(std::size_t result, const char* like);
  // A result that this call does not have.
  void no_result(std::size_t result, std::string_view reason) const;
  template <class T, std::size_t Rank>
  View<const T, Rank> zeros(const std::array<std::int64_t, Rank>& extents);

  // Calls body(device) without the interpreter lock; then the results, None for those without.
  template <class Body>
  nb::tuple run(const Body& body);

 private:
  const Array& writable(std::size_t result, nb::handle object);
  nb::tuple results() const;

  const char* op_;
  std::vector<std::pair<std::string_view, nb::handle>>
      arguments_;  // the caller's keywords own them
  std::vector<std::string> result_names_;
  std::vector<nb::object> results_, kept_;
  std::deque<Array> arrays_, written_;
  std::int64_t threads_;
};

// Calls body(T{}) with the element type; the contract has refused every other.
template <class Body>
auto visit_element(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat16: return body(Float16{});
    case DType::kBFloat16: return body(BFloat16{});
    default: return body(float{});
  }
}

template <class T, std::size_t Rank>
View<T, Rank> Array::view() const {
  check_type(dtype_of<T>());
  contract::Checker check(op_);
  check.rank(argument_, tensor_, static_cast<int>(Rank));
  if (!check.ok()) throw InvalidArgument(check.complaint());
  std::array<std::int64_t, Rank> extents;
  for (std::size_t dim = 0; dim < Rank; ++dim) extents[dim] = tensor_.dims[dim];
  return {static_cast<T*>(buffer_.buf), extents, row_stride_};
}

template <class T, std::size_t Rank>
View<const T, Rank> Call::view_as(const char* argument,
                                  const std::array<std::int64_t, Rank>& extents) {
  const Array& given = array(argument);
  if (given.tensor().rank == static_cast<int>(Rank)) return given.view<T, Rank>();
  return {given.elements<T>(), extents};
}

template <class T, std::size_t Rank>
View<T, Rank> Call::result_copied_from(std::size_t result, const char* like) {
  const auto source = view<T, Rank>(like);
  if (!is_handed_in(result)) results_[result] = nb::borrow(object(like)).attr("copy")("C");
  return this->result<T, Rank>(result, source.extents());
}

template <class T, std::size_t Rank>
View<const T, Rank> Call::zeros(const std::array<std::int64_t, Rank>& extents) {
  kept_.push_back(make_array("zeros", tensor_of<T>(extents)));
  return arrays_.emplace_back(op_, "zeros", kept_.back(), false).template view<T, Rank>();
}

template <class Body>
nb::tuple Call::run(const Body& body) {
  {
    const nb::gil_scoped_release unlocked;
    Threads threads{threads_};
    body(Cpu{threads.parallel_for()});
  }
  return results();
}

}  // namespace deltaworks::python

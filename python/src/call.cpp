#include "call.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace deltaworks::python {

namespace {

// Looked up once. Never freed: the interpreter may be gone before this library is.
struct Numpy {
  nb::module_ module = nb::module_::import_("numpy");
  nb::object ndarray = module.attr("ndarray");
  nb::object float32 = module.attr("dtype")("float32");
  nb::object float16 = module.attr("dtype")("float16");
  nb::object int32 = module.attr("dtype")("int32");
  nb::object bfloat16 = module.attr("dtype")(nb::module_::import_("ml_dtypes").attr("bfloat16"));

  nb::handle dtype(DType dtype) const {
    switch (dtype) {
      case DType::kFloat32: return float32;
      case DType::kFloat16: return float16;
      case DType::kBFloat16: return bfloat16;
      case DType::kInt32: return int32;
    }
    return float32;
  }
};

const Numpy& numpy() {
  static const Numpy& loaded = *new Numpy;
  return loaded;
}

// Arguments that count or point; every other holds numbers.
constexpr std::string_view kIntegers[] = {
    "cu_seqlens",   "slots_in", "slots_out",           "fresh",        "capture_count",
    "past_seqlens", "count",    "state_update_active", "slot_mapping", "block_table"};

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt32};

std::optional<DType> dtype_named(nb::handle dtype) {
  for (const DType known : kTypes) {
    if (dtype.is(numpy().dtype(known))) return known;
  }
  for (const DType known : kTypes) {  // an equal one, from a pickle for example
    if (dtype.equal(numpy().dtype(known))) return known;
  }
  return std::nullopt;
}

std::string type_of(nb::handle object) { return nb::type_name(object.type()).c_str(); }

[[noreturn]] void no_such_type(std::string_view op, std::string_view argument, nb::handle dtype) {
  const bool integer =
      std::find(std::begin(kIntegers), std::end(kIntegers), argument) != std::end(kIntegers);
  throw InvalidArgument(fmt::format("{}: {} has type {}, expected {}", op, argument,
                                    nb::str(dtype).c_str(),
                                    integer ? "int32" : "float32, float16 or bfloat16"));
}

[[noreturn]] void no_such_value(std::string_view op, std::string_view argument, nb::handle object,
                                std::string_view expected) {
  const std::string came = object.is_none() ? "None" : "of type " + type_of(object);
  throw nb::type_error(
      fmt::format("{}: {} is {}, expected {}", op, argument, came, expected).c_str());
}

}  // namespace

Array::Array(std::string_view op, std::string_view argument, nb::handle object, bool writes)
    : op_(op), argument_(argument) {
  if (PyObject_IsInstance(object.ptr(), numpy().ndarray.ptr()) != 1) {
    no_such_value(op, argument, object, "a numpy array");
  }
  const nb::object dtype = object.attr("dtype");
  const std::optional<DType> known = dtype_named(dtype);
  if (!known) no_such_type(op, argument, dtype);
  if (writes && !nb::cast<bool>(object.attr("flags").attr("writeable"))) {
    throw InvalidArgument(
        fmt::format("{}: {} is read-only, expected an array to write", op, argument));
  }
  if (PyObject_GetBuffer(object.ptr(), &buffer_, writes ? PyBUF_STRIDED : PyBUF_STRIDED_RO) != 0) {
    throw nb::python_error();
  }
  try {
    check_layout();
  } catch (...) {
    PyBuffer_Release(&buffer_);
    throw;
  }
  tensor_ = {*known, buffer_.ndim, {}};
  for (int dim = 0; dim < buffer_.ndim; ++dim) tensor_.dims[dim] = buffer_.shape[dim];
  row_stride_ = row_size();
  // The only row of an array, and rows without elements, may have any stride.
  if (tensor_.dims[0] > 1 && row_stride_ > 0) row_stride_ = buffer_.strides[0] / buffer_.itemsize;
}

Array::~Array() { PyBuffer_Release(&buffer_); }

void Array::check_layout() const {
  if (buffer_.ndim < 1 || buffer_.ndim > contract::Tensor::kMaxRank) {
    throw InvalidArgument(fmt::format("{}: {} has rank {}, expected 1 to {}", op_, argument_,
                                      buffer_.ndim, contract::Tensor::kMaxRank));
  }
  if (buffer_.len == 0) return;
  std::int64_t row = buffer_.itemsize;  // bytes, so far
  bool fits = reinterpret_cast<std::uintptr_t>(buffer_.buf) %
                  static_cast<std::uintptr_t>(buffer_.itemsize) ==
              0;
  for (int dim = buffer_.ndim - 1; dim > 0; --dim) {
    fits = fits && (buffer_.shape[dim] == 1 || buffer_.strides[dim] == row);
    row *= buffer_.shape[dim];
  }
  fits = fits && (buffer_.shape[0] == 1 ||
                  (buffer_.strides[0] >= row && buffer_.strides[0] % buffer_.itemsize == 0));
  if (fits) return;
  throw InvalidArgument(fmt::format(
      "{}: {} has a layout with gaps, overlaps, unaligned or transposed elements, expected dense "
      "rows, which numpy.ascontiguousarray gives",
      op_, argument_));
}

void Array::check_type(DType expected) const {
  contract::Checker check(op_);
  check.dtype(argument_, tensor_, expected);
  if (!check.ok()) throw InvalidArgument(check.complaint());
}

std::int64_t Array::row_size() const {
  std::int64_t size = 1;
  for (int dim = 1; dim < tensor_.rank; ++dim) size *= tensor_.dims[dim];
  return size;
}

void Array::check_dense() const {
  if (row_stride_ == row_size()) return;
  throw InvalidArgument(
      fmt::format("{}: {} has gaps between what its first index selects, expected a dense array, "
                  "which numpy.ascontiguousarray gives",
                  op_, argument_));
}

Call::Call(const char* op, const nb::kwargs& arguments, std::initializer_list<const char*> results)
    : op_(op), result_names_(results.begin(), results.end()) {
  arguments_.reserve(arguments.size());
  PyObject *name = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(arguments.ptr(), &at, &name, &value) != 0;) {
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(name, &size);
    if (text == nullptr) throw nb::python_error();
    arguments_.emplace_back(std::string_view(text, static_cast<std::size_t>(size)), value);
  }
  threads_ = integer("threads");
  if (threads_ < 1) {
    throw InvalidArgument(fmt::format("{}: threads is {}, expected at least 1", op, threads_));
  }
  results_.assign(result_names_.size(), nb::none());
  const nb::handle out = object("out");
  if (out.is_none()) return;
  if (results_.size() == 1 && !nb::isinstance<nb::tuple>(out)) {
    results_[0] = nb::borrow(out);
  } else if (nb::isinstance<nb::tuple>(out) && nb::len(out) == results_.size()) {
    for (std::size_t i = 0; i < results_.size(); ++i) results_[i] = out[i];
  } else {
    throw InvalidArgument(
        fmt::format("{}: out is {}, expected a tuple ({}) with None for what is to be made", op,
                    nb::isinstance<nb::tuple>(out) ? fmt::format("a tuple of {}", nb::len(out))
                                                   : fmt::format("of type {}", type_of(out)),
                    fmt::join(result_names_, ", ")));
  }
}

nb::handle Call::object(const char* argument) const {
  const std::string_view name = argument;
  for (const auto& [known, value] : arguments_) {
    if (known == name) return value;
  }
  throw nb::key_error(argument);
}

std::string_view Call::text(const char* argument) const {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(object(argument).ptr(), &size);
  if (text == nullptr) {
    PyErr_Clear();
    no_such_value(op_, argument, object(argument), "a string");
  }
  return {text, static_cast<std::size_t>(size)};
}

std::int64_t Call::integer(const char* argument) const {
  const nb::handle number = object(argument);
  std::int64_t value = 0;
  if (nb::try_cast(number, value)) return value;
  if (PyIndex_Check(number.ptr())) {
    throw InvalidArgument(fmt::format("{}: {} is {}, expected an integer of 64 bits", op_, argument,
                                      nb::str(number).c_str()));
  }
  no_such_value(op_, argument, number, "an integer");
}

float Call::real(const char* argument) const {
  double value = 0;
  if (!nb::try_cast(object(argument), value)) {
    no_such_value(op_, argument, object(argument), "a number");
  }
  return static_cast<float>(value);
}

bool Call::flag(const char* argument) const {
  bool value = false;
  if (nb::try_cast(object(argument), value)) return value;
  const std::int64_t number = integer(argument);
  if (number == 0 || number == 1) return number == 1;
  throw InvalidArgument(fmt::format("{}: {} is {}, expected False or True", op_, argument, number));
}

bool Call::is_array(const char* argument) const {
  return PyObject_IsInstance(object(argument).ptr(), numpy().ndarray.ptr()) == 1;
}

const Array& Call::array(const char* argument) {
  for (const Array& known : arrays_) {
    if (known.argument() == argument) return known;
  }
  return arrays_.emplace_back(op_, argument, object(argument), false);
}

const Array& Call::handed_in(std::size_t result) { return writable(result, results_[result]); }

const Array& Call::writable(std::size_t result, nb::handle object) {
  const std::string_view name = result_names_[result];
  for (const Array& known : written_) {
    if (known.argument() == name) return known;
  }
  return written_.emplace_back(op_, name, object, true);
}

const Array& Call::result(std::size_t result, const contract::Tensor& expected) {
  if (!is_handed_in(result)) results_[result] = make_array("empty", expected);
  const Array& array = handed_in(result);
  contract::Checker check(op_);
  check.dtype(array.argument(), array.tensor(), expected.dtype);
  check.require(array.tensor().rank == expected.rank && array.tensor().dims == expected.dims,
                "{} has shape {}, expected {}", array.argument(),
                contract::to_string(array.tensor()), contract::to_string(expected));
  if (!check.ok()) throw InvalidArgument(check.complaint());
  return array;
}

void Call::no_result(std::size_t result, std::string_view reason) const {
  if (!is_handed_in(result)) return;
  throw InvalidArgument(
      fmt::format("{}: {} is given in out, expected None: {}", op_, result_names_[result], reason));
}

nb::tuple Call::results() const {
  nb::object list = nb::steal(PyList_New(0));
  for (const nb::object& result : results_) list.attr("append")(result);
  return nb::tuple(list);
}

nb::object make_array(const char* function, const contract::Tensor& tensor) {
  nb::list shape;
  for (int dim = 0; dim < tensor.rank; ++dim) shape.append(tensor.dims[dim]);
  return numpy().module.attr(function)(nb::tuple(shape), numpy().dtype(tensor.dtype));
}

}  // namespace deltaworks::python

// Arguments from Python: torch tensors and what holds them, by what they say of themselves; nothing links to torch.
//
// Every tensor is checked where it is used (dtype, contiguous, sizes), in all builds, and a recording holds each one
// that is given while it runs, lest its memory go to somebody else.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "table.h"
#include "tape.h"

namespace nb = nanobind;

namespace parlay {

enum class Type : int { kF32, kF64, kF16, kBF16, kI32, kI64, kU8, kOther };
constexpr const char* kTypeNames[] = {"float32", "float64", "float16", "bfloat16",
                                      "int32",   "int64",   "uint8",   "of another dtype"};

template <class T> constexpr Type kTypeOf = Type::kOther;
template <> inline constexpr Type kTypeOf<float> = Type::kF32;
template <> inline constexpr Type kTypeOf<double> = Type::kF64;
template <> inline constexpr Type kTypeOf<int32_t> = Type::kI32;
template <> inline constexpr Type kTypeOf<int64_t> = Type::kI64;
template <> inline constexpr Type kTypeOf<uint8_t> = Type::kU8;

constexpr int kMostDimensions = 5;

// A torch.Tensor. Its memory is valid as long as the caller, or a recording, holds it.
struct Tensor {
  char* data = nullptr;
  Type type = Type::kOther;
  bool contiguous = false;
  int dimensions = 0;
  int64_t sizes[kMostDimensions] = {};

  int64_t size(int dimension) const {
    if (dimension >= dimensions) throw std::invalid_argument("a tensor has fewer dimensions than " + text());
    return sizes[dimension];
  }
  int64_t count() const {
    int64_t n = 1;
    for (int i = 0; i < dimensions; ++i) n *= sizes[i];
    return n;
  }
  bool is_float() const { return type == Type::kF32 || type == Type::kBF16; }
  int64_t element_bytes() const {
    constexpr int64_t bytes[] = {4, 8, 2, 2, 4, 8, 1, 0};
    return bytes[static_cast<int>(type)];
  }

  // Its numbers, of one dtype.
  template <class T>
  T* as() const {
    check();
    if (type != kTypeOf<T>)
      throw std::invalid_argument(std::string("a tensor is to be ") + kTypeNames[static_cast<int>(kTypeOf<T>)] +
                                  ", not " + text());
    return reinterpret_cast<T*>(data);
  }
  // Its numbers, of this shape.
  template <class T>
  T* as(std::initializer_list<int64_t> shape) const {
    expect(shape);
    return as<T>();
  }
  // Its memory, which `shared_type` and `expect` say what is in.
  void* memory() const {
    check();
    return data;
  }
  void expect(std::initializer_list<int64_t> shape) const {
    if (dimensions == static_cast<int>(shape.size()) && std::equal(shape.begin(), shape.end(), sizes)) return;
    std::string wanted;
    for (const int64_t n : shape) wanted += (wanted.empty() ? "" : ", ") + std::to_string(n);
    throw std::invalid_argument("a tensor is to be of shape [" + wanted + "], not " + text());
  }
  std::string text() const {
    std::string shape;
    for (int i = 0; i < dimensions; ++i) shape += (i ? ", " : "") + std::to_string(sizes[i]);
    return std::string(kTypeNames[static_cast<int>(type)]) + " [" + shape + "]";
  }

 private:
  void check() const {
    if (!contiguous) throw std::invalid_argument("a tensor is not contiguous: " + text());
  }
};

// Whether all these are bfloat16; else all are float32, or it is an error: the contract's "T".
inline bool all_bf16(std::initializer_list<const Tensor*> tensors) {
  const Type first = (*tensors.begin())->type;
  for (const Tensor* tensor : tensors)
    if (!tensor->is_float() || tensor->type != first)
      throw std::invalid_argument("tensors are to be float32, or all bfloat16, not " + tensor->text() + " beside " +
                                  (*tensors.begin())->text());
  return first == Type::kBF16;
}

// Outputs of a weight that are stored alike (`kernels.linear.PackedPart`).
struct PackedPart {
  Tensor tensor;
  int kind = 0;
  int64_t outputs = 0;
};

// A packed weight (`kernels.linear.LinearWeight`).
struct PackedWeight {
  std::vector<PackedPart> parts;
  int64_t outputs = 0, inputs = 0;
};

// What rows see (`kernels.metadata.AttentionMetadata`).
struct View {
  Tensor tables, row_request, first, last, extra_offsets, extra_slots;
};

// What rows of recurrent layers go on from (`kernels.metadata.StateMetadata`).
struct States {
  Tensor sequences, rows, replayed;
};

// Which tokens rows may draw (`kernels.metadata.Filters`).
struct Kept {
  Tensor min_p, top_k, top_p;
};

// Attribute names and dtypes, which Python keeps for good.
struct Python {
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* dtypes[static_cast<int>(Type::kOther)];

  Python() {
    const nb::module_ torch = nb::module_::import_("torch");
    for (int i = 0; i < static_cast<int>(Type::kOther); ++i) dtypes[i] = nb::object(torch.attr(kTypeNames[i])).release().ptr();
  }
  static const Python& get() {
    static const Python names;
    return names;
  }
};

inline Tensor tensor_of(nb::handle source) {
  const Python& python = Python::get();
  const auto owned = [](PyObject* made) {
    if (!made) throw nb::python_error();
    return nb::steal(made);
  };
  const auto attribute = [&](PyObject* name) { return owned(PyObject_GetAttr(source.ptr(), name)); };
  const auto call = [&](PyObject* name) {
    PyObject* self = source.ptr();
    return owned(PyObject_VectorcallMethod(name, &self, 1, nullptr));
  };
  Tensor tensor;
  const nb::object shape = attribute(python.shape);
  if (!PyTuple_Check(shape.ptr())) throw nb::type_error("a tensor's shape is no tuple");
  tensor.dimensions = static_cast<int>(PyTuple_Size(shape.ptr()));
  if (tensor.dimensions > kMostDimensions) throw nb::type_error("a tensor has too many dimensions");
  for (int i = 0; i < tensor.dimensions; ++i) tensor.sizes[i] = PyLong_AsLongLong(PyTuple_GetItem(shape.ptr(), i));
  const nb::object dtype = attribute(python.dtype);
  tensor.type = static_cast<Type>(std::find(python.dtypes, std::end(python.dtypes), dtype.ptr()) - python.dtypes);
  tensor.contiguous = call(python.is_contiguous).is(nb::handle(Py_True));
  tensor.data = static_cast<char*>(PyLong_AsVoidPtr(call(python.data_ptr).ptr()));
  if (PyErr_Occurred()) throw nb::python_error();
  if (recording) recording->hold(nb::borrow(source));
  return tensor;
}

template <class T>
T convert(nb::handle source);

template <>
inline Tensor convert(nb::handle source) {
  return tensor_of(source);
}

template <>
inline View convert(nb::handle source) {
  return {tensor_of(source.attr("tables")), tensor_of(source.attr("row_request")),
          tensor_of(source.attr("first")), tensor_of(source.attr("last")),
          tensor_of(source.attr("extra_offsets")), tensor_of(source.attr("extra_slots"))};
}

template <>
inline States convert(nb::handle source) {
  return {tensor_of(source.attr("sequences")), tensor_of(source.attr("rows")), tensor_of(source.attr("replayed"))};
}

template <>
inline Kept convert(nb::handle source) {
  return {tensor_of(source.attr("min_p")), tensor_of(source.attr("top_k")), tensor_of(source.attr("top_p"))};
}

template <>
inline PackedWeight convert(nb::handle source) {
  PackedWeight weight;
  for (nb::handle part : nb::object(source.attr("parts")))
    weight.parts.push_back({tensor_of(part.attr("tensor")), nb::cast<int>(part.attr("kind").attr("number")),
                            nb::cast<int64_t>(part.attr("outputs"))});
  weight.outputs = nb::cast<int64_t>(source.attr("outputs"));
  weight.inputs = nb::cast<int64_t>(source.attr("inputs"));
  return weight;
}

template <>
inline std::vector<PackedWeight> convert(nb::handle source) {
  std::vector<PackedWeight> weights;
  for (nb::handle weight : nb::borrow(source)) weights.push_back(convert<PackedWeight>(weight));
  return weights;
}

template <class T>
inline std::optional<T> optional(nb::handle source) {
  return source.is_none() ? std::nullopt : std::optional<T>(convert<T>(source));
}

template <>
inline std::optional<Tensor> convert(nb::handle source) {
  return optional<Tensor>(source);
}

template <>
inline std::optional<Kept> convert(nb::handle source) {
  return optional<Kept>(source);
}

// The place of a string among the names of an enumeration.
template <size_t N>
int place_among(nb::handle source, const char* const (&names)[N], const char* error) {
  for (int i = 0; i < static_cast<int>(N); ++i)
    if (PyUnicode_Check(source.ptr()) && PyUnicode_CompareWithASCIIString(source.ptr(), names[i]) == 0) return i;
  throw nb::type_error(error);
}

template <>
inline Activation convert(nb::handle source) {
  constexpr const char* names[] = {"silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu"};
  return static_cast<Activation>(place_among(source, names, "no such activation"));
}

template <>
inline Gate convert(nb::handle source) {
  constexpr const char* names[] = {"plain", "sigmoid", "softplus"};
  return static_cast<Gate>(place_among(source, names, "no such gate"));
}

}  // namespace parlay

namespace nanobind::detail {

// Arguments that `convert` makes. What has not the attributes of its type does not fit, and nanobind names the types
// that it takes. Any other error, of memory or an interrupt, is raised by the call: `from_python` may not throw.
template <class T>
struct parlay_caster {
  using Value = T;
  template <class U>
  using Cast = movable_cast_t<U>;
  template <class U>
  static constexpr bool can_cast() { return true; }
  explicit operator T&() {
    if (failure) std::rethrow_exception(failure);
    return value;
  }
  explicit operator T&&() { return std::move(static_cast<T&>(*this)); }
  bool from_python(handle source, uint32_t, cleanup_list*) noexcept {
    try {
      value = parlay::convert<T>(source);
    } catch (const cast_error&) {
      return false;
    } catch (const builtin_exception&) {
      return false;
    } catch (const python_error& error) {
      if (error.matches(PyExc_AttributeError) || error.matches(PyExc_TypeError)) return false;
      failure = std::current_exception();
    } catch (...) {
      failure = std::current_exception();
    }
    return true;
  }

  T value = {};
  std::exception_ptr failure;
};

#define PARLAY_ARGUMENT(TYPE, NAME)                      \
  template <>                                            \
  struct type_caster<TYPE> : parlay_caster<TYPE> {       \
    static constexpr auto Name = NAME;                   \
  }

PARLAY_ARGUMENT(parlay::Tensor, const_name("torch.Tensor"));
PARLAY_ARGUMENT(parlay::View, const_name("parlay.kernels.metadata.AttentionMetadata"));
PARLAY_ARGUMENT(parlay::States, const_name("parlay.kernels.metadata.StateMetadata"));
PARLAY_ARGUMENT(parlay::Kept, const_name("parlay.kernels.metadata.Filters"));
PARLAY_ARGUMENT(parlay::PackedWeight, const_name("parlay.kernels.linear.LinearWeight"));
PARLAY_ARGUMENT(parlay::Activation, const_name("parlay.kernels.base.Activation"));
PARLAY_ARGUMENT(parlay::Gate, const_name("parlay.kernels.base.Gate"));
PARLAY_ARGUMENT(std::optional<parlay::Tensor>, optional_name(make_caster<parlay::Tensor>::Name));
PARLAY_ARGUMENT(std::optional<parlay::Kept>, optional_name(make_caster<parlay::Kept>::Name));
PARLAY_ARGUMENT(std::vector<parlay::PackedWeight>,
                const_name("collections.abc.Sequence[") + make_caster<parlay::PackedWeight>::Name + const_name("]"));

#undef PARLAY_ARGUMENT

}  // namespace nanobind::detail

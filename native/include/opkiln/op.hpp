// opkiln/op.hpp: custom ops in C++17: typed views in, exceptions out as errors, on top of op.h.
//
//   void run(opkiln::Call call) {
//     const auto x = call.input<float>(0);
//     const auto y = call.output<float>(0);
//     for (std::int64_t i = 0; i < x.size(); ++i) y[i] = call.real(0) * x[i];
//   }
//   OK_CPP_OP(scale, run);                  // or (scale, run, workspace) or (..., workspace,
//   infer)
#pragma once

#include <complex>
#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "op.h"

namespace opkiln {

/// What an op throws to refuse a call; any other exception is reported too.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

template <class T>
struct Kind {
  static_assert(std::is_arithmetic_v<T>, "opkiln: specialise KindOf for this element type");
  static constexpr int code = std::is_same_v<T, bool>       ? OK_BOOL
                              : std::is_floating_point_v<T> ? OK_FLOAT
                              : std::is_signed_v<T>         ? OK_INT
                                                            : OK_UINT;
};
template <class T>
struct Kind<std::complex<T>> {
  static constexpr int code = OK_COMPLEX;
};

inline std::string name_of(ok_dtype dtype) {
  const char* names[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  const std::string base = dtype.code <= OK_BOOL ? names[dtype.code] : "unknown";
  return dtype.code == OK_BOOL ? base : base + std::to_string(dtype.bits);
}

}  // namespace detail

/// DLPack's code of an element type; specialise it for types of your own, such as __half.
template <class T>
struct KindOf : detail::Kind<T> {};

/// Elements of a tensor. `[]` counts them in C order and is for contiguous tensors.
template <class T>
class View {
 public:
  explicit View(const ok_tensor& tensor) : tensor_(&tensor) {}

  T* data() const { return static_cast<T*>(tensor_->data); }
  T& operator[](std::int64_t i) const { return data()[i]; }
  int rank() const { return tensor_->ndim; }
  std::int64_t size() const { return ok_numel(tensor_); }
  std::int64_t shape(int axis) const { return tensor_->shape[axis]; }
  std::int64_t stride(int axis) const { return tensor_->strides[axis]; }
  const ok_tensor& tensor() const { return *tensor_; }

 private:
  const ok_tensor* tensor_;
};

/// One call: inputs and outputs by place, scalars by place among the scalars.
class Call {
 public:
  explicit Call(ok_call* call) : call_(call) {}

  template <class T>
  View<const T> input(int i) const {
    check<T>(any_input(i), "input ", i);
    return View<const T>(call_->inputs[i]);
  }
  template <class T>
  View<T> output(int i) const {
    check<T>(any_output(i), "output ", i);
    return View<T>(call_->outputs[i]);
  }
  /// Whether an optional input was given.
  bool given(int i) const { return i < call_->n_inputs && ok_given(&call_->inputs[i]) != 0; }
  /// Tensors of any type.
  const ok_tensor& any_input(int i) const {
    if (!given(i)) throw Error("input " + std::to_string(i) + " was not given");
    return call_->inputs[i];
  }
  ok_tensor& any_output(int i) const {
    if (i >= call_->n_outputs) throw Error("there is no output " + std::to_string(i));
    return call_->outputs[i];
  }
  double real(int i) const { return scalar(i, OK_SCALAR_FLOAT).f; }
  std::int64_t integer(int i) const { return scalar(i, OK_SCALAR_INT).i; }
  bool flag(int i) const { return scalar(i, OK_SCALAR_BOOL).i != 0; }
  const char* text(int i) const { return scalar(i, OK_SCALAR_STRING).s; }

  template <class T = char>
  T* workspace() const {
    return static_cast<T*>(call_->workspace);
  }
  /// Of the function `workspace`: how many bytes the op wants.
  void want_workspace(std::uint64_t bytes) const { call_->workspace_size = bytes; }
  void* stream() const { return call_->stream; }
  ok_call* get() const { return call_; }

 private:
  template <class T>
  static void check(const ok_tensor& tensor, const char* what, int i) {
    constexpr int code = KindOf<T>::code, bits = 8 * static_cast<int>(sizeof(T));
    if (ok_is(&tensor, code, bits) != 0) return;
    const ok_dtype wanted{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
    throw Error(what + std::to_string(i) + ": expected " + detail::name_of(wanted) + ", got " +
                detail::name_of(tensor.dtype));
  }
  decltype(ok_scalar::value) scalar(int i, int kind) const {
    if (i < 0 || i >= call_->n_scalars || call_->scalars[i].kind != kind)
      throw Error("scalar " + std::to_string(i) + " is not there, or of another kind");
    return call_->scalars[i].value;
  }

  ok_call* call_;
};

namespace detail {

/// Exceptions end here: none may cross the C interface.
template <auto Function>
std::int32_t guarded(ok_call* call) noexcept {
  try {
    Function(Call(call));
    return 0;
  } catch (const std::bad_alloc&) {
    return ok_fail(call, "out of memory");
  } catch (const std::exception& error) {
    return ok_fail(call, error.what());
  } catch (...) {
    return ok_fail(call, "unknown C++ exception");
  }
}

template <auto Function>
constexpr ok_function entry() {
  if constexpr (std::is_null_pointer_v<decltype(Function)>)
    return nullptr;
  else
    return &guarded<Function>;
}

template <auto Run, auto Workspace = nullptr, auto Infer = nullptr>
constexpr ok_op described() {
  return {OK_OP_HEAD, entry<Run>(), entry<Workspace>(), entry<Infer>()};
}

}  // namespace detail
}  // namespace opkiln

/// Exports an op under a symbol. The functions take an opkiln::Call.
#define OK_CPP_OP(name, ...) OK_OP_NAMED(name) = ::opkiln::detail::described<__VA_ARGS__>()

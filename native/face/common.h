// The C headers every part of the face needs, and an owning reference: in goes a new reference,
// out comes one that is given back exactly once.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL opkiln_numpy_api
#ifndef OPKILN_FACE_OWNS_NUMPY_API
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace opkiln::face {

#define OPKILN_LIKELY(x) __builtin_expect(!!(x), 1)
#define OPKILN_UNLIKELY(x) __builtin_expect(!!(x), 0)

// Owns one reference; needs the GIL wherever it is destroyed.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : p_(owned) {}
  Ref(Ref&& other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    PyObject* old = std::exchange(p_, std::exchange(other.p_, nullptr));
    Py_XDECREF(old);
    return *this;
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(p_); }

  static Ref borrow(PyObject* p) {
    Py_XINCREF(p);
    return Ref(p);
  }
  PyObject* get() const { return p_; }
  PyObject* release() { return std::exchange(p_, nullptr); }
  explicit operator bool() const { return p_ != nullptr; }

 private:
  PyObject* p_ = nullptr;
};

// A growing array that starts on the stack: no allocation for ordinary calls. POD elements only.
template <class T, size_t N>
class Small {
 public:
  Small() = default;
  Small(const Small&) = delete;
  Small& operator=(const Small&) = delete;
  ~Small() {
    if (OPKILN_UNLIKELY(p_ != inline_)) std::free(p_);
  }
  void reserve(size_t extra) {
    if (OPKILN_UNLIKELY(n_ + extra > cap_)) grow(extra);
  }
  void push(T value) {
    reserve(1);
    p_[n_++] = value;
  }
  void push_reserved(T value) { p_[n_++] = value; }
  void resize_down(size_t n) { n_ = n; }
  T* data() { return p_; }
  const T* data() const { return p_; }
  size_t size() const { return n_; }
  T& operator[](size_t i) { return p_[i]; }
  const T& operator[](size_t i) const { return p_[i]; }
  const T* begin() const { return p_; }
  const T* end() const { return p_ + n_; }
  T* begin() { return p_; }
  T* end() { return p_ + n_; }

 private:
  __attribute__((noinline)) void grow(size_t extra) {
    const size_t cap = 2 * cap_ + extra;
    T* fresh = static_cast<T*>(std::malloc(cap * sizeof(T)));
    if (!fresh) throw std::bad_alloc();
    std::memcpy(fresh, p_, n_ * sizeof(T));
    if (p_ != inline_) std::free(p_);
    p_ = fresh;
    cap_ = cap;
  }
  T* p_ = inline_;
  size_t n_ = 0;
  size_t cap_ = N;
  T inline_[N];
};

inline PyArrayObject* as_array(PyObject* o) { return reinterpret_cast<PyArrayObject*>(o); }
inline PyObject* as_object(PyArrayObject* a) { return reinterpret_cast<PyObject*>(a); }

// A function as the slot of a type has it.
template <class F>
void* slot(F* f) {
  return reinterpret_cast<void*>(f);
}

}  // namespace opkiln::face

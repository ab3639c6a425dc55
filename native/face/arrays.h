// In: ndarrays given as arguments, captures or out=; out: the core's views of them, and the rules
// NumPy has for out= (writable, exact shape, same-kind cast).
#pragma once

#include "core/layout.h"
#include "face/bind.h"

namespace opkiln::face {

static_assert(sizeof(npy_intp) == sizeof(int64_t), "extents are 64 bits");

inline core::ArrayView view_of(PyArrayObject* a) {
  core::ArrayView view;
  view.data = PyArray_BYTES(a);
  view.dtype = static_cast<core::DType>(code_of(PyArray_DESCR(a)));
  view.ndim = PyArray_NDIM(a);
  view.shape = PyArray_DIMS(a);
  view.strides = PyArray_STRIDES(a);
  return view;
}

// A tuple of ints; null with an error set.
PyObject* shape_tuple(int ndim, const npy_intp* shape);

// Memory of a result of rank 0, which becomes a scalar.
struct alignas(16) Cell {
  char bytes[16];
};

// The `out` argument of one call, an entry per array result.
struct OutArgs {
  Small<PyObject*, 8> given;        // what the caller passed and gets back; null = none (borrowed)
  Small<PyArrayObject*, 8> arrays;  // the array to write; null = none
  bool in_tuple = false;
  bool direct = true;  // every array can be written by the kernels themselves
  // Why results are copied into the arrays: 'c' they need a conversion, 'o' they overlap, 'p' an
  // integer power or 'e' division may raise, 'i' interpreted.
  char why = 'c';
  Small<int, 8> overlap;  // with why == 'o', per result: see Executor::overlap_of_out()
};

// Reads `out` and appends its layouts to the key when all can be written directly. Checks what does
// not need the results: kind, writable, no element twice. False with an error set.
bool read_outs(CallArgs& call, PyObject* out, OutArgs& outs);

// The number of entries fits `n_outs` array results? False with an error set.
bool check_out_count(const OutArgs& outs, size_t n_outs);

// Shape and cast of a result into outs.arrays[k]: false with NumPy's kind of error set.
bool check_out(const OutArgs& outs, size_t k, int ndim, const npy_intp* shape, core::DType dtype);

// 1 an np.memmap, which is an array like any other; 0 not, -1 with an error.
int is_memmap(PyObject* o);
// The same memory as a plain ndarray, or null with an error.
PyObject* plain_view(PyObject* o);

// A native aligned copy in memory order K, or null with an error.
PyArrayObject* usable_copy(PyArrayObject* a);

}  // namespace opkiln::face

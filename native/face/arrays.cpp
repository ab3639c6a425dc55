#include "face/arrays.h"

#include "core/alias.h"
#include "face/doors.h"
#include "face/errors.h"

namespace opkiln::face {

PyObject* shape_tuple(int ndim, const npy_intp* shape) {
  Ref tuple(PyTuple_New(ndim));
  for (int i = 0; tuple && i < ndim; i++) {
    PyObject* extent = PyLong_FromSsize_t(shape[i]);
    if (!extent) return nullptr;
    PyTuple_SET_ITEM(tuple.get(), i, extent);
  }
  return tuple.release();
}

namespace {

bool offers_memory(PyObject* o) {
  if (PyObject_CheckBuffer(o)) return true;
  for (const char* name : {"__dlpack__", "__array_interface__", "__array_struct__"}) {
    if (PyObject_HasAttrString(o, name)) return true;
  }
  return false;
}

// The array behind one entry of out=; null with an error set.
PyArrayObject* out_array(CallArgs& call, PyObject* o) {
  PyObject* array = o;
  const int mapped = is_memmap(o);
  if (mapped < 0) return nullptr;
  if (mapped) {
    array = plain_view(o);
    if (!array) return nullptr;
    call.keep(array);
  } else if (!PyArray_CheckExact(o)) {
    if (PyArray_Check(o) || (!known_door(Py_TYPE(o)) && !offers_memory(o))) {
      raise(Err::argument, "pass an ndarray to write to",
            "out: return arrays must be of ArrayType, got %s", Py_TYPE(o)->tp_name);
      return nullptr;
    }
    array = array_to_write(call, o);
    if (!array) {
      raise_at(nullptr, nullptr);
      return nullptr;
    }
    call.keep(array);
  }
  PyArrayObject* a = as_array(array);
  if (!PyArray_ISWRITEABLE(a)) {
    raise(Err::readonly, "pass a writable array, or use the returned one",
          "out: output array is read-only");
    return nullptr;
  }
  if (!(PyArray_FLAGS(a) & (NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_F_CONTIGUOUS))) {
    core::ArrayView view = view_of(a);
    if (code_of(PyArray_DESCR(a)) == kNoCode) return a;  // refused or copied later
    if (view.ndim > kMaxRank || core::has_internal_overlap(view)) {
      raise(Err::shape, "pass an array whose elements are distinct, for example np.empty(shape)",
            "out: some elements of the array share memory");
      return nullptr;
    }
  }
  return a;
}

}  // namespace

bool read_outs(CallArgs& call, PyObject* out, OutArgs& outs) {
  outs.in_tuple = PyTuple_CheckExact(out);
  const Py_ssize_t n = outs.in_tuple ? PyTuple_GET_SIZE(out) : 1;
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject* o = outs.in_tuple ? PyTuple_GET_ITEM(out, i) : out;
    PyArrayObject* a = nullptr;
    if (o == Py_None) {
      o = nullptr;
    } else if (!(a = out_array(call, o))) {
      return false;
    }
    outs.given.push(o);
    outs.arrays.push(a);
    if (a && !usable_as_is(a)) outs.direct = false;
  }
  if (!outs.direct) return true;
  for (PyArrayObject* a : outs.arrays) {
    if (!a) {
      call.key.push(tagged('n', 0));
      continue;
    }
    const int rank = PyArray_NDIM(a);
    call.key.reserve(1 + 2 * static_cast<size_t>(rank));
    call.key.push_reserved(array_word('o', code_of(PyArray_DESCR(a)), rank));
    for (int i = 0; i < rank; i++) call.key.push_reserved(static_cast<uint64_t>(PyArray_DIM(a, i)));
    for (int i = 0; i < rank; i++) {
      call.key.push_reserved(static_cast<uint64_t>(PyArray_STRIDE(a, i)));
    }
  }
  return true;
}

bool check_out_count(const OutArgs& outs, size_t n_outs) {
  if (outs.arrays.size() == n_outs && (outs.in_tuple || n_outs == 1)) return true;
  if (!outs.in_tuple) {
    raise(Err::argument, "pass a tuple with one entry per array result (None for a fresh one)",
          n_outs ? "out: 'out' must be a tuple of %zu arrays"
                 : "out: the function has %zu array results",
          n_outs);
  } else {
    raise(
        Err::shape,
        "pass one array or None per array result; equal results count once, numbers not at all",
        "out: the 'out' tuple must have exactly one entry per array result: expected %zu, got %zu",
        n_outs, outs.arrays.size());
  }
  return false;
}

bool check_out(const OutArgs& outs, size_t k, int ndim, const npy_intp* shape, core::DType dtype) {
  PyArrayObject* a = outs.arrays[k];
  if (PyArray_NDIM(a) != ndim || !PyArray_CompareLists(PyArray_DIMS(a), shape, ndim)) {
    Ref got(shape_tuple(PyArray_NDIM(a), PyArray_DIMS(a)));
    Ref expected(shape_tuple(ndim, shape));
    if (got && expected) {
      raise(Err::shape, "pass an array of the result's shape",
            "out: non-broadcastable output operand with shape %S, expected the result's shape %S",
            got.get(), expected.get());
    }
    return false;
  }
  PyArray_Descr* descr = descr_of(dtype);
  if (!PyArray_CanCastTypeTo(descr, PyArray_DESCR(a), NPY_SAME_KIND_CASTING)) {
    raise(Err::dtype, "pass an array of the result's dtype",
          "out: cannot cast the result from %R to %R with casting rule 'same_kind'", descr,
          PyArray_DESCR(a));
    return false;
  }
  return true;
}

int is_memmap(PyObject* o) {
  static PyObject* memmap = nullptr;
  if (PyArray_CheckExact(o) || !PyArray_Check(o)) return 0;
  if (!memmap) {
    Ref numpy(PyImport_ImportModule("numpy"));
    Ref found(numpy ? PyObject_GetAttrString(numpy.get(), "memmap") : nullptr);
    if (!found) return -1;
    if (!memmap) memmap = found.release();
  }
  return reinterpret_cast<PyObject*>(Py_TYPE(o)) == memmap;
}

PyObject* plain_view(PyObject* o) { return PyArray_View(as_array(o), nullptr, &PyArray_Type); }

PyArrayObject* usable_copy(PyArrayObject* a) {
  // What is broadcast is copied once, and stays broadcast: in size, and for the order of results.
  const int ndim = PyArray_NDIM(a);
  npy_intp shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
  for (int i = 0; i < ndim; i++) {
    const bool repeats = PyArray_DIM(a, i) > 1 && PyArray_STRIDE(a, i) == 0;
    shape[i] = repeats ? 1 : PyArray_DIM(a, i);
  }
  PyArray_Descr* descr = PyArray_DESCR(a);
  Py_INCREF(descr);  // the view below takes it
  Ref once(PyArray_NewFromDescr(&PyArray_Type, descr, ndim, shape, PyArray_STRIDES(a),
                                PyArray_DATA(a), 0, nullptr));
  if (!once) return nullptr;
  const auto dtype = static_cast<core::DType>(code_of(descr));
  Ref copy(PyArray_NewLikeArray(as_array(once.get()), NPY_KEEPORDER, new_descr_of(dtype), 0));
  if (!copy || PyArray_CopyInto(as_array(copy.get()), as_array(once.get())) < 0) return nullptr;
  if (PyArray_CompareLists(shape, PyArray_DIMS(a), ndim)) return as_array(copy.release());
  for (int i = 0; i < ndim; i++) {
    const bool repeats = shape[i] != PyArray_DIM(a, i);
    strides[i] = repeats ? 0 : PyArray_STRIDE(as_array(copy.get()), i);
  }
  PyObject* wide = PyArray_NewFromDescr(&PyArray_Type, new_descr_of(dtype), ndim, PyArray_DIMS(a),
                                        strides, PyArray_DATA(as_array(copy.get())), 0, nullptr);
  if (wide && PyArray_SetBaseObject(as_array(wide), copy.release()) < 0) Py_CLEAR(wide);
  return as_array(wide);
}

}  // namespace opkiln::face

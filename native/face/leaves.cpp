// Leaves of a call: what each kind of argument becomes, and what is refused.
#include "face/bind.h"

#include <cstring>

#include "face/arrays.h"
#include "face/compiled.h"
#include "face/doors.h"
#include "face/errors.h"
#include "face/future.h"

namespace opkiln::face {

namespace {

const char* param_name(Compiled* self, int param) {
  const char* text = PyUnicode_AsUTF8(PyTuple_GET_ITEM(self->names, param));
  return text ? text : "?";
}

Bound refuse(Compiled* self, CallArgs& call, Err kind, const char* fix, const char* what,
             PyObject* detail) {
  Ref name(function_name(self->frontend));
  if (name) {
    raise(kind, fix, "%U(): argument '%s': %s%S", name.get(), param_name(self, call.param), what,
          detail);
  }
  return Bound::error;
}

Bound refuse_type(Compiled* self, CallArgs& call, const char* fix, const char* what, PyObject* o) {
  Ref type(PyUnicode_FromString(Py_TYPE(o)->tp_name));
  if (!type) return Bound::error;
  return refuse(self, call, Err::argument, fix, what, type.get());
}

Bound refuse_dtype(Compiled* self, CallArgs& call, PyArray_Descr* descr) {
  const int type = descr->type_num;
  const char* fix =
      "pass an array of bool, int8..int64, uint8..uint64, float16..float64, bfloat16 or complex";
  if (type == NPY_CLONGDOUBLE) fix = "convert it first: x.astype(np.complex128)";
  if (type == NPY_LONGDOUBLE) fix = "convert it first: x.astype(np.float64)";
  if (PyTypeNum_ISDATETIME(type))
    fix = "convert it to a common unit: a process takes 49 units of time, and has met as many";
  return refuse(self, call, Err::dtype, fix, "expected a supported dtype, got ",
                reinterpret_cast<PyObject*>(descr));
}

}  // namespace

namespace {

void push_static(CallArgs& call, PyObject* owned, int64_t id) {
  call.key.push(tagged('s', static_cast<uint64_t>(id)));
  call.leaf.push(owned);
  call.kind.push('s');
  call.keep(owned);
}

}  // namespace

Bound add_static(Compiled* self, CallArgs& call, PyObject* o, char tag) {
  Ref value(canonical_static(o));
  if (!value) return Bound::error;
  const int64_t id = self->inside->interns.id_of(value.get());
  if (id < 0) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return Bound::error;
    PyErr_Clear();
    return refuse_type(self, call, "use a hashable value, such as a tuple instead of a list",
                       "a static argument must be hashable, got ", o);
  }
  if (tag == 's') {
    push_static(call, value.release(), id);
  } else {
    call.key.push(tagged(tag, static_cast<uint64_t>(id)));
  }
  return Bound::ok;
}

namespace {

// An exact ndarray that kernels cannot read in place: a counted copy, or a refusal.
Bound add_awkward_array(Compiled* self, CallArgs& call, PyArrayObject* a) {
  PyArray_Descr* descr = PyArray_DESCR(a);
  const uint8_t code = code_of(descr);
  if (code == kNoCode) return refuse_dtype(self, call, descr);
  if (PyArray_NDIM(a) > kMaxRank) {
    Ref rank(PyLong_FromLong(PyArray_NDIM(a)));
    if (!rank) return Bound::error;
    return refuse(self, call, Err::shape, "reshape it to at most 16 axes",
                  "expected rank <= 16, got rank ", rank.get());
  }
  PyObject* copy = as_object(usable_copy(a));
  if (!copy) return Bound::error;
  call.keep(copy);
  call.copied.push({descr->byteorder == NPY_OPPBYTE ? 'b' : 'u', call.param});
  call.add_array(copy, as_array(copy));
  return Bound::ok;
}

Bound add_int(Compiled* self, CallArgs& call, PyObject* o) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(o, &overflow);
  if (OPKILN_LIKELY(overflow == 0)) {
    if (value == -1 && PyErr_Occurred()) return Bound::error;
    call.add_weak(o, 'i', static_cast<uint64_t>(value));
    return Bound::ok;
  }
  if (overflow > 0) {
    const unsigned long long big = PyLong_AsUnsignedLongLong(o);
    if (!PyErr_Occurred()) {
      call.add_weak(o, 'u', big);
      return Bound::ok;
    }
    PyErr_Clear();
  }
  return add_static(self, call, o);
}

Bound add_float(CallArgs& call, PyObject* o) {
  const double value = PyFloat_AsDouble(o);
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  call.add_weak(o, 'f', bits);
  return Bound::ok;
}

Bound add_numpy_scalar(Compiled* self, CallArgs& call, PyObject* o) {
  if (PyUnicode_Check(o) || PyBytes_Check(o)) return add_static(self, call, o);
  PyArray_Descr* descr = PyArray_DescrFromScalar(o);
  if (!descr) return Bound::error;
  if (code_of(descr) == kNoCode) {
    const Bound refused = refuse_dtype(self, call, descr);
    Py_DECREF(descr);
    return refused;
  }
  PyObject* array = PyArray_FromScalar(o, descr);  // takes the descr
  if (!array) return Bound::error;
  call.keep(array);
  call.add_array(array, as_array(array));
  return Bound::ok;
}

Bound add_sequence(Compiled* self, CallArgs& call, PyObject* o, char tag) {
  if (Py_EnterRecursiveCall(" in the arguments of a compiled function")) return Bound::error;
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(o);
  call.key.push(tagged(tag, static_cast<uint64_t>(n)));
  Bound status = Bound::ok;
  for (Py_ssize_t i = 0; i < n && status == Bound::ok; i++) {
    if (PySequence_Fast_GET_SIZE(o) != n) {
      PyErr_SetString(PyExc_RuntimeError, "list changed size during the call");
      status = Bound::error;
      break;
    }
    PyObject* item = Py_NewRef(PySequence_Fast_GET_ITEM(o, i));
    call.keep(item);
    status = add_leaf(self, call, item);
  }
  Py_LeaveRecursiveCall();
  return status;
}

Bound add_dict(Compiled* self, CallArgs& call, PyObject* o) {
  if (Py_EnterRecursiveCall(" in the arguments of a compiled function")) return Bound::error;
  Ref items(PyDict_Items(o));  // a snapshot: hashing keys may run the user's code
  const Py_ssize_t n = items ? PyList_GET_SIZE(items.get()) : 0;
  Bound status = items ? Bound::ok : Bound::error;
  if (items) call.key.push(tagged('D', static_cast<uint64_t>(n)));
  for (Py_ssize_t i = 0; i < n && status == Bound::ok; i++) {
    PyObject* pair = PyList_GET_ITEM(items.get(), i);
    status = add_static(self, call, PyTuple_GET_ITEM(pair, 0), 'k');
    if (status != Bound::ok) break;
    PyObject* value = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
    call.keep(value);
    status = add_leaf(self, call, value);
  }
  Py_LeaveRecursiveCall();
  return status;
}

bool type_has(PyObject* o, const char* name) {
  PyObject* found = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(o)), name);
  if (!found) PyErr_Clear();
  Py_XDECREF(found);
  return found != nullptr;
}

// 1 an Enum member, 0 not, -1 error.
int is_enum(PyObject* o) {
  static PyObject* enum_class = nullptr;
  if (Py_TYPE(Py_TYPE(o)) == &PyType_Type) return 0;  // Enum classes have a metaclass
  if (!enum_class) {
    Ref module(PyImport_ImportModule("enum"));
    if (!module) return -1;
    PyObject* cls = PyObject_GetAttrString(module.get(), "Enum");
    if (!cls) return -1;
    if (enum_class) {
      Py_DECREF(cls);
    } else {
      enum_class = cls;
    }
  }
  return PyObject_IsInstance(o, enum_class);
}

Bound add_foreign(Compiled* self, CallArgs& call, PyObject* o) {
  PyObject* array;
  if (!read_foreign(call, o, &array)) {
    raise_at(self->frontend, param_name(self, call.param));
    return Bound::error;
  }
  if (!array) return Bound::ok;
  call.keep(array);
  if (!usable_as_is(as_array(array))) return add_awkward_array(self, call, as_array(array));
  call.add_array(array, as_array(array));
  return Bound::ok;
}

// NumPy's default of keywords such as initial=, which a compiled np.sum has for itself.
bool is_no_value(PyObject* o) { return std::strcmp(Py_TYPE(o)->tp_name, "_NoValueType") == 0; }

// The result of a call that is queued. On a stream it may be read before it is there: what is
// queued now runs after it, or waits for it. Anything else waits here.
Bound add_future(Compiled* self, CallArgs& call, Future* future) {
  const Pending& pending = future->pending();
  const bool in_turn = call.stream && !pending.done() && (!pending.origin || pending.origin->api);
  if (!in_turn && !wait_for(future)) return Bound::error;
  PyObject* value = in_turn ? arrays_of(future) : value_of(future);
  if (!value) return Bound::error;
  call.keep(value);
  if (in_turn) {
    call.keep(Py_NewRef(reinterpret_cast<PyObject*>(future)));
    call.needs.push(reinterpret_cast<PyObject*>(future));
  }
  return add_leaf(self, call, value);
}

// Everything that is not one of the common exact types.
Bound add_unusual(Compiled* self, CallArgs& call, PyObject* o) {
  if (Future* future = future_of(o)) return add_future(self, call, future);
  const bool is_self = self->has_self && call.key.size() == 1;  // not an item of an argument
  if (!is_self && known_door(Py_TYPE(o))) return add_foreign(self, call, o);
  if (is_self && !PyArray_IsScalar(o, Generic)) {  // mostly an instance that was here before
    const int64_t id = self->inside->interns.known_identity(o);
    if (id >= 0) {
      push_static(call, Py_NewRef(o), id);
      return Bound::ok;
    }
  }
  if (PyArray_IsScalar(o, Generic)) return add_numpy_scalar(self, call, o);
  if (PyArray_Check(o)) {
    const int mapped = is_memmap(o);
    PyObject* view = mapped > 0 ? plain_view(o) : nullptr;
    if (mapped < 0 || (mapped && !view)) return Bound::error;
    if (mapped) {
      call.keep(view);
      return add_leaf(self, call, view);
    }
    return refuse_type(self, call, "pass np.asarray(x) (a masked array: x.filled())",
                       "expected a plain ndarray, got the subclass ", o);
  }
  if (type_has(o, "__opkiln_tracer__")) return Bound::traced;
  const int enumerated = is_enum(o);
  if (enumerated < 0) return Bound::error;
  if (enumerated || PyUnicode_Check(o) || PyBytes_Check(o) || PyType_Check(o) || PySlice_Check(o) ||
      PyArray_DescrCheck(o) || o == Py_Ellipsis || is_no_value(o)) {
    return add_static(self, call, o);
  }
  if (PyLong_Check(o)) return add_int(self, call, o);
  if (PyFloat_Check(o)) return add_float(call, o);
  if (PyComplex_CheckExact(o)) return add_static(self, call, o);
  if (PyComplex_Check(o)) {
    Ref plain(PyComplex_FromDoubles(PyComplex_RealAsDouble(o), PyComplex_ImagAsDouble(o)));
    return plain ? add_static(self, call, plain.get()) : Bound::error;
  }
  if (is_self) {
    const int64_t id = self->inside->interns.id_of_identity(o);
    if (id < 0) return Bound::error;
    push_static(call, Py_NewRef(o), id);
    return Bound::ok;
  }
  if (PyTuple_Check(o) || PyList_Check(o) || PyDict_Check(o)) {
    return refuse_type(self, call, "pass a plain tuple, list or dict, for example tuple(x)",
                       "expected a plain container, got the subclass ", o);
  }
  return add_foreign(self, call, o);
}

}  // namespace

Bound add_leaf(Compiled* self, CallArgs& call, PyObject* o) {
  const PyTypeObject* type = Py_TYPE(o);
  if (OPKILN_LIKELY(type == &PyArray_Type)) {
    PyArrayObject* a = as_array(o);
    if (OPKILN_UNLIKELY(!usable_as_is(a))) return add_awkward_array(self, call, a);
    call.add_array(o, a);
    return Bound::ok;
  }
  if (type == &PyFloat_Type) return add_float(call, o);
  if (type == &PyLong_Type) return add_int(self, call, o);
  if (o == Py_None || type == &PyBool_Type || type == &PyUnicode_Type || type == &PyBytes_Type) {
    return add_static(self, call, o);
  }
  if (type == &PyTuple_Type) return add_sequence(self, call, o, 'T');
  if (type == &PyList_Type) return add_sequence(self, call, o, 'L');
  if (type == &PyDict_Type) return add_dict(self, call, o);
  return add_unusual(self, call, o);
}

}  // namespace opkiln::face

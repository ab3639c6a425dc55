#include "face/doors.h"

#include <vector>

#include "face/arrays.h"
#include "face/dlpack.h"
#include "face/errors.h"
#include "face/torch.h"

namespace opkiln::face {

namespace {

PyObject* interop(const char* name) {
  Ref module(PyImport_ImportModule("opkiln.runtime.interop"));
  return module ? PyObject_GetAttrString(module.get(), name) : nullptr;
}

// ---- types ----

constexpr size_t kRemembered = 64;
Door g_doors[kRemembered];

Door& place_of(const PyTypeObject* type) {
  return g_doors[reinterpret_cast<uintptr_t>(type) / 16 % kRemembered];
}

const DLPackExchangeAPI* exchange_of(PyTypeObject* type) {
  Ref capsule(
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
  if (!capsule || !PyCapsule_IsValid(capsule.get(), kDLExchange)) {
    PyErr_Clear();
    return nullptr;
  }
  auto* api = static_cast<DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule.get(), kDLExchange));
  while (api && api->major > 1) api = api->previous;
  return api && api->major == 1 ? api : nullptr;
}

// The one Origin of this name; null with an error set.
Origin* origin_of(PyObject* name) {
  static std::vector<Origin*> known;
  for (Origin* origin : known) {
    if (PyUnicode_Compare(origin->name, name) == 0) return origin;
  }
  if (PyErr_Occurred()) return nullptr;
  auto* made = new Origin{Py_NewRef(name)};
  made->is_torch = PyUnicode_CompareWithASCIIString(name, "torch") == 0;
  known.push_back(made);
  return made;
}

bool way_of(PyObject* name, Way* way) {
  const char* const kNames[] = {"exchange", "buffer", "dlpack", "interface"};
  for (int i = 0; i < 4; i++) {
    if (PyUnicode_CompareWithASCIIString(name, kNames[i]) != 0) continue;
    *way = static_cast<Way>(i);
    return true;
  }
  raise(Err::internal, nullptr, "opkiln: unknown way %R", name);
  return false;
}

// The way into objects of this type, asking Python if need be. False with an error set when the
// type is refused.
bool door_of(PyObject* o, Door* door) {
  PyTypeObject* type = Py_TYPE(o);
  if (const Door* known = known_door(type)) {
    *door = *known;
    return true;
  }
  Ref function(interop("door"));
  PyObject* has_buffer = PyObject_CheckBuffer(o) ? Py_True : Py_False;
  Ref answer(function ? PyObject_CallFunctionObjArgs(function.get(), o, has_buffer, nullptr)
                      : nullptr);
  PyObject *way, *library;
  if (!answer || !PyArg_ParseTuple(answer.get(), "UO", &way, &library)) return false;
  Door made;
  if (!way_of(way, &made.way)) return false;
  if (made.way == Way::exchange && !(made.api = exchange_of(type))) made.way = Way::dlpack;
  if (library != Py_None) {
    Origin* found = origin_of(library);
    if (!found) return false;
    if (!found->api) found->api = made.api;
    made.origin = found;
  }
  made.type = type;
  made.tag = type->tp_version_tag;
  *door = place_of(type) = made;
  return true;
}

// ---- memory ----

// Replaces an exporter's own error by ours, which says what to do. Interrupts and ours stay.
PyObject* refused(PyObject* o) {
  if (PyErr_Occurred() && (!PyErr_ExceptionMatches(PyExc_Exception) || is_ours())) return nullptr;
  if (PyErr_ExceptionMatches(PyExc_MemoryError)) return nullptr;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  Ref text(value ? PyObject_Str(value) : PyUnicode_FromString("it has none"));
  Ref lines(text ? PyUnicode_Splitlines(text.get(), 0) : nullptr);
  const bool some = lines && PyList_GET_SIZE(lines.get()) > 0;
  Ref reason = some ? Ref::borrow(PyList_GET_ITEM(lines.get(), 0)) : Ref(PyUnicode_New(0, 0));
  PyErr_Clear();
  Ref function(interop("refuse_memory"));
  if (function && reason) {
    Ref never(PyObject_CallFunctionObjArgs(function.get(), o, reason.get(), nullptr));
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  return nullptr;
}

PyObject* array_from_buffer(PyObject* o) {
  Ref view(PyMemoryView_FromObject(o));
  return view ? PyArray_FromAny(view.get(), nullptr, 0, 0, 0, nullptr) : nullptr;
}

// Not every array of a type has a buffer (JAX: bfloat16, other devices). Then DLPack knows better
// why, unless the array is not there at all.
PyObject* array_from_buffer_or_dlpack(PyObject* o, bool writable) {
  PyObject* array = array_from_buffer(o);
  if (array) return array;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  const bool other = PyErr_GivenExceptionMatches(type, PyExc_Exception) &&
                     PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(o)), "__dlpack__");
  if (other) array = array_from_capsule(o, writable);
  if (array || (other && is_ours())) {
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
  } else {
    PyErr_Restore(type, value, traceback);
  }
  return array;
}

PyObject* array_from_interface(PyObject* o) {
  const bool old = PyObject_HasAttrString(o, "__array_interface__");
  PyObject* array = old ? PyArray_FromInterface(o) : PyArray_FromStructInterface(o);
  if (array != Py_NotImplemented) return array;  // that one is not ours to give back
  return raise(Err::argument, "pass np.asarray(x)",
               "expected __array_interface__ or __array_struct__, this %s has none",
               Py_TYPE(o)->tp_name);
}

PyObject* read_memory(PyObject* o, const Door& door, bool writable) {
  switch (door.way) {
    case Way::exchange:
      return array_from_exchange(o, *door.api, writable);
    case Way::buffer:
      return array_from_buffer_or_dlpack(o, writable);
    case Way::dlpack: {
      const bool torch = door.origin && door.origin->is_torch;  // its method minds requires_grad
      Ref plain(torch ? PyObject_CallMethod(o, "detach", nullptr) : Py_NewRef(o));
      return plain ? array_from_capsule(plain.get(), writable) : nullptr;
    }
    case Way::interface:
      break;
  }
  return array_from_interface(o);
}

// torch conjugates by a bit of the tensor, which its memory knows nothing of.
bool check_conjugate(PyObject* o, const Door& door, PyArrayObject* array) {
  const bool asked = door.origin && door.origin->is_torch && PyArray_ISCOMPLEX(array);
  const int yes = asked ? is_conjugate(o) : 0;
  if (yes > 0) {
    raise(Err::argument, "pass x.resolve_conj()",
          "expected plain values, got a %s with its conjugate bit set", Py_TYPE(o)->tp_name);
  }
  return yes == 0;
}

PyObject* array_from(PyObject* o, const Door& door, bool writable) {
  Ref array(read_memory(o, door, writable));
  if (!array) return refused(o);
  return check_conjugate(o, door, as_array(array.get())) ? array.release() : nullptr;
}

// `watching`: what torch_is_watching() said in this call, or -1.
bool check_origin(int& watching, PyObject* o, const Door& door, bool written) {
  if (!door.origin || !door.origin->is_torch) return true;
  if (watching < 0 && (watching = torch_is_watching()) < 0) return false;
  return check_torch(o, watching > 0, written);
}

// Appends the tensor's layout to the key without making an ndarray, if kernels can read it so.
bool borrow(CallArgs& call, PyObject* o, const DLPackExchangeAPI& api) {
  DLTensor t;
  if (!api.tensor_from_object || api.tensor_from_object(o, &t) != 0) {
    PyErr_Clear();  // the long way finds the words
    return false;
  }
  const uint8_t code = t.device.device_type == kDLCPU ? code_of(t.dtype) : kNoCode;
  if (code == kNoCode || t.ndim < 0 || t.ndim > kMaxRank || !t.strides || !t.data) {
    return false;
  }
  if (t.dtype.code == kDLComplex && is_conjugate(o) != 0) {
    PyErr_Clear();
    return false;
  }
  const int64_t item = t.dtype.bits / 8;
  char* data = static_cast<char*>(t.data) + t.byte_offset;
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(item)) return false;
  for (int i = 0; i < t.ndim; i++) {
    if (t.shape[i] == 0) return false;
  }
  call.key.reserve(1 + 2 * static_cast<size_t>(t.ndim));
  call.key.push_reserved(array_word('a', code, t.ndim));
  for (int i = 0; i < t.ndim; i++) call.key.push_reserved(static_cast<uint64_t>(t.shape[i]));
  for (int i = 0; i < t.ndim; i++) {
    call.key.push_reserved(static_cast<uint64_t>(t.strides[i] * item));
  }
  call.leaf.push(o);
  call.kind.push('a');
  call.arrays.push(nullptr);
  call.data.push(data);
  call.borrowed = true;
  return true;
}

}  // namespace

const Door* known_door(const PyTypeObject* type) {
  const Door& door = place_of(type);
  return door.type == type && door.tag != 0 && door.tag == type->tp_version_tag ? &door : nullptr;
}

bool read_foreign(CallArgs& call, PyObject* o, PyObject** array) {
  *array = nullptr;
  Door door;
  if (!door_of(o, &door)) return false;
  if (door.origin && call.origin && door.origin != call.origin) {
    raise(Err::argument, "convert one side first, so that it is clear what the results become",
          "expected arrays of one library, got a %s beside arrays of %U", Py_TYPE(o)->tp_name,
          call.origin->name);
    return false;
  }
  if (door.origin) call.origin = door.origin;
  if (!check_origin(call.torch_is_watching, o, door, false)) return false;
  if (door.way == Way::exchange && borrow(call, o, *door.api)) return true;
  *array = array_from(o, door, false);
  return *array != nullptr;
}

PyObject* array_to_write(CallArgs& call, PyObject* o) {
  Door door;
  if (!door_of(o, &door) || !check_origin(call.torch_is_watching, o, door, true)) return nullptr;
  if (!door.origin || !door.origin->is_torch) return array_from(o, door, true);
  Ref array;
  DLTensor t;
  if (door.api && door.api->tensor_from_object) {  // torch's tensors are never read-only
    if (door.api->tensor_from_object(o, &t) == 0) array = Ref(array_over(o, t));
  } else {
    array = Ref(read_memory(o, door, true));
  }
  if (array && !check_conjugate(o, door, as_array(array.get()))) return nullptr;
  if (!array || !mark_written(o)) return refused(o);
  return array.release();
}

PyObject* foreign_array(PyObject* o) {
  Door door;
  int watching = -1;
  if (!door_of(o, &door) || !check_origin(watching, o, door, false)) return nullptr;
  return array_from(o, door, false);
}

bool materialise(CallArgs& call) {
  if (!call.borrowed) return true;
  size_t next = 0;
  for (size_t i = 0; i < call.leaf.size(); i++) {
    if (call.kind[i] != 'a') continue;
    const size_t k = next++;
    if (call.arrays[k]) continue;
    Door door;
    PyObject* o = call.leaf[i];
    PyObject* array = door_of(o, &door) ? array_from(o, door, false) : nullptr;
    if (!array) return false;
    call.keep(array);
    if (PyArray_BYTES(as_array(array)) != call.data[k] || !usable_as_is(as_array(array))) {
      raise(Err::internal, nullptr, "opkiln: a %s changed while the call was read",
            Py_TYPE(o)->tp_name);
      return false;
    }
    call.leaf[i] = array;
    call.arrays[k] = as_array(array);
  }
  call.borrowed = false;
  return true;
}

}  // namespace opkiln::face

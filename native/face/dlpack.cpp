#include "face/dlpack.h"

#include "face/bind.h"
#include "face/errors.h"

namespace opkiln::face {

namespace {

// The DLPack ABI (dlpack.h 1.0), legacy and versioned.
struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null means C order
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};
struct DLManagedTensorVersioned {
  uint32_t major, minor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor dl_tensor;
};
// DLPack 1.3's table of C functions, found on the type; spares two Python calls per tensor.
struct DLPackExchangeAPI {
  uint32_t major, minor;
  void* previous;
  void* allocator;
  int (*from_py_object)(void* py_object, DLManagedTensorVersioned** out);
  // further members are not used here
};
constexpr int32_t kDLCPU = 1;
constexpr const char* kExchange = "dlpack_exchange_api";
constexpr uint64_t kReadOnly = 1;
constexpr const char* kLegacy = "dltensor";
constexpr const char* kVersioned = "dltensor_versioned";
constexpr const char* kOurLegacy = "opkiln.dltensor";
constexpr const char* kOurVersioned = "opkiln.dltensor_versioned";

template <class Managed>
void destroy(PyObject* capsule) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
  if (managed && managed->deleter) managed->deleter(managed);
  PyErr_Restore(type, value, traceback);
}

// Takes the tensor out of the exporter's capsule into one of ours.
template <class Managed>
PyObject* adopt(PyObject* capsule, const char* name, const char* used, const char* ours,
                Managed** managed) {
  *managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  if (!*managed) return nullptr;
  PyObject* owner = PyCapsule_New(*managed, ours, destroy<Managed>);
  if (!owner) return nullptr;
  if (PyCapsule_SetName(capsule, used) < 0) {
    PyCapsule_SetDestructor(owner, nullptr);
    Py_DECREF(owner);
    return nullptr;
  }
  return owner;
}

int type_num_of(const DLDataType& t) {
  if (t.lanes != 1) return NPY_NOTYPE;
  switch (t.code << 8 | t.bits) {
    case 0 << 8 | 8:
      return NPY_INT8;
    case 0 << 8 | 16:
      return NPY_INT16;
    case 0 << 8 | 32:
      return NPY_INT32;
    case 0 << 8 | 64:
      return NPY_INT64;
    case 1 << 8 | 8:
      return NPY_UINT8;
    case 1 << 8 | 16:
      return NPY_UINT16;
    case 1 << 8 | 32:
      return NPY_UINT32;
    case 1 << 8 | 64:
      return NPY_UINT64;
    case 2 << 8 | 32:
      return NPY_FLOAT;
    case 2 << 8 | 64:
      return NPY_DOUBLE;
    case 6 << 8 | 8:
      return NPY_BOOL;
    default:
      return NPY_NOTYPE;
  }
}

PyObject* wrap(PyObject* source, const DLTensor& t, bool readonly, Ref owner) {
  static const char* const kNames[] = {"int",    "uint",    "float", "handle",
                                       "bfloat", "complex", "bool"};
  if (t.device.device_type != kDLCPU) {
    return raise(Err::device, "move it to the CPU first",
                 "expected memory on the CPU, got device type %d",
                 static_cast<int>(t.device.device_type));
  }
  const int type_num = type_num_of(t.dtype);
  if (type_num == NPY_NOTYPE) {
    constexpr int kComplex = 5;
    return raise(Err::dtype,
                 t.dtype.code == kComplex ? "pass x.real and x.imag as two arguments"
                                          : "convert it to float32 or another supported dtype",
                 "expected a supported dtype, got a %s of %s%d%s", Py_TYPE(source)->tp_name,
                 t.dtype.code < 7 ? kNames[t.dtype.code] : "an unknown kind of dtype, bits ",
                 t.dtype.bits, t.dtype.lanes == 1 ? "" : " in packs of several");
  }
  if (t.ndim < 0 || t.ndim > kMaxRank) {
    return raise(Err::shape, "reshape it to at most 16 axes", "expected rank <= 16, got rank %d",
                 static_cast<int>(t.ndim));
  }
  PyArray_Descr* descr = PyArray_DescrFromType(type_num);
  const npy_intp itemsize = PyDataType_ELSIZE(descr);
  npy_intp dims[kMaxRank], strides[kMaxRank];
  bool empty = false;
  for (int i = 0; i < t.ndim; i++) {
    dims[i] = static_cast<npy_intp>(t.shape[i]);
    empty |= dims[i] == 0;
    if (t.strides) strides[i] = static_cast<npy_intp>(t.strides[i]) * itemsize;
  }
  if (empty || (!t.data && t.ndim == 0)) {
    return PyArray_Zeros(t.ndim, dims, descr, 0);  // there may be no memory behind an empty tensor
  }
  char* data = static_cast<char*>(t.data) + t.byte_offset;
  PyObject* array =
      PyArray_NewFromDescr(&PyArray_Type, descr, t.ndim, dims, t.strides ? strides : nullptr, data,
                           readonly ? 0 : NPY_ARRAY_WRITEABLE, nullptr);
  if (!array) return nullptr;
  if (PyArray_SetBaseObject(as_array(array), owner.release()) < 0) {
    Py_DECREF(array);
    return nullptr;
  }
  return array;
}

// The exporter's capsule: versioned when it knows how, legacy otherwise.
PyObject* capsule_of(PyObject* o) {
  Ref method(PyObject_GetAttrString(o, "__dlpack__"));
  if (!method) return nullptr;
  Ref none(PyTuple_New(0));
  Ref keywords(Py_BuildValue("{s:(ii)}", "max_version", 1, 0));
  if (!none || !keywords) return nullptr;
  PyObject* capsule = PyObject_Call(method.get(), none.get(), keywords.get());
  if (capsule || !PyErr_ExceptionMatches(PyExc_TypeError)) return capsule;
  PyErr_Clear();
  return PyObject_CallNoArgs(method.get());
}

// An exporter's own error (no storage, another device) as ours, its first line kept. Returns null.
PyObject* export_error(PyObject* o) {
  if (!PyErr_Occurred()) {
    return raise(Err::argument, nullptr, "the memory of a %s cannot be used", Py_TYPE(o)->tp_name);
  }
  if (!PyErr_ExceptionMatches(PyExc_RuntimeError) && !PyErr_ExceptionMatches(PyExc_BufferError)) {
    return nullptr;
  }
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  Ref text(value ? PyObject_Str(value) : nullptr);
  Ref lines(text ? PyUnicode_Splitlines(text.get(), 0) : nullptr);
  if (!lines || PyList_GET_SIZE(lines.get()) == 0) {
    PyErr_Clear();
    PyErr_Restore(type, value, traceback);
    return nullptr;
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  return raise(Err::argument, "pass a dense array on the CPU",
               "the memory of a %s cannot be used: %U", Py_TYPE(o)->tp_name,
               PyList_GET_ITEM(lines.get(), 0));
}

// torch marks some views as "negated, not yet done", and its export drops the mark.
int check_negation(PyObject* o) {
  Ref answer(PyObject_CallMethod(o, "is_neg", nullptr));
  if (!answer) {
    PyErr_Clear();
    return 0;
  }
  if (answer.get() != Py_True) return 0;
  raise(Err::argument, "pass x.resolve_neg()",
        "expected plain values, got a %s with its negative bit set", Py_TYPE(o)->tp_name);
  return -1;
}

// The C functions of exactly this type (a subclass may mean something else by __dlpack__), or null.
const DLPackExchangeAPI* exchange_of(PyObject* o) {
  static PyObject* name = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  PyObject* dict = Py_TYPE(o)->tp_dict;
  PyObject* capsule = name && dict ? PyDict_GetItemWithError(dict, name) : nullptr;
  if (!capsule || !PyCapsule_IsValid(capsule, kExchange)) {
    PyErr_Clear();
    return nullptr;
  }
  const auto* api = static_cast<DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule, kExchange));
  return api->major == 1 && api->from_py_object ? api : nullptr;
}

// 0 fine, -1 refused with an error set.
int check_grad(PyObject* o) {
  Ref needs_grad(PyObject_GetAttrString(o, "requires_grad"));
  if (!needs_grad) {
    PyErr_Clear();
  } else {
    const int yes = PyObject_IsTrue(needs_grad.get());
    if (yes < 0) return -1;
    if (yes) {
      raise(Err::argument, "pass x.detach()",
            "expected a tensor without requires_grad, got a %s that requires grad",
            Py_TYPE(o)->tp_name);
      return -1;
    }
  }
  return 0;
}

int check_device(PyObject* o) {
  Ref device(PyObject_CallMethod(o, "__dlpack_device__", nullptr));
  if (!device) return -1;
  int type = 0, number = 0;
  if (!PyTuple_Check(device.get()) || PyTuple_GET_SIZE(device.get()) != 2) {
    PyErr_SetString(PyExc_TypeError, "__dlpack_device__ must return a pair");
    return -1;
  }
  type = static_cast<int>(PyNumber_AsSsize_t(PyTuple_GET_ITEM(device.get(), 0), nullptr));
  number = static_cast<int>(PyNumber_AsSsize_t(PyTuple_GET_ITEM(device.get(), 1), nullptr));
  if (PyErr_Occurred()) return -1;
  if (type != kDLCPU) {
    raise(Err::device, "move it to the CPU first, for example x.cpu()",
          "expected memory on the CPU, got a %s on DLPack device (%d, %d)", Py_TYPE(o)->tp_name,
          type, number);
    return -1;
  }
  return 0;
}

PyObject* wrap_versioned(PyObject* o, DLManagedTensorVersioned* m, bool writable, Ref owner) {
  if (m->major != 1) {
    return raise(Err::argument, nullptr, "expected DLPack version 1, got version %u.%u", m->major,
                 m->minor);
  }
  const bool readonly = (m->flags & kReadOnly) != 0;
  if (readonly && writable) {
    return raise(Err::readonly, "pass a writable array", "the %s is read-only",
                 Py_TYPE(o)->tp_name);
  }
  return wrap(o, m->dl_tensor, readonly, std::move(owner));
}

// The class whose export is used: a user's subclass of a library's tensor gives that library's.
PyObject* exporter_of(PyObject* o) {
  PyObject* mro = Py_TYPE(o)->tp_mro;
  for (Py_ssize_t i = 0; mro && i < PyTuple_GET_SIZE(mro); i++) {
    PyObject* cls = PyTuple_GET_ITEM(mro, i);
    Ref dict(PyObject_GetAttrString(cls, "__dict__"));
    if (dict && PyMapping_HasKeyString(dict.get(), "__dlpack__")) return cls;
    PyErr_Clear();
  }
  return reinterpret_cast<PyObject*>(Py_TYPE(o));
}

}  // namespace

PyObject* array_from_dlpack(PyObject* o, bool writable) {
  if (check_grad(o) < 0 || check_negation(o) < 0) return nullptr;
  if (const DLPackExchangeAPI* api = exchange_of(o)) {
    DLManagedTensorVersioned* m = nullptr;
    if (api->from_py_object(o, &m) != 0 || !m) return export_error(o);
    PyObject* owner = PyCapsule_New(m, kOurVersioned, destroy<DLManagedTensorVersioned>);
    if (!owner) {
      m->deleter(m);
      return nullptr;
    }
    return wrap_versioned(o, m, writable, Ref(owner));
  }
  if (check_device(o) < 0) return nullptr;
  Ref capsule(capsule_of(o));
  if (!capsule) return export_error(o);
  if (PyCapsule_IsValid(capsule.get(), kVersioned)) {
    DLManagedTensorVersioned* m = nullptr;
    Ref owner(adopt(capsule.get(), kVersioned, "used_dltensor_versioned", kOurVersioned, &m));
    return owner ? wrap_versioned(o, m, writable, std::move(owner)) : nullptr;
  }
  if (PyCapsule_IsValid(capsule.get(), kLegacy)) {
    DLManagedTensor* m = nullptr;
    Ref owner(adopt(capsule.get(), kLegacy, "used_dltensor", kOurLegacy, &m));
    if (!owner) return nullptr;
    return wrap(o, m->dl_tensor, false, std::move(owner));
  }
  return raise(Err::argument, nullptr, "__dlpack__ of %s did not return a DLPack capsule",
               Py_TYPE(o)->tp_name);
}

PyObject* library_of(PyObject* o) {
  Ref module(PyObject_GetAttrString(exporter_of(o), "__module__"));
  if (!module) return nullptr;
  if (!PyUnicode_Check(module.get())) return PyUnicode_FromString("unknown");
  const Py_ssize_t n = PyUnicode_GET_LENGTH(module.get());
  const Py_ssize_t dot = PyUnicode_FindChar(module.get(), '.', 0, n, 1);
  return PyUnicode_Substring(module.get(), 0, dot >= 0 ? dot : n);
}

}  // namespace opkiln::face

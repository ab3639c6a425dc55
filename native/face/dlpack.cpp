#include "face/dlpack.h"

#include "face/bind.h"
#include "face/errors.h"

namespace opkiln::face {

namespace {

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

PyObject* wrap(PyObject* source, const DLTensor& t, bool readonly, Ref owner) {
  static const char* const kNames[] = {"int",    "uint",    "float", "handle",
                                       "bfloat", "complex", "bool"};
  if (t.device.device_type != kDLCPU) {
    return raise(Err::device, "move it to the CPU first, for example x.cpu()",
                 "expected memory on the CPU, got device type %d",
                 static_cast<int>(t.device.device_type));
  }
  const uint8_t code = code_of(t.dtype);
  if (code == kNoCode) {
    constexpr int kBfloat = 4;
    const char* fix = "convert it to float32 or another supported dtype";
    if (t.dtype.code == kBfloat && t.dtype.bits == 16)
      fix = "pip install ml_dtypes, which gives NumPy bfloat16";
    else if (t.dtype.code == kDLComplex)
      fix = "convert it to complex64";
    else if (PyObject_HasAttrString(source, "float"))
      fix = "convert it to float32 first: x.float()";  // torch
    return raise(Err::dtype, fix, "expected a supported dtype, got a %s of %s%d%s",
                 Py_TYPE(source)->tp_name,
                 t.dtype.code < 7 ? kNames[t.dtype.code] : "an unknown kind of dtype, bits ",
                 t.dtype.bits, t.dtype.lanes == 1 ? "" : " in packs of several");
  }
  if (t.ndim < 0 || t.ndim > kMaxRank) {
    return raise(Err::shape, "reshape it to at most 16 axes", "expected rank <= 16, got rank %d",
                 static_cast<int>(t.ndim));
  }
  PyArray_Descr* descr = new_descr_of(static_cast<core::DType>(code));
  const npy_intp itemsize = PyDataType_ELSIZE(descr);
  npy_intp dims[kMaxRank], strides[kMaxRank];
  bool empty = false;
  for (int i = 0; i < t.ndim; i++) {
    dims[i] = static_cast<npy_intp>(t.shape[i]);
    empty |= dims[i] == 0;
    if (t.strides) strides[i] = static_cast<npy_intp>(t.strides[i]) * itemsize;
  }
  if (empty) {
    return PyArray_Zeros(t.ndim, dims, descr, 0);  // there may be no memory behind it
  }
  if (!t.data) {
    Py_DECREF(descr);
    return raise(Err::argument, "pass an array with values", "expected memory, a %s has none",
                 Py_TYPE(source)->tp_name);
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
    return raise(Err::argument, "pass np.asarray(x)",
                 "expected DLPack version 1, got version %u.%u", m->major, m->minor);
  }
  const bool readonly = (m->flags & kDLReadOnly) != 0;
  if (writable && (m->flags & kDLCopied)) {
    return raise(Err::readonly, "pass an array whose own memory can be written",
                 "the %s exports a copy of its memory", Py_TYPE(o)->tp_name);
  }
  if (readonly && writable) {
    return raise(Err::readonly, "pass a writable array", "the %s is read-only",
                 Py_TYPE(o)->tp_name);
  }
  return wrap(o, m->dl_tensor, readonly, std::move(owner));
}

}  // namespace

PyObject* array_from_exchange(PyObject* o, const DLPackExchangeAPI& api, bool writable) {
  DLManagedTensorVersioned* m = nullptr;
  if (api.managed_from_object(o, &m) != 0 || !m) return nullptr;
  PyObject* owner = PyCapsule_New(m, kOurVersioned, destroy<DLManagedTensorVersioned>);
  if (!owner) {
    if (m->deleter) m->deleter(m);
    return nullptr;
  }
  return wrap_versioned(o, m, writable, Ref(owner));
}

PyObject* array_over(PyObject* o, const DLTensor& t) { return wrap(o, t, false, Ref::borrow(o)); }

PyObject* array_from_capsule(PyObject* o, bool writable) {
  if (check_device(o) < 0) return nullptr;
  Ref capsule(capsule_of(o));
  if (!capsule) return nullptr;
  if (PyCapsule_IsValid(capsule.get(), kDLVersioned)) {
    DLManagedTensorVersioned* m = nullptr;
    Ref owner(adopt(capsule.get(), kDLVersioned, "used_dltensor_versioned", kOurVersioned, &m));
    return owner ? wrap_versioned(o, m, writable, std::move(owner)) : nullptr;
  }
  if (PyCapsule_IsValid(capsule.get(), kDLLegacy)) {
    DLManagedTensor* m = nullptr;
    Ref owner(adopt(capsule.get(), kDLLegacy, "used_dltensor", kOurLegacy, &m));
    if (!owner) return nullptr;
    return wrap(o, m->dl_tensor, false, std::move(owner));
  }
  return raise(Err::argument, "pass np.asarray(x)",
               "__dlpack__ of %s did not return a DLPack capsule", Py_TYPE(o)->tp_name);
}

PyObject* fresh_in(const DLPackExchangeAPI& api, const core::OutSpec& spec, char** data) {
  const DLDataType* known = dl_type_of(spec.dtype);
  if (!known) {
    return raise(Err::dtype, "return its integers: y.astype(np.int64)",
                 "a result is %S, which arrays of the arguments' library cannot hold",
                 reinterpret_cast<PyObject*>(descr_of(spec.dtype)));
  }
  // One block: the description, then the elements on a cache line of their own.
  struct Block {
    DLManagedTensorVersioned managed;
    int64_t shape[kMaxRank], strides[kMaxRank];
  };
  constexpr size_t kLine = 64;
  constexpr size_t kHead = (sizeof(Block) + kLine - 1) / kLine * kLine;
  const size_t bytes = static_cast<size_t>(spec.nbytes);
  void* memory = bytes > PTRDIFF_MAX - kHead - kLine
                     ? nullptr
                     : std::aligned_alloc(kLine, kHead + (bytes + kLine - 1) / kLine * kLine);
  if (!memory) return PyErr_NoMemory();
  auto* block = new (memory) Block;
  *data = static_cast<char*>(memory) + kHead;
  const DLDataType type = *known;
  for (int i = 0; i < spec.ndim; i++) {
    block->shape[i] = spec.shape[i];
    block->strides[i] = spec.strides[i] / (type.bits / 8);
  }
  const auto deleter = [](DLManagedTensorVersioned* m) { std::free(m); };  // on any thread
  block->managed = {1, 0, nullptr, deleter, 0, {}};
  block->managed.dl_tensor = {*data, {kDLCPU, 0}, spec.ndim, type, block->shape, block->strides, 0};
  void* object = nullptr;  // the block is taken, also on failure
  if (api.object_from_managed(&block->managed, &object) != 0) return nullptr;
  return static_cast<PyObject*>(object);
}

}  // namespace opkiln::face

#include "face/allocator.h"

#include "core/table.h"
#include "face/errors.h"
#include "face/gil.h"

namespace opkiln::face {

NewArray g_new_array = nullptr;

namespace {

PyObject* g_variable = nullptr;  // null: no allocator was ever set
PyObject* g_fallback = nullptr;

// The allocator of this context (new reference), None for NumPy's, null with an error.
PyObject* in_force() {
  PyObject* found = nullptr;
  return PyContextVar_Get(g_variable, g_fallback, &found) < 0 ? nullptr : found;
}

PyObject* numpy_array(const core::OutSpec& spec) {
  return PyArray_NewFromDescr(&PyArray_Type, new_descr_of(spec.dtype), spec.ndim, spec.shape,
                              spec.strides, nullptr, 0, nullptr);
}

PyObject* new_array_or_null(PyTypeObject* type, PyArray_Descr* descr, int rank,
                            npy_intp const* dims, npy_intp const* strides, void* data, int flags,
                            PyObject* base) {
  const Ref allocator(in_force());
  if (allocator.get() != Py_None) {
    Py_DECREF(descr);
    return nullptr;
  }
  return PyArray_NewFromDescr(type, descr, rank, dims, strides, data, flags, base);
}

// What the user's code raised stays what it is, with a line that says where.
void add_note(Compiled* self, int64_t nbytes) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  Ref name(function_name(self->frontend));
  Ref text(name ? PyUnicode_FromFormat("in the allocator of %U(), asked for %lld bytes on cpu",
                                       name.get(), static_cast<long long>(nbytes))
                : nullptr);
  Ref done(text ? PyObject_CallMethod(value, "add_note", "O", text.get()) : nullptr);
  if (!done) PyErr_Clear();
  PyErr_Restore(type, value, traceback);
}

// "argument 'x'", "a captured array", "another result": what output k's memory may not share.
PyObject* owner_of(const core::Executor& x, int place) {
  const auto* record = static_cast<const Record*>(x.user);
  const auto& plan = x.plan();
  if (static_cast<size_t>(place) < plan.args().size() + plan.captures().size()) {
    return PyUnicode_FromFormat("%S", record->label(place));
  }
  return PyUnicode_FromString("another result");
}

PyObject* refuse(Compiled* self, const char* format, PyObject* what, int64_t got, int64_t asked) {
  Ref name(function_name(self->frontend));
  Ref text(PyUnicode_FromFormat(format, what, static_cast<long long>(got),
                                static_cast<long long>(asked)));
  if (!name || !text) return nullptr;
  return raise(Err::allocator,
               "return an object with a writable, contiguous buffer that nothing else uses, for "
               "example np.empty(nbytes, np.uint8)",
               "%U(): the allocator gave %U", name.get(), text.get());
}

// Elements are references: what a kernel writes in their place would be given back as one. Field
// names stand between colons.
bool holds_objects(const char* format) {
  bool name = false;
  for (; format && *format; format++) {
    if (*format == ':') name = !name;
    if (*format == 'O' && !name) return true;
  }
  return false;
}

// An array over the buffer of `object`, which it keeps alive.
PyObject* array_over(Compiled* self, const core::OutSpec& spec, PyObject* object) {
  const auto type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  Ref view(PyMemoryView_FromObject(object));
  if (!view) {
    PyErr_Clear();
    return refuse(self, "%R, which has no buffer", type, 0, 0);
  }
  const Py_buffer& buffer = *PyMemoryView_GET_BUFFER(view.get());
  if (buffer.readonly) return refuse(self, "a read-only %R", type, 0, 0);
  if (holds_objects(buffer.format)) return refuse(self, "a %R of Python objects", type, 0, 0);
  if (!PyBuffer_IsContiguous(&buffer, 'C')) return refuse(self, "a %R with gaps", type, 0, 0);
  if (buffer.len < spec.nbytes) {
    return refuse(self, "a %R of %lld bytes, asked for %lld", type, buffer.len, spec.nbytes);
  }
  const auto alignment = PyDataType_ALIGNMENT(descr_of(spec.dtype));
  if (reinterpret_cast<uintptr_t>(buffer.buf) % static_cast<uintptr_t>(alignment) != 0) {
    return refuse(self, "a %R whose address is no multiple of %lld", type, alignment, 0);
  }
  Ref array(PyArray_NewFromDescr(&PyArray_Type, new_descr_of(spec.dtype), spec.ndim, spec.shape,
                                 spec.strides, buffer.buf, NPY_ARRAY_WRITEABLE, nullptr));
  if (!array || PyArray_SetBaseObject(as_array(array.get()), view.release()) < 0) return nullptr;
  PyArray_UpdateFlags(as_array(array.get()), NPY_ARRAY_UPDATE_ALL);
  return array.release();
}

PyObject* allocated(Compiled* self, core::OutSpec spec, PyObject* allocator) {
  const Ref object(in_python([&] {
    return PyObject_CallFunction(allocator, "sLO", "cpu", static_cast<long long>(spec.nbytes),
                                 reinterpret_cast<PyObject*>(self));
  }));
  if (!object) {
    if (!is_ours()) add_note(self, spec.nbytes);
    return nullptr;
  }
  return array_over(self, spec, object.get());
}

// The error that is set is a lack of memory, and idle executors have been dropped against it.
bool made_room() {
  if (!PyErr_ExceptionMatches(PyExc_MemoryError)) return false;
  core::ThreadTable& table = core::ThreadTable::current();
  if (table.drop_idle() == 0) return false;
  PyErr_Clear();
  return true;
}

}  // namespace

void reset_new_array() { g_new_array = PyArray_NewFromDescr; }

void use_allocator(PyObject* variable, PyObject* fallback) {
  PyObject* old_variable = std::exchange(g_variable, Py_NewRef(variable));
  PyObject* old_fallback = std::exchange(g_fallback, Py_NewRef(fallback));
  g_new_array = new_array_or_null;
  Py_XDECREF(old_variable);
  Py_XDECREF(old_fallback);
}

PyObject* fresh_array(Compiled* self, const core::Executor& x, size_t k) {
  const core::OutSpec& spec = x.out(k);
  const Ref allocator(g_variable && spec.nbytes != 0 ? in_force() : Py_NewRef(Py_None));
  if (!allocator) return nullptr;
  const bool own = allocator.get() != Py_None;
  const auto make = [&] {
    return own ? allocated(self, spec, allocator.get()) : numpy_array(spec);
  };
  Ref array(make());
  if (!array && made_room()) array = Ref(make());
  if (!array || !own) return array.release();
  const int place = x.overlap_of_fresh(k, PyArray_BYTES(as_array(array.get())));
  if (place < 0) return array.release();
  Ref owner(owner_of(x, place));
  return owner ? refuse(self, "memory that %U occupies", owner.get(), 0, 0) : nullptr;
}

}  // namespace opkiln::face

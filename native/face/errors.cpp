#include "face/errors.h"

#include "core/errors.h"

#include <cstdarg>
#include <exception>
#include <stdexcept>

namespace opkiln::face {

namespace {

struct ErrorRow {
  const char* name;
  PyObject** builtin;
};

const ErrorRow kRows[] = {
    {"OpkilnError", &PyExc_Exception},        {"ArgumentError", &PyExc_TypeError},
    {"UnsupportedDType", &PyExc_TypeError},   {"ShapeError", &PyExc_ValueError},
    {"ReadOnlyError", &PyExc_ValueError},     {"DeviceMismatch", &PyExc_ValueError},
    {"TraceError", &PyExc_TypeError},         {"NotYet", &PyExc_NotImplementedError},
    {"PoolTimeout", &PyExc_TimeoutError},     {"PoolLimitError", &PyExc_RuntimeError},
    {"EventError", &PyExc_RuntimeError},      {"EventTimeout", &PyExc_TimeoutError},
    {"StreamError", &PyExc_RuntimeError},     {"LoadFailed", &PyExc_OSError},
    {"SymbolMissing", &PyExc_AttributeError}, {"HostRangeError", &PyExc_OverflowError},
    {"BusyError", &PyExc_RuntimeError},       {"CustomOpError", &PyExc_RuntimeError},
    {"AbiMismatch", &PyExc_RuntimeError},     {"AllocatorError", &PyExc_ValueError},
    {nullptr, &PyExc_RuntimeError},
};
static_assert(sizeof(kRows) / sizeof(kRows[0]) == static_cast<size_t>(Err::count_));

PyObject* g_classes[static_cast<size_t>(Err::count_)];
PyObject* g_module = nullptr;

}  // namespace

PyObject* error_class(Err kind) {
  const size_t i = static_cast<size_t>(kind);
  const ErrorRow& row = kRows[i];
  if (g_classes[i]) return g_classes[i];
  if (!row.name) return *row.builtin;
  if (!g_module) {
    g_module = PyImport_ImportModule("opkiln.runtime.errors");
    if (!g_module) {
      PyErr_Clear();
      return *row.builtin;
    }
  }
  PyObject* cls = PyObject_GetAttrString(g_module, row.name);
  if (!cls || !PyExceptionClass_Check(cls)) {
    PyErr_Clear();
    Py_XDECREF(cls);
    return *row.builtin;
  }
  PyObject* mine = std::exchange(g_classes[i], cls);  // another thread may have been first
  Py_XDECREF(mine);
  return cls;
}

PyObject* raise(Err kind, const char* fix, const char* format, ...) {
  va_list args;
  va_start(args, format);
  Ref text(PyUnicode_FromFormatV(format, args));
  va_end(args);
  if (!text) return nullptr;
  PyObject* cls = error_class(kind);
  if (fix) {
    text = Ref(PyUnicode_FromFormat("%U\n  how to fix: %s", text.get(), fix));
    if (!text) return nullptr;
  }
  PyErr_SetObject(cls, text.get());
  return nullptr;
}

bool is_ours() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);  // finding the class may run Python
  const bool ours = type && PyErr_GivenExceptionMatches(type, error_class(Err::any));
  PyErr_Restore(type, value, traceback);
  return ours;
}

void raise_at(PyObject* frontend, const char* parameter) {
  const bool ours = is_ours();
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  Ref text(ours && value ? PyObject_Str(value) : nullptr);
  Ref name(text && parameter ? function_name(frontend) : nullptr);
  PyObject* longer = nullptr;
  if (name) {
    longer = PyUnicode_FromFormat("%U(): argument '%s': %U", name.get(), parameter, text.get());
  } else if (text) {
    longer = PyUnicode_FromFormat("out: %U", text.get());
  }
  if (longer) {
    Py_SETREF(value, longer);
  } else {
    PyErr_Clear();
  }
  PyErr_Restore(type, value, traceback);
}

void raise_current() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const core::PoolTimeout& e) {  // of a call: see raise_pool_timeout()
    raise(Err::pool_timeout, nullptr, "%s", e.what());
  } catch (const core::ThreadPoolLimit& e) {
    raise(Err::pool_limit, "raise OPKILN_MAX_THREAD_POOLS or use fewer threads",
          "OPKILN_MAX_THREAD_POOLS allows %zu thread pools and %zu threads hold one", e.limit,
          e.live);
  } catch (const core::OpError& e) {
    raise(Err::custom_op, nullptr, "%s", e.what());
  } catch (const core::AbiError& e) {
    raise(Err::abi, nullptr, "%s", e.what());
  } catch (const core::EventTimeout& e) {
    raise(Err::event_timeout, nullptr, "%s", e.what());
  } catch (const core::StreamClosed& e) {
    raise(Err::stream, "make a new stream: ok.Stream(\"cpu\")", "%s", e.what());
  } catch (const core::EventError& e) {
    raise(Err::event, nullptr, "%s", e.what());
  } catch (const std::exception& e) {
    if (!PyErr_Occurred()) raise(Err::internal, nullptr, "opkiln: %s", e.what());
  } catch (...) {
    if (!PyErr_Occurred()) raise(Err::internal, nullptr, "opkiln: unknown C++ exception");
  }
}

void forget_errors() {
  for (PyObject*& cls : g_classes) Py_CLEAR(cls);
  Py_CLEAR(g_module);
}

PyObject* function_name(PyObject* frontend) {
  for (const char* attribute : {"__qualname__", "__name__"}) {
    PyObject* name = frontend ? PyObject_GetAttrString(frontend, attribute) : nullptr;
    if (name && PyUnicode_Check(name)) return name;
    Py_XDECREF(name);
    PyErr_Clear();
  }
  return PyUnicode_FromString("function");
}

}  // namespace opkiln::face

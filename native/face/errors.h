// In: what went wrong, with the name of the error class; out: that Python exception is set, from
// opkiln.runtime.errors when that module can be imported, else the builtin it derives from.
#pragma once

#include "face/common.h"

namespace opkiln::face {

struct PythonError {};  // thrown when a Python exception is set

enum class Err : int {
  any,            // OpkilnError, the base of all
  argument,       // ArgumentError, TypeError
  dtype,          // UnsupportedDType, TypeError
  shape,          // ShapeError, ValueError
  readonly,       // ReadOnlyError, ValueError
  device,         // DeviceMismatch, ValueError
  trace,          // TraceError, TypeError
  not_yet,        // NotYet, NotImplementedError
  pool_timeout,   // PoolTimeout, TimeoutError
  pool_limit,     // PoolLimitError, RuntimeError
  event,          // EventError, RuntimeError
  event_timeout,  // EventTimeout, TimeoutError
  stream,         // StreamError, RuntimeError
  load,           // LoadFailed, OSError
  symbol,         // SymbolMissing, AttributeError
  host_range,     // HostRangeError, OverflowError
  busy,           // BusyError, RuntimeError
  custom_op,      // CustomOpError, RuntimeError
  abi,            // AbiMismatch, RuntimeError
  allocator,      // AllocatorError, ValueError
  internal,       // RuntimeError: a fault of opkiln itself
  count_
};

// The exception class (borrowed); never null.
PyObject* error_class(Err kind);

// Sets the exception; returns null so that callers can `return raise(...)`. `format` is
// PyUnicode_FromFormat's. A fix, when given, becomes the sentence "how to fix: ...".
PyObject* raise(Err kind, const char* fix, const char* format, ...);

// The error that is set is one of opkiln's.
bool is_ours();

// Puts "f(): argument 'x': " before the message of the error that is set, if it is ours;
// without a parameter's name, "out: ".
void raise_at(PyObject* frontend, const char* parameter);

// Turns the C++ exception being handled into a Python one; call it inside `catch (...)`.
void raise_current();

// Drops the cached classes (module teardown).
void forget_errors();

// "f" for messages: the frontend's __qualname__, __name__ or "function"; new reference or null.
PyObject* function_name(PyObject* frontend);

}  // namespace opkiln::face

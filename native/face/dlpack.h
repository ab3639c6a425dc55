// In: an object that exports DLPack; out: an ndarray over the same memory that keeps it alive. And
// back: memory for a result as another library's array.
#pragma once

#include "core/executor.h"
#include "face/common.h"
#include "face/dlpack_abi.h"

namespace opkiln::face {

// Each gives a new reference; null with an error set when the exporter refuses or its memory is not
// ours to use (not on the CPU, an unsupported dtype). `writable`: it will be written.
PyObject* array_from_exchange(PyObject* o, const DLPackExchangeAPI& api, bool writable);
PyObject* array_from_capsule(PyObject* o, bool writable);

// The same of a borrowed description. What it says holds while nothing changes the tensor itself.
PyObject* array_over(PyObject* o, const DLTensor& t);

// Fresh memory in the library's type, and where it lies; null with an error set.
PyObject* fresh_in(const DLPackExchangeAPI& api, const core::OutSpec& spec, char** data);

}  // namespace opkiln::face

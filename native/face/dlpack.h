// In: an object with __dlpack__ (a torch CPU tensor); out: an ndarray over the same memory that
// keeps the exporter's memory alive.
#pragma once

#include "face/common.h"

namespace opkiln::face {

// New reference; null with an error set when the object refuses or its memory is not ours to use
// (not on the CPU, needs gradients, unsupported dtype). `writable`: a read-only export is refused.
PyObject* array_from_dlpack(PyObject* o, bool writable);

// "torch" for torch.Tensor: the first part of the type's module (new reference or null).
PyObject* library_of(PyObject* o);

}  // namespace opkiln::face

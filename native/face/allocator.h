// In: the layout of an output; out: an array for it, from NumPy or from the allocator in force.
//
// An allocator is any callable (device, nbytes, function) -> object with a writable buffer. It may
// run any code, also compiled functions: whoever asks for memory holds a lease, or looks anew at
// what it knew.
#pragma once

#include "core/executor.h"
#include "face/compiled.h"

namespace opkiln::face {

// NumPy's own until the first allocator is set, so that the short way of a call has no test for
// one. Afterwards it gives null, without an error, wherever an allocator is in force.
using NewArray = PyObject* (*)(PyTypeObject*, PyArray_Descr*, int, npy_intp const*, npy_intp const*,
                               void*, int, PyObject*);
extern NewArray g_new_array;
void reset_new_array();  // once NumPy is imported

// The context variable that holds the allocator in force, and what holds where it is not set; None
// stands for NumPy.
void use_allocator(PyObject* variable, PyObject* fallback);

// The array of output k, whose executor has the pointers of the inputs and of the outputs before
// it. Null with an error set. Without memory, the thread's idle executors go first.
PyObject* fresh_array(Compiled* self, const core::Executor& x, size_t k);

}  // namespace opkiln::face

// f.bind(): in goes a call, out comes an object that repeats it on the same arrays, with results in
// the same arrays too. A run compares each array with what it was and calls the kernels: nothing is
// looked up, bound or allocated.
#pragma once

#include "face/compiled.h"

namespace opkiln::face {

// The new BoundCall, or null with an error set. Builds what is missing; runs nothing.
PyObject* bind_to_arrays(Compiled* self, PyObject* const* args, Py_ssize_t nargs,
                         PyObject* kwnames);

// Creates the type and adds it to the module; -1 on error.
int add_bound_type(PyObject* module);

}  // namespace opkiln::face

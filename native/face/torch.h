// In: a torch tensor; out: whether its memory holds its values and nothing records the call.
#pragma once

#include "face/common.h"

namespace opkiln::face {

// 1: torch follows what happens now (tracing, a dispatch mode, forward-mode autograd), so each
// tensor must be checked in Python; 0 not; -1 with an error set.
int torch_is_watching();

// True when the tensor may be read (or written, if `written`); false with an error set. `watching`:
// as above.
bool check_torch(PyObject* tensor, bool watching, bool written);

// Whether the memory of a complex tensor holds the conjugates of its values; -1 with an error set.
int is_conjugate(PyObject* tensor);

// Tells autograd that the tensor is about to be written; false with an error set.
bool mark_written(PyObject* tensor);

}  // namespace opkiln::face

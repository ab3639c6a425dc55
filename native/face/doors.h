// In: an array of another library; out: an ndarray over its memory, or its bare layout. How a type
// is read is asked of opkiln.runtime.interop once per type and remembered here.
#pragma once

#include "face/bind.h"
#include "face/dlpack_abi.h"

namespace opkiln::face {

// Whose arrays results become. Never freed; equal libraries are one object.
struct Origin {
  PyObject* name;                          // of the module, for frontend.export
  const DLPackExchangeAPI* api = nullptr;  // makes its arrays without Python, where it offers that
  bool is_torch = false;
};

enum class Way : uint8_t { exchange, buffer, dlpack, interface };

struct Door {
  const PyTypeObject* type = nullptr;
  unsigned tag = 0;  // the type's version: another type, or a changed one, never has it again
  Way way = Way::interface;
  const DLPackExchangeAPI* api = nullptr;  // of Way::exchange
  const Origin* origin = nullptr;          // null: results are NumPy's
};

// The remembered way into objects of this type, or null.
const Door* known_door(const PyTypeObject* type);

// Reads an argument. Where its layout is enough, that is added to the call and `*array` is null;
// else `*array` is an ndarray over its memory to add (new reference). False with an error set.
bool read_foreign(CallArgs& call, PyObject* o, PyObject** array);

// An ndarray over the memory of an out= argument; new reference, or null with an error set.
PyObject* array_to_write(CallArgs& call, PyObject* o);

// An ndarray over the memory of any accepted array; new reference, or null with an error set.
PyObject* foreign_array(PyObject* o);

// Makes ndarrays of the arguments that were only borrowed from; false with an error set.
bool materialise(CallArgs& call);

}  // namespace opkiln::face

// What the plain C parts need from the nanobind part: reading Plan and Slot objects.
#pragma once

#include "face/common.h"

namespace opkiln::core {
class Plan;
}  // namespace opkiln::core

namespace opkiln::face {

struct Slot;

// The Slot or Plan inside a Python object, null when it is something else. No error is set.
const Slot* slot_of(PyObject* o);
core::Plan* plan_of(PyObject* o);

}  // namespace opkiln::face

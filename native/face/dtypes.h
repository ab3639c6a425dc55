// The dtypes by our codes: in goes a NumPy descriptor or a DLPack type, out comes the code, and
// back.
//
// Codes up to kC128 are fixed. A unit of datetime64 or timedelta64 gets the next free code when it
// is first met, and so does no other dtype; bfloat16, which ml_dtypes registers with NumPy, has its
// fixed code as soon as it is met. All of it needs the GIL.
#pragma once

#include "core/dtype.h"
#include "face/common.h"
#include "face/dlpack_abi.h"

namespace opkiln::face {

constexpr uint8_t kNoCode = 0xff;
constexpr uint8_t kToLookUp = 0xfe;

// NumPy's own descriptors by our code, null where there is none; they live as long as the process.
extern PyArray_Descr* g_descr[core::kMostDTypes];
// Our code of a NumPy type number; kToLookUp: the number alone does not tell.
extern const uint8_t kCodeOfType[NPY_NTYPES_LEGACY];

// The code of a datetime64, timedelta64 or bfloat16, given one where it has none yet.
uint8_t look_up_code(const PyArray_Descr* descr);

// Our code of a descriptor, whatever its byte order; kNoCode when there is none.
inline uint8_t code_of(const PyArray_Descr* descr) {
  const auto type = static_cast<unsigned>(descr->type_num);
  const uint8_t code = OPKILN_LIKELY(type < NPY_NTYPES_LEGACY) ? kCodeOfType[type] : kToLookUp;
  return OPKILN_LIKELY(code != kToLookUp) ? code : look_up_code(descr);
}

inline PyArray_Descr* descr_of(core::DType dtype) { return g_descr[static_cast<int>(dtype)]; }
// For NumPy functions that take a reference.
inline PyArray_Descr* new_descr_of(core::DType dtype) {
  PyArray_Descr* descr = descr_of(dtype);
  Py_INCREF(descr);
  return descr;
}

// kNoCode for what we do not compute with.
uint8_t code_of(const DLDataType& t);
// Null: DLPack has no such type.
const DLDataType* dl_type_of(core::DType dtype);

// Fills g_descr; -1 with an error set.
int add_dtypes();

}  // namespace opkiln::face

#include "face/dtypes.h"

#include <cstring>

namespace opkiln::face {

PyArray_Descr* g_descr[core::kMostDTypes];

// bool .. double (x86-64, aarch64: LP64), long double, complex, object .. void, times, half
const uint8_t kCodeOfType[NPY_NTYPES_LEGACY] = {
    0,  1,       5,  2,  6,       3,       7,       4,       8,       4,         8,         9,
    10, kNoCode, 13, 14, kNoCode, kNoCode, kNoCode, kNoCode, kNoCode, kToLookUp, kToLookUp, 11};
static_assert(sizeof(long) == 8, "the table above maps NPY_LONG to 64 bits");

namespace {

constexpr int kFixed = core::kFirstUnit;
constexpr int kTypeOfCode[kFixed] = {NPY_BOOL,   NPY_INT8,   NPY_INT16,  NPY_INT32,  NPY_INT64,
                                     NPY_UINT8,  NPY_UINT16, NPY_UINT32, NPY_UINT64, NPY_FLOAT,
                                     NPY_DOUBLE, NPY_HALF,   NPY_NOTYPE, NPY_CFLOAT, NPY_CDOUBLE};
constexpr DLDataType kDLTypeOfCode[kFixed] = {
    {6, 8, 1},  {0, 8, 1},  {0, 16, 1}, {0, 32, 1}, {0, 64, 1}, {1, 8, 1},  {1, 16, 1}, {1, 32, 1},
    {1, 64, 1}, {2, 32, 1}, {2, 64, 1}, {2, 16, 1}, {4, 16, 1}, {5, 64, 1}, {5, 128, 1}};

constexpr int kBF16 = static_cast<int>(core::DType::kBF16);

int g_next_unit = core::kFirstUnit;

bool is_time(int type_num) { return type_num == NPY_DATETIME || type_num == NPY_TIMEDELTA; }

PyArray_DatetimeMetaData unit_of(const PyArray_Descr* descr) {
  const auto* data =
      reinterpret_cast<const PyArray_DatetimeDTypeMetaData*>(PyDataType_C_METADATA(descr));
  return data->meta;
}

uint8_t code_of_time(const PyArray_Descr* descr) {
  const PyArray_DatetimeMetaData unit = unit_of(descr);
  for (int code = core::kFirstUnit; code < g_next_unit; code++) {
    const PyArray_DatetimeMetaData known = unit_of(g_descr[code]);
    if (g_descr[code]->type_num == descr->type_num && known.base == unit.base &&
        known.num == unit.num) {
      return static_cast<uint8_t>(code);
    }
  }
  if (g_next_unit == core::kMostDTypes) return kNoCode;
  PyArray_Descr* native = PyArray_DescrNewByteorder(const_cast<PyArray_Descr*>(descr), NPY_NATIVE);
  if (!native) {
    PyErr_Clear();
    return kNoCode;
  }
  g_descr[g_next_unit] = native;
  return static_cast<uint8_t>(g_next_unit++);
}

// bfloat16 is as good as void to NumPy; the type of its scalars tells.
uint8_t code_of_user_type(const PyArray_Descr* descr) {
  if (!g_descr[kBF16]) {
    const PyTypeObject* type = descr->typeobj;
    if (!PyTypeNum_ISUSERDEF(descr->type_num) || !type ||
        std::strcmp(type->tp_name, "ml_dtypes.bfloat16") != 0) {
      return kNoCode;
    }
    g_descr[kBF16] = PyArray_DescrFromType(descr->type_num);
    if (!g_descr[kBF16]) {
      PyErr_Clear();
      return kNoCode;
    }
  }
  return descr->type_num == g_descr[kBF16]->type_num ? static_cast<uint8_t>(kBF16) : kNoCode;
}

// Whoever has bfloat16 memory without ml_dtypes loaded, as torch does, makes us load it.
bool load_bfloat16() {
  Ref module(PyImport_ImportModule("ml_dtypes"));
  Ref type(module ? PyObject_GetAttrString(module.get(), "bfloat16") : nullptr);
  PyArray_Descr* descr = nullptr;
  const bool found =
      type && PyArray_DescrConverter(type.get(), &descr) && code_of_user_type(descr) == kBF16;
  Py_XDECREF(descr);
  if (!found) PyErr_Clear();
  return found;
}

}  // namespace

uint8_t look_up_code(const PyArray_Descr* descr) {
  if (is_time(descr->type_num)) return code_of_time(descr);
  return code_of_user_type(descr);
}

uint8_t code_of(const DLDataType& t) {
  for (int code = 0; code < kFixed; code++) {
    const DLDataType& known = kDLTypeOfCode[code];
    if (known.code == t.code && known.bits == t.bits && t.lanes == 1) {
      if (!g_descr[code] && !(code == kBF16 && load_bfloat16())) return kNoCode;
      return code_of(g_descr[code]);
    }
  }
  return kNoCode;
}

const DLDataType* dl_type_of(core::DType dtype) {
  const int code = static_cast<int>(dtype);
  return code < kFixed ? &kDLTypeOfCode[code] : nullptr;
}

int add_dtypes() {
  for (int code = 0; code < kFixed; code++) {
    if (kTypeOfCode[code] == NPY_NOTYPE) continue;
    g_descr[code] = PyArray_DescrFromType(kTypeOfCode[code]);
    if (!g_descr[code]) return -1;
  }
  return 0;
}

}  // namespace opkiln::face

#include "face/dtypes.h"

namespace opkiln::face {

PyArray_Descr* g_descr[core::kMostDTypes];

// bool .. double (x86-64, aarch64: LP64), long double, complex, object .. void, times, half
const uint8_t kCodeOfType[NPY_NTYPES_LEGACY] = {
    0,       1,       5,       2,       6,       3,         7,         4,
    8,       4,       8,       9,       10,      kNoCode,   13,        14,
    kNoCode, kNoCode, kNoCode, kNoCode, kNoCode, kToLookUp, kToLookUp, kNoCode};
static_assert(sizeof(long) == 8, "the table above maps NPY_LONG to 64 bits");

namespace {

constexpr int kFixed = core::kFirstUnit;
constexpr int kTypeOfCode[kFixed] = {NPY_BOOL,   NPY_INT8,   NPY_INT16,  NPY_INT32,  NPY_INT64,
                                     NPY_UINT8,  NPY_UINT16, NPY_UINT32, NPY_UINT64, NPY_FLOAT,
                                     NPY_DOUBLE, NPY_HALF,   NPY_NOTYPE, NPY_CFLOAT, NPY_CDOUBLE};
constexpr DLDataType kDLTypeOfCode[kFixed] = {
    {6, 8, 1},  {0, 8, 1},  {0, 16, 1}, {0, 32, 1}, {0, 64, 1}, {1, 8, 1},  {1, 16, 1}, {1, 32, 1},
    {1, 64, 1}, {2, 32, 1}, {2, 64, 1}, {2, 16, 1}, {4, 16, 1}, {5, 64, 1}, {5, 128, 1}};

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

}  // namespace

uint8_t look_up_code(const PyArray_Descr* descr) {
  if (is_time(descr->type_num)) return code_of_time(descr);
  return kNoCode;
}

uint8_t code_of(const DLDataType& t) {
  for (int code = 0; code < kFixed; code++) {
    const DLDataType& known = kDLTypeOfCode[code];
    if (known.code == t.code && known.bits == t.bits && t.lanes == 1) {
      return g_descr[code] ? code_of(g_descr[code]) : kNoCode;
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

// The DLPack ABI (dlpack.h 1.3): capsules old and new, and the table of C functions that a type may
// carry as `__dlpack_c_exchange_api__`.
#pragma once

#include <cstdint>

namespace opkiln::face {

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null means C order
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};
struct DLManagedTensorVersioned {
  uint32_t major, minor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor dl_tensor;
};
struct DLPackExchangeAPI {
  uint32_t major, minor;
  DLPackExchangeAPI* previous;
  void* allocator;
  int (*managed_from_object)(void* py_object, DLManagedTensorVersioned** out);
  int (*object_from_managed)(DLManagedTensorVersioned* stolen, void** out_py_object);
  int (*tensor_from_object)(void* py_object, DLTensor* out);  // borrowed; may be null
  void* current_work_stream;
};

constexpr int32_t kDLCPU = 1;
constexpr uint8_t kDLComplex = 5;
constexpr uint64_t kDLReadOnly = 1, kDLCopied = 2;
constexpr const char* kDLExchange = "dlpack_exchange_api";
constexpr const char* kDLLegacy = "dltensor";
constexpr const char* kDLVersioned = "dltensor_versioned";

}  // namespace opkiln::face

/* opkiln/op.h: the C interface of custom ops. A library exports one descriptor per op, by OK_OP().
 *
 * Plain C11 and C++17; needs nothing of Python, NumPy or DLPack. opkiln/op.hpp is C++ on top of it.
 *
 *   static int32_t run(ok_call *call) {
 *     const ok_tensor *x = &call->inputs[0];
 *     ok_tensor *y = &call->outputs[0];
 *     if (!ok_is(x, OK_FLOAT, 32)) return ok_fail(call, "expected float32");
 *     for (int64_t i = 0; i < ok_numel(x); ++i)
 *       ((float *)y->data)[i] = (float)call->scalars[0].value.f * ((const float *)x->data)[i];
 *     return 0;
 *   }
 *   OK_OP(scale, run, NULL, NULL);
 *
 * The runtime calls these functions on any thread, several at once, without Python's lock: they
 * must not call Python. An op is a function of its inputs and scalars; it never writes to an input.
 */
#ifndef OPKILN_OP_H
#define OPKILN_OP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when something below changes its meaning. Structures grow at their end without that, so a
 * library keeps working with a later runtime; see docs/custom_ops.md. */
#define OK_OP_ABI 1u
#define OK_OP_MAGIC 0x504f4b4fu
#define OK_MAX_RANK 16

/* Types of devices and elements by DLPack's numbers. */
enum { OK_CPU = 1, OK_CUDA = 2 };
enum { OK_INT = 0, OK_UINT = 1, OK_FLOAT = 2, OK_BFLOAT = 4, OK_COMPLEX = 5, OK_BOOL = 6 };
enum { OK_SCALAR_BOOL = 0, OK_SCALAR_INT = 1, OK_SCALAR_FLOAT = 2, OK_SCALAR_STRING = 3 };

typedef struct ok_device {
  int32_t type;
  int32_t id;
} ok_device;

typedef struct ok_dtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes; /* always 1 */
} ok_dtype;

/* The layout of a DLTensor. An optional input that was not given has ndim -1. */
typedef struct ok_tensor {
  void* data;
  ok_device device;
  int32_t ndim;
  ok_dtype dtype;
  int64_t* shape;
  int64_t* strides;     /* in elements; never NULL for a tensor with axes */
  uint64_t byte_offset; /* always 0 */
} ok_tensor;

typedef struct ok_scalar {
  int32_t kind;
  int32_t reserved;
  union {
    int64_t i; /* also of a bool: 0 or 1 */
    double f;
    const char* s; /* UTF-8, ends with NUL */
  } value;
} ok_scalar;

typedef struct ok_call {
  uint32_t size; /* of the structure that the runtime made */
  uint32_t abi;
  const ok_tensor* inputs; /* in the order of the schema */
  ok_tensor* outputs;      /* allocated, C order unless the op takes any layout */
  const ok_scalar* scalars;
  int32_t n_inputs, n_outputs, n_scalars, reserved;
  void* workspace; /* aligned to 64 bytes */
  uint64_t workspace_size;
  void* stream;  /* NULL on the CPU; a cudaStream_t on CUDA: launch on it, do not wait for it */
  char* message; /* where ok_fail() puts its text */
  uint64_t message_size;
} ok_call;

/* 0 for success. */
typedef int32_t (*ok_function)(ok_call* call);

typedef struct ok_op {
  uint32_t magic, abi;
  uint32_t size, call_size, tensor_size, scalar_size; /* that the library was compiled with */
  ok_function run;
  /* Optional: sets workspace_size. Tensors have no data. */
  ok_function workspace;
  /* Optional: sets dtype, ndim and shape (room for OK_MAX_RANK) of each output. No data. */
  ok_function infer;
} ok_op;

#if defined(_WIN32)
#define OK_EXPORT __declspec(dllexport)
#else
#define OK_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
#define OK_EXTERN extern "C"
#else
#define OK_EXTERN extern
#endif

/* Declares and begins to define a descriptor; goes on with `= {...};`. */
#define OK_OP_NAMED(name)               \
  OK_EXTERN OK_EXPORT const ok_op name; \
  const ok_op name

#define OK_OP_HEAD                                                            \
  OK_OP_MAGIC, OK_OP_ABI, (uint32_t)sizeof(ok_op), (uint32_t)sizeof(ok_call), \
      (uint32_t)sizeof(ok_tensor), (uint32_t)sizeof(ok_scalar)

/* Exports an op under a symbol: OK_OP(symbol, run, workspace or NULL, infer or NULL) */
#define OK_OP(name, run, workspace, infer) OK_OP_NAMED(name) = {OK_OP_HEAD, run, workspace, infer}

/* Reports an error: `return ok_fail(call, "why")`. The text is copied. */
static inline int32_t ok_fail(ok_call* call, const char* why) {
  uint64_t i = 0;
  if (call->message_size == 0) return 1;
  while (why[i] != 0 && i + 1 < call->message_size) {
    call->message[i] = why[i];
    ++i;
  }
  call->message[i] = 0;
  return 1;
}

static inline int64_t ok_numel(const ok_tensor* tensor) {
  int64_t count = 1;
  int32_t i;
  for (i = 0; i < tensor->ndim; ++i) count *= tensor->shape[i];
  return count;
}

static inline int ok_is(const ok_tensor* tensor, int code, int bits) {
  return tensor->dtype.code == code && tensor->dtype.bits == bits && tensor->dtype.lanes == 1;
}

static inline int ok_given(const ok_tensor* tensor) { return tensor->ndim >= 0; }

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* OPKILN_OP_H */

// Hand-written kernels for tests of the native face; each serves every column class.
#include <opkiln/kernel.h>

#define STEP(k) (a->ptr[k] + r * a->row[k] + c * a->col[k])
#define EACH                                    \
  for (int64_t r = row_begin; r < row_end; r++) \
    for (int64_t c = 0; c < a->cols; c++)
#define KERNEL(name) \
  extern "C" uint64_t name(const ok_args* a, int64_t row_begin, int64_t row_end)

KERNEL(mad_f32) {
  EACH *(float*)STEP(3) = *(float*)STEP(0) * *(float*)STEP(1) + *(float*)STEP(2);
  return 0;
}
KERNEL(add_f32) {
  EACH *(float*)STEP(2) = *(float*)STEP(0) + *(float*)STEP(1);
  return 0;
}
KERNEL(affine_f64) {
  const double s = *(double*)&a->scalar[0], t = *(double*)&a->scalar[1];
  EACH *(double*)STEP(1) = *(double*)STEP(0) * s + t;
  return 0;
}
KERNEL(add_scalar_u8) {
  const unsigned char s = (unsigned char)a->scalar[0];
  EACH *(unsigned char*)STEP(1) = (unsigned char)(*(unsigned char*)STEP(0) + s);
  return 0;
}
KERNEL(sum_f64) {
  for (int64_t r = row_begin; r < row_end; r++) {
    double total = 0;
    for (int64_t c = 0; c < a->cols; c++) total += *(double*)STEP(0);
    *(double*)(a->ptr[1] + r * a->row[1]) = total;
  }
  return 0;
}
KERNEL(twice_f32) {
  EACH {
    const float x = *(float*)STEP(0);
    *(float*)STEP(1) = x + x;
    *(float*)STEP(2) = x * x;
  }
  return 0;
}
KERNEL(pow_i64) {
  uint64_t faults = 0;
  EACH {
    int64_t x = *(int64_t*)STEP(0), n = *(int64_t*)STEP(1), p = 1;
    if (n < 0) faults |= 2;
    for (; n > 0; n--) p *= x;
    *(int64_t*)STEP(2) = p;
  }
  return faults;
}
KERNEL(div_i64) {
  uint64_t faults = 0;
  EACH {
    const int64_t x = *(int64_t*)STEP(0), y = *(int64_t*)STEP(1);
    if (y == 0) faults |= 1;
    *(int64_t*)STEP(2) = y == 0 ? 0 : x / y;
  }
  return faults;
}
